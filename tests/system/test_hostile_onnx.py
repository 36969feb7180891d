"""ONNX files that are broken, odd or malicious: refused with one clear line, or what ONNX's own evaluator computes."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sim.pipeline import run_golden
from sim.testing.onnx_files import QdqBuilder, mobilenet
from sw.reader.model import ModelError, read_model
from sw.reader.onnx import evaluate_onnx

SEED = int(os.environ.get("RONDO_SEED", "1"))


def small(seed=0, shape=(1, 3, 6, 7)):
    """A convolution, an activation by table, a fully connected layer behind a flattening."""
    rng = np.random.default_rng(seed)
    q = QdqBuilder()
    x = q.input("x", shape, 0.05, 3)
    w = q.weights("w", rng.integers(-128, 128, (4, 3, 3, 3), np.int8), rng.uniform(0.002, 0.01, 4))
    b = q.weights("b", rng.integers(-500, 500, 4).astype(np.int32), np.full(4, 0.0003))
    y = q.between(q.node("Conv", [x, w, b], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 0.04, -10)
    y = q.between(q.node("Tanh", [y]), 1 / 128, 0)
    y = q.between(q.node("Flatten", [y]), 1 / 128, 0)
    v = q.weights("v", rng.integers(-128, 128, (5, 168), np.int8), 0.01)
    q.output("y", q.node("Gemm", [y, v], transB=1), (1, 5), 0.1, 0)
    return q


def judge(path, data):
    """'refused' or 'accepted'; anything else is an error."""
    path.write_bytes(data)
    try:
        model = read_model(path, host_fallback=True)
    except ModelError as error:
        text = str(error)
        assert text.startswith(str(path)) and "\n" not in text and len(text) <= 400
        return "refused"
    rng = np.random.default_rng(SEED)
    inputs = {}
    for port in model.inputs:
        kind = np.dtype(port.dtype)
        low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (-1, 1)
        values = rng.uniform(low, high, port.shape)
        inputs[port.name] = values.astype(kind)
    try:
        expected = evaluate_onnx(path, inputs)
        found, _ = run_golden(model, inputs)
    except ModelError:
        return "refused"
    for name, values in found.items():
        assert values.dtype == expected[name].dtype and values.shape == expected[name].shape
        if values.dtype.kind in "iu":
            assert np.abs(values.astype(int) - expected[name].astype(int)).max() <= 2
    return "accepted"


def test_truncated_at_every_64th(tmp_path):
    data = small().serialise()
    for part in range(64):
        assert judge(tmp_path / "m.onnx", data[: len(data) * part // 64]) == "refused"


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_flipped_bytes(first, tmp_path):
    data = small().serialise()
    for seed in range(first, first + 60):
        rng = np.random.default_rng([SEED, seed])
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 6))):
            changed[int(rng.integers(len(data)))] = int(rng.integers(256))
        judge(tmp_path / "m.onnx", bytes(changed))


def _edit(change):
    model = small().model()
    change(model)
    return model.SerializeToString()


def _node(model, kind):
    return next(node for node in model.graph.node if node.op_type == kind)


def _initializer(model, name):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _constant(name, values):
    return onnx.numpy_helper.from_array(np.asarray(values), name)


def _replace(model, name, values):
    _initializer(model, name).CopyFrom(_constant(name, values))


def _scale_of(model, kind, index, values):
    """Replace the scale of the tensor that a node reads."""
    read = _node(model, kind).input[index]
    producer = next(node for node in model.graph.node if read in node.output)
    _replace(model, producer.input[1], values)


def _symbolic(model, index):
    dimension = model.graph.input[0].type.tensor_type.shape.dim[index]
    dimension.Clear()
    dimension.dim_param = "n"


def _reverse(model):
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _cycle(model):
    _node(model, "Conv").input[0] = _node(model, "Tanh").output[0]


def _loop(model):
    body = helper.make_graph([], "body", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=body, else_branch=body))


def _external(model):
    tensor = _initializer(model, "w")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


REFUSED = {
    "no nodes": lambda m: m.graph.ClearField("node"),
    "no opset": lambda m: m.ClearField("opset_import"),
    "old opset": lambda m: setattr(m.opset_import[0], "version", 9),
    "new opset": lambda m: setattr(m.opset_import[0], "version", 99),
    "reversed": _reverse,
    "cycle": _cycle,
    "made twice": lambda m: _node(m, "Tanh").output.__setitem__(0, _node(m, "Conv").output[0]),
    "control flow": _loop,
    "external data": _external,
    "weights too short": lambda m: setattr(_initializer(m, "w"), "raw_data", b"\0" * 5),
    "weights of negative size": lambda m: _initializer(m, "w").dims.__setitem__(0, -4),
    "weights of absurd size": lambda m: _initializer(m, "w").dims.__setitem__(0, 1 << 40),
    "no weights": lambda m: m.graph.initializer.remove(_initializer(m, "w")),
    "scale nan": lambda m: _scale_of(m, "Conv", 0, np.float32("nan")),
    "scale 0": lambda m: _scale_of(m, "Conv", 0, np.float32(0)),
    "weights' scale infinite": lambda m: _replace(m, "w_scale", np.full(4, np.inf, np.float32)),
    "three scales for four channels": lambda m: _replace(m, "w_scale", np.ones(3, np.float32)),
    "symbolic height": lambda m: _symbolic(m, 2),
    "absurd input": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[2], "dim_value", 1 << 40),
    "kernel of absurd size": lambda m: _node(m, "Conv").attribute[0].ints.__setitem__(0, 1 << 40),
    "float only": lambda m: m.CopyFrom(mobilenet()[0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, tmp_path):
    assert judge(tmp_path / "m.onnx", _edit(REFUSED[name])) == "refused"


def test_a_batch_that_may_vary_is_one(tmp_path):
    data = small(shape=("batch", 3, 6, 7)).serialise()
    assert judge(tmp_path / "m.onnx", data) == "accepted"
    (port,) = read_model(tmp_path / "m.onnx").inputs
    assert port.shape == (1, 3, 6, 7)


def test_the_file_that_all_of_these_are_made_from_is_accepted(tmp_path):
    assert judge(tmp_path / "m.onnx", small().serialise()) == "accepted"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"ONNX", bytes(range(256))])
def test_no_onnx_file(content, tmp_path):
    assert judge(tmp_path / "m.onnx", content) == "refused"
