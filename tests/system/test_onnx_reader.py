"""ONNX QDQ files: Rondo's integers beside ONNX Runtime's real numbers, operator by operator and in networks.

What a file says is arithmetic of real numbers; Rondo rounds each result once from an exact sum. So a value may differ
by one step where the real number lies very near the middle between two integers, and tables not at all.
"""

import os

import numpy as np
import pytest

from hw.spec.config import load_config
from sim.pipeline import compile_model, run_golden, run_model
from sim.testing.onnx_files import NETWORKS, QdqBuilder, quantised, run_reference
from sw.policy import policy
from sw.reader.model import ModelError, read_model

SEED = int(os.environ.get("RONDO_SEED", "1"))


def read(tmp_path, data, **options):
    path = tmp_path / "network.onnx"
    path.write_bytes(data)
    return read_model(path, **options)


class One:
    """A file of one operator with random numbers, int8 or uint8 at both ends."""

    def __init__(self, rng, shape):
        self.rng, self.shape = rng, shape
        self.q = QdqBuilder(int(rng.choice((13, 17, 19, 21))))
        self.dtype = str(rng.choice(("int8", "uint8")))
        self.low, self.high = (0, 256) if self.dtype == "uint8" else (-128, 128)
        self.scale, self.zero = float(np.float32(rng.uniform(0.02, 0.1))), int(rng.integers(self.low, self.high))
        self.x = self.q.input("x", shape, self.scale, self.zero, self.dtype)

    def other(self, shape, scale=None, zero=None):
        scale = float(np.float32(self.rng.uniform(0.02, 0.1))) if scale is None else scale
        zero = int(self.rng.integers(self.low, self.high)) if zero is None else zero
        return self.q.input("z", shape, scale, zero, self.dtype)

    def finish(self, real, shape, scale=None, zero=None):
        scale = float(np.float32(self.rng.uniform(0.05, 0.6))) if scale is None else scale
        zero = int(self.rng.integers(self.low, self.high)) if zero is None else zero
        if self.rng.random() < 0.3 and self.clamps:
            real = self.q.node("Relu", [real])
        self.q.output("y", real, shape, scale, zero, self.dtype)
        return self.q.serialise()

    clamps = False

    def inputs(self):
        return {
            info.name: self.rng.integers(
                self.low, self.high, [d.dim_value for d in info.type.tensor_type.shape.dim], np.dtype(self.dtype)
            )
            for info in self.q.inputs
        }


