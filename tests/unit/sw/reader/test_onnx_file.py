"""Checks of an ONNX file before anything else relies on it, and files made of some of its nodes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sim.testing.onnx_files import QdqBuilder, run_reference
from sw.reader.model import ModelError
from sw.reader.onnx_file import OPSETS, OnnxFile, read_file
from sw.reader.onnx_runtime import onnx_runtime


def chain(opset=17):
    """x → Relu → a → Mul by the constant c → y."""
    builder = QdqBuilder(opset)
    builder.float_input("x", (1, 2, 3, 4))
    a = builder.node("Relu", ["x"])
    y = builder.node("Mul", [a, builder.constant("c", np.float32([2.5]))])
    builder.float_output(y, (1, 2, 3, 4))
    return builder


def changed(change):
    """The chain after a change to its message."""
    model = chain().model()
    change(model, model.graph)
    return model.SerializeToString()


def test_nodes_shapes_and_types():
    file = OnnxFile(chain().serialise(), "chain")
    assert [(node.number, node.kind, node.inputs) for node in file.nodes] == [
        (0, "Relu", ("x",)),
        (1, "Mul", ("relu_0", "c")),
    ]
    assert (file.inputs, file.outputs) == (("x",), ("mul_1",))
    assert file.shape("relu_0") == (1, 2, 3, 4) and file.dtype("relu_0") == "float32"
    assert file.shape("c") == (1,) and file.constants["c"].tolist() == [2.5]
    assert file.place(file.nodes[1]) == "Mul (node 1, output 'mul_1')"
    assert file.nodes[0].input(0) == "x" and file.nodes[0].input(7) == ""


def test_what_depends_on_constants_alone_is_computed():
    builder = QdqBuilder()
    builder.float_input("x", (1, 6, 2, 2))
    size = builder.node("Gather", [builder.node("Shape", ["x"]), builder.constant("i", np.int64([1]))], axis=0)
    minus = builder.node("Constant", [], value_ints=[1, -1])
    shape = builder.node("Concat", [minus, size], axis=0)
    builder.float_output(builder.node("Reshape", ["x", shape]), (1, 4, 6))
    file = OnnxFile(builder.serialise(), "views")
    assert [node.kind for node in file.nodes] == ["Reshape"]
    assert len(file.all_nodes) == 5
    assert file.constants[shape].tolist() == [1, -1, 6]


def test_a_batch_that_may_vary_is_one_everywhere():
    builder = QdqBuilder()
    builder.float_input("x", ("n", 3))
    builder.float_output(builder.node("Relu", ["x"]), ("n", 3))
    file = OnnxFile(builder.serialise(), "batch")
    assert file.shape("x") == file.shape(file.outputs[0]) == (1, 3)


def test_a_submodel_computes_its_part():
    file = OnnxFile(chain().serialise(), "chain")
    (found,) = onnx_runtime().run(file.submodel([1], ["relu_0"], ["mul_1"]), {"relu_0": np.full((1, 2, 3, 4), 2, "f4")})
    assert np.array_equal(found, np.full((1, 2, 3, 4), 5))


def test_a_submodel_takes_its_dequantised_constants_along():
    builder = QdqBuilder()
    x = builder.input("x", (1, 3), 0.1, 3)
    w = builder.weights("w", np.arange(6, dtype=np.int8).reshape(3, 2), [0.5])
    builder.weights("unused", np.ones((3, 2), np.int8), [0.5])
    y = builder.node("MatMul", [x, w])
    builder.float_output(y, (1, 2))
    data = builder.serialise()
    file = OnnxFile(data, "matmul")
    number = next(node.number for node in file.nodes if node.kind == "MatMul")
    small = file.submodel([number], [x], [y])
    values = np.float32([[1, -2, 3]])
    assert np.allclose(onnx_runtime().run(small, {x: values})[0], values @ (np.arange(6).reshape(3, 2) * 0.5))
    assert not any("unused" in t.name for t in onnx.load_model_from_string(small).graph.initializer)


def test_every_version_that_is_read():
    inputs = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 2, 3, 4)}
    for opset in (OPSETS.start, OPSETS.stop - 1):
        data = chain(opset).serialise()
        file = OnnxFile(data, "chain")
        (found,) = onnx_runtime().run(file.submodel([0, 1], file.inputs, file.outputs), inputs)
        if opset == OPSETS.start:
            assert np.array_equal(found, run_reference(data, inputs)["mul_1"])


def _external(tensor):
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def _attribute(graph, **values):
    graph.node[0].attribute.append(helper.make_attribute(*next(iter(values.items()))))


def _external_attribute(model, graph):
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])
    tensor.ClearField("float_data")
    _external(tensor)
    graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=tensor))


def _sparse(model, graph):
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [0]), [4])
    graph.node.insert(0, helper.make_node("Constant", [], ["k"], sparse_value=sparse))


def _function(model, graph):
    model.functions.add(name="f", domain="mine")


REFUSED = {
    "no nodes": (lambda m, g: g.ClearField("node"), "the network has no nodes"),
    "old": (lambda m, g: setattr(m.opset_import[0], "version", 12), "the file has version 12 of the operator set"),
    "new": (lambda m, g: setattr(m.opset_import[0], "version", 99), "the file has version 99 of the operator set"),
    "no version": (lambda m, g: m.ClearField("opset_import"), "the file names no version of the operator set"),
    "external": (lambda m, g: _external(g.initializer[0]), "tensor 'c' lies in another file"),
    "external attribute": (_external_attribute, r"Constant \(node 0\): its data lie in another file"),
    "sparse attribute": (_sparse, r"Constant \(node 0\): sparse tensors are not supported"),
    "functions": (_function, "the file has functions of its own"),
    "domain": (
        lambda m, g: setattr(g.node[0], "domain", "com.microsoft"),
        r"com.microsoft.Relu \(node 0\) is no operator of ONNX itself",
    ),
    "subgraph": (
        lambda m, g: _attribute(g, then_branch=helper.make_graph([], "b", [], [])),
        r"Relu \(node 0\): control flow is not supported",
    ),
    "before it is made": (lambda m, g: g.node[0].input.__setitem__(0, "mul_1"), "ONNX refuses it: .*"),
    "made by no node": (lambda m, g: setattr(g.output[0], "name", "z"), "ONNX refuses it: .*|output 'z' is made by"),
    "wrong data": (lambda m, g: setattr(g.initializer[0], "raw_data", b"\0"), "ONNX refuses it: .*|the data of tensor"),
    "other shape": (
        lambda m, g: setattr(g.output[0].type.tensor_type.shape.dim[1], "dim_value", 9),
        "ONNX refuses it: .*",
    ),
    "not fixed": (
        lambda m, g: setattr(g.input[0].type.tensor_type.shape.dim[2], "dim_param", "h"),
        "the shape of 'x' is not fixed",
    ),
    "no shape": (
        lambda m, g: g.input[0].type.tensor_type.ClearField("shape"),
        "the shape of 'x' is not known|ONNX ref",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    change, text = REFUSED[name]
    with pytest.raises(ModelError, match=f"^(?:{text})"):
        OnnxFile(changed(change), "chain")


def test_data_in_another_file_are_not_read_even_where_it_is_there(tmp_path, monkeypatch):
    (tmp_path / "weights.bin").write_bytes(np.float32([2.5]).tobytes())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(changed(lambda m, g: _external(g.initializer[0])))
    with pytest.raises(ModelError, match=r"m\.onnx: tensor 'c' lies in another file; that is not supported$"):
        read_file(tmp_path / "m.onnx")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=r"^cannot read .*none\.onnx: No such file or directory$"):
        read_file(tmp_path / "none.onnx")


def test_a_file_is_read_again_once_it_has_changed(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(chain().serialise())
    first = read_file(path)
    assert read_file(path) is first
    path.write_bytes(changed(lambda m, g: setattr(m, "producer_name", "another")))
    assert read_file(path) is not first