def convolution(rng):
    groups = int(rng.choice((1, 1, 2, 5)))
    cin, cout = groups * int(rng.choice((1, 3, 5))), groups * int(rng.choice((1, 2, 7)))
    one = One(rng, (1, cin, int(rng.integers(4, 13)), int(rng.integers(4, 13))))
    one.clamps = True
    kernel, stride, dilation = rng.integers(1, 4, 2), rng.integers(1, 3, 2), rng.integers(1, 3, 2)
    pads = rng.integers(0, 3, 4)
    size = [
        (one.shape[2 + k] + pads[k] + pads[2 + k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        for k in range(2)
    ]
    if min(size) < 1:
        return None
    weights = rng.integers(-128, 128, (cout, cin // groups, *kernel), np.int8)
    scales = rng.uniform(0.001, 0.02, cout if rng.random() < 0.6 else ())
    inputs = [one.x, one.q.weights("w", weights, scales)]
    if rng.random() < 0.7:
        bias = rng.integers(-5000, 5000, cout).astype(np.int32)
        inputs.append(one.q.weights("b", bias, np.broadcast_to(scales * one.scale, (cout,))))
    attributes = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": pads}
    y = one.q.node("Conv", inputs, group=groups, **{k: v.tolist() for k, v in attributes.items()})
    return one, one.finish(y, (1, cout, *size)), True


def dense(rng):
    cin, cout = int(rng.choice((1, 9, 40))), int(rng.choice((1, 6, 33)))
    one = One(rng, (1, cin))
    one.clamps = True
    if rng.random() < 0.5:
        w = one.q.weights("w", rng.integers(-128, 128, (cout, cin), np.int8), rng.uniform(0.001, 0.02, cout), 0)
        bias = one.q.constant("b", rng.uniform(-1, 1, cout).astype(np.float32))
        y = one.q.node("Gemm", [one.x, w, bias], transB=1)
    else:
        y = one.q.node("MatMul", [one.x, one.q.weights("w", rng.integers(-128, 128, (cin, cout), np.int8), 0.01)])
    return one, one.finish(y, (1, cout)), True


def flattened(rng):
    """An image, the network's input or made by it, flattened in the file's order before a fully connected layer."""
    c, h, w = int(rng.choice((1, 3, 6))), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    one = One(rng, (1, c, h, w))
    image = one.x
    if rng.random() < 0.5:
        ones = one.q.weights("v", np.eye(c, dtype=np.int8)[::-1].reshape(c, c, 1, 1) * 100, 0.01)
        image = one.q.node("Conv", [image, ones], kernel_shape=[1, 1])
        image = one.q.between(image, one.scale, one.zero, one.dtype)
    flat = one.q.between(one.q.node("Flatten", [image]), one.scale, one.zero, one.dtype)
    weights = one.q.weights("w", rng.integers(-128, 128, (7, c * h * w), np.int8), 0.01)
    return one, one.finish(one.q.node("Gemm", [flat, weights], transB=1), (1, 7)), True


def pool(rng):
    one = One(rng, (1, int(rng.choice((1, 3, 6))), int(rng.integers(3, 12)), int(rng.integers(3, 12))))
    one.clamps = True
    kind = str(rng.choice(("MaxPool", "AveragePool")))
    kernel, stride = rng.integers(1, 4, 2), rng.integers(1, 4, 2)
    pads = np.minimum(rng.integers(0, 2, 4), np.tile(kernel - 1, 2))
    size = [(one.shape[2 + k] + pads[k] + pads[2 + k] - kernel[k]) // stride[k] + 1 for k in range(2)]
    attributes = {"kernel_shape": kernel.tolist(), "strides": stride.tolist(), "pads": pads.tolist()}
    scale, zero = one.scale, one.zero
    if kind == "AveragePool":
        attributes["count_include_pad"] = int(rng.integers(2))
        if attributes["count_include_pad"] or not pads.any():
            scale, zero = None, None
    y = one.q.node(kind, [one.x], **attributes)
    return one, one.finish(y, (1, one.shape[1], *size), scale, zero), kind == "AveragePool"


def global_pool(rng):
    one = One(rng, (1, int(rng.choice((1, 3, 20))), int(rng.integers(1, 12)), int(rng.integers(1, 12))))
    return one, one.finish(one.q.node("GlobalAveragePool", [one.x]), (1, one.shape[1], 1, 1), 0.03), True


def addition(rng):
    one = One(rng, (1, int(rng.choice((1, 3, 20))), int(rng.integers(1, 7)), int(rng.integers(1, 7))))
    one.clamps = True
    return one, one.finish(one.q.node("Add", [one.x, one.other(one.shape)]), one.shape, 0.1), True


def function(rng):
    """Functions of each element, which are exact; SiLU, hard-swish and requantisation among them."""
    one = One(rng, (1, int(rng.choice((1, 3, 20))), int(rng.integers(1, 7)), int(rng.integers(1, 7))))
    kind = str(rng.choice(("Tanh", "Relu", "LeakyRelu", "HardSwish", "Elu", "Abs", "none", "Clip", "scalars")))
    node = one.q.node
    if kind == "none":
        y = one.x
    elif kind == "Clip":
        y = node("Clip", [one.x, one.q.constant("low", np.float32(-0.4)), ""])
    elif kind == "scalars":
        y = node(
            "Add", [node("Mul", [one.x, one.q.constant("m", np.float32(1.7))]), one.q.constant("a", np.float32(-0.3))]
        )
    elif kind == "HardSwish":
        y = node("Mul", [one.x, node("HardSigmoid", [one.x], alpha=1 / 6, beta=0.5)])
    else:
        y = node(kind, [one.x])
    return one, one.finish(y, one.shape), False


def silu(rng):
    one = One(rng, (1, 3, 4, 5))
    sigmoid = one.q.node("Sigmoid", [one.x])
    if rng.random() < 0.5:
        sigmoid = one.q.between(sigmoid, 1 / 256, one.low, one.dtype)
    return one, one.finish(one.q.node("Mul", [one.x, sigmoid]), one.shape), False


def concatenation(rng):
    one = One(rng, (1, int(rng.choice((1, 3, 20))), 4, 5))
    other = one.other((1, 6, 4, 5))
    return one, one.finish(one.q.node("Concat", [one.x, other], axis=1), (1, one.shape[1] + 6, 4, 5)), False


def resize(rng):
    one = One(rng, (1, int(rng.choice((1, 3, 20))), 4, 5))
    scales = one.q.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")]
    mode, nearest = how[rng.integers(3)]
    y = one.q.node(
        "Resize", [one.x, "", scales], mode="nearest", coordinate_transformation_mode=mode, nearest_mode=nearest
    )
    return one, one.finish(y, (1, one.shape[1], 8, 10), one.scale, one.zero), False


def padding(rng):
    """A padding, folded into the convolution after it."""
    one = One(rng, (1, 3, 6, 7))
    pads = one.q.constant("pads", np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64))
    padded = one.q.between(one.q.node("Pad", [one.x, pads]), one.scale, one.zero, one.dtype)
    weights = one.q.weights("w", rng.integers(-128, 128, (5, 3, 3, 3), np.int8), 0.01)
    return one, one.finish(one.q.node("Conv", [padded, weights], kernel_shape=[3, 3]), (1, 5, 5, 8)), True


def arithmetic(rng):
    """Factors and offsets for each channel, behind a convolution or alone; a normalisation among them."""
    channels = int(rng.choice((2, 5, 18)))
    one = One(rng, (1, channels, int(rng.integers(1, 7)), int(rng.integers(1, 7))))
    one.clamps = True
    y = one.x
    if rng.random() < 0.5:
        weights = rng.integers(-127, 128, (channels, channels, 1, 1), np.int8)
        y = one.q.node("Conv", [y, one.q.weights("w", weights, rng.uniform(0.001, 0.02, channels))])
    for number in range(int(rng.integers(1, 4))):
        kind = str(rng.choice(("Add", "Sub", "Mul", "Div", "BatchNormalization")))
        values = (rng.uniform(0.3, 2, (4, channels)) * rng.choice((-1, 1), (4, channels))).astype(np.float32)
        if kind == "BatchNormalization":
            names = [one.q.constant(f"k{number}{i}", v) for i, v in enumerate((*values[:3], np.abs(values[3])))]
            y = one.q.node(kind, [y, *names])
            continue
        constant = one.q.constant(f"k{number}", values[0].reshape(channels, 1, 1))
        first = kind != "Div" and rng.random() < 0.3
        y = one.q.node(kind, [constant, y] if first else [y, constant])
    return one, one.finish(y, one.shape), True


CASES = [
    *(convolution, dense, flattened, pool, global_pool, addition, function, silu, concatenation, resize, padding),
    arithmetic,
]


@pytest.mark.parametrize("make", CASES)
def test_single_operators(make, tmp_path):
    rng = np.random.default_rng([SEED, CASES.index(make)])
    values = apart = 0
    for case in range(20):
        made = make(rng)
        if made is None:
            continue
        one, data, may_differ = made
        model = read(tmp_path, data)
        assert len(model.graphs) == len(model.stages) == 1, f"case {case}, seed {SEED}"
        inputs = one.inputs()
        expected = run_reference(data, inputs)["y"].astype(np.int64)
        found = run_golden(model, inputs)[0]["y"]
        assert found.dtype == one.dtype
        difference = np.abs(found.astype(np.int64) - expected)
        assert difference.max() <= int(may_differ), f"case {case}, seed {SEED}"
        values += difference.size
        apart += int(difference.sum())
    # A mean of few values is often a half exactly, which the runtime rounds to the even neighbour.
    assert apart <= (0.1 if make is pool else 0.005) * values, f"{apart} of {values} values differ, seed {SEED}"


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_quantised_by_the_runtimes_own_tool(name, unsigned, tmp_path):
    data, shape = quantised(name, SEED, unsigned=unsigned, per_channel=not unsigned)
    model = read(tmp_path, data)
    inputs = {"x": np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)}
    found, expected = run_golden(model, inputs)[0], run_reference(data, inputs)
    assert len(model.graphs) == 1
    for name, values in found.items():
        step = np.unique(np.diff(np.unique(expected[name])).round(7)).min()  # of the quantised output
        difference = np.abs(values - expected[name])
        # A step more or less in one layer is some in the layers behind it.
        assert difference.max() <= 6.01 * step
        assert difference.mean() <= 0.2 * step
        if values.ndim == 2:
            assert values.argmax() == expected[name].argmax()


@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_networks_on_the_compiled_rtl(name, tmp_path):
    data, shape = quantised(name, SEED, unsigned=True, per_channel=True)
    model, config = read(tmp_path, data), load_config("tiny")
    inputs = {"x": np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)}
    outputs, golden = run_golden(model, inputs)
    done = run_model(
        compile_model(model, config, policy("pingpong")), config, inputs, title="test", engine="rtl", golden=golden
    )
    assert done.checked is not None and done.checked.difference is None, str(done.checked)
    for port in model.outputs:
        assert np.array_equal(done.outputs[port.name], outputs[port.name])


def test_an_operator_in_the_middle_is_refused_and_can_be_left_to_the_host(tmp_path):
    rng = np.random.default_rng(SEED)
    one = One(rng, (1, 3, 6, 8))
    weights = one.q.weights("w", rng.integers(-128, 128, (4, 3, 1, 1), np.int8), 0.01)
    y = one.q.between(one.q.node("Conv", [one.x, weights], kernel_shape=[1, 1]), 0.1, 100, one.dtype)
    y = one.q.between(one.q.node("DepthToSpace", [y], blocksize=2), 0.1, 100, one.dtype)
    weights = one.q.weights("v", rng.integers(-128, 128, (5, 1, 3, 3), np.int8), 0.01)
    data = one.finish(one.q.node("Conv", [y, weights], kernel_shape=[3, 3]), (1, 5, 10, 14))
    with pytest.raises(ModelError, match=r"DepthToSpace \(node \d+, output .*--host-fallback runs it on the host$"):
        read(tmp_path, data)
    model = read(tmp_path, data, host_fallback=True)
    assert [type(stage).__name__ for stage in model.stages] == ["NpuStage", "HostStage", "NpuStage"]
    inputs = one.inputs()
    difference = run_golden(model, inputs)[0]["y"].astype(int) - run_reference(data, inputs)["y"].astype(int)
    assert np.abs(difference).max() <= 2
