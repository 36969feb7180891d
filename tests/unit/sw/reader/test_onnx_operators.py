"""What the NPU takes of ONNX's operators, and the order of elements where images become vectors."""

import os

import numpy as np
import pytest

from sim import golden
from sim.testing.onnx_files import QdqBuilder, run_reference
from sw.operators import AveragePool, Convolution, MaxPool, Upsample
from sw.reader.model import HostStage, ModelError, NpuStage, evaluate
from sw.reader.onnx import read_onnx
from sw.reader.onnx_groups import ARITHMETIC, CORES
from sw.reader.onnx_operators import OPERATORS

SEED = int(os.environ.get("RONDO_SEED", "1"))
SHAPE = (1, 3, 4, 5)
SCALE, ZERO = 0.05, 3


@pytest.fixture
def rng():
    print(f"RONDO_SEED={SEED}")
    return np.random.default_rng(SEED)


class Net(QdqBuilder):
    """A file in the making: everything between two operators has one quantisation."""

    def __init__(self, rng, opset=17):
        super().__init__(opset)
        self.rng = rng
        self.x = self.input("x", SHAPE, SCALE, ZERO)

    def through(self, kind, inputs, scale=SCALE, zero=ZERO, **attributes):
        return self.between(self.node(kind, inputs, **attributes), scale, zero)

    def numbers(self, shape):
        return self.weights(f"w{len(self.nodes)}", self.rng.integers(-127, 128, shape, np.int8), 0.004)

    def conv(self, x, cin, cout):
        return self.through("Conv", [x, self.numbers((cout, cin, 1, 1))])

    def end(self, x, shape, scale=SCALE, zero=ZERO, name="y"):
        self.output(name, x, shape, scale, zero)

    def dense(self, x, cin, name="y"):
        self.end(self.node("Gemm", [x, self.numbers((7, cin))], transB=1), (1, 7), 0.2, 0, name)

    def read(self, tmp_path, **options):
        path = tmp_path / "network.onnx"
        path.write_bytes(self.serialise())
        return read_onnx(path, **options)

    def check(self, model, most=1, share=0.1, exact=()):
        """Beside ONNX Runtime. A step before the last operator may be more than one behind it."""
        inputs = {port.name: self.rng.integers(-128, 128, port.shape, np.int8) for port in model.inputs}
        expected = run_reference(self.serialise(), inputs)
        for name, found in evaluate(model, inputs, golden.run).items():
            difference = np.abs(found.astype(int) - expected[name].astype(int))
            assert difference.max() <= (0 if name in exact else most), name
            assert (difference > 0).sum() <= max(2, share * difference.size), name


def kinds(model):
    """Operators of the programs, in order; ``host`` for a stage of the host."""
    found = []
    for stage in model.stages:
        found += [type(o) for o in stage.graph.operators] if isinstance(stage, NpuStage) else [HostStage]
    return found


# ---- The order of elements -------------------------------------------------------------------------------------------


def test_an_image_that_is_read_as_image_and_flattened(rng, tmp_path):
    net = Net(rng)
    net.end(net.node("Conv", [net.x, net.numbers((4, 3, 1, 1))]), (1, 4, 4, 5), name="a")
    net.dense(net.through("Flatten", [net.x]), 60)
    net.check(net.read(tmp_path))


def test_a_flattened_image_that_is_an_output_too(rng, tmp_path):
    net = Net(rng)
    net.end(net.node("Flatten", [net.conv(net.x, 3, 4)]), (1, 80), name="f")
    net.dense(net.dequantised("f", SCALE, ZERO), 80)
    net.check(net.read(tmp_path), 2, 0.5)


def test_reshaped_twice(rng, tmp_path):
    net = Net(rng)
    y = net.through("Reshape", [net.conv(net.x, 3, 4), net.constant("s", np.int64([1, 8, 2, 5]))])
    net.dense(net.through("Flatten", [y]), 80)
    model = net.read(tmp_path)
    assert kinds(model) == [Convolution, Convolution]
    net.check(model, 2, 0.5)


@pytest.mark.parametrize("kind", ["Add", "Concat"])
def test_flattened_images_joined_on_the_npu_behind_the_host(kind, rng, tmp_path):
    net = Net(rng)
    flat = [net.through("Flatten", [net.conv(net.x, 3, 4)]) for _ in range(2)]
    net.dense(net.through(kind, flat, **({"axis": 1} if kind == "Concat" else {})), 160 if kind == "Concat" else 80)
    with pytest.raises(ModelError, match=r"Flatten \(node .*--host-fallback runs it on the host$"):
        net.read(tmp_path)
    model = net.read(tmp_path, host_fallback=True)
    assert HostStage in kinds(model)
    net.check(model, 3, 1)


def test_a_transposition_that_moves_only_sizes_of_one(rng, tmp_path):
    net = Net(rng)
    y = net.through("GlobalAveragePool", [net.conv(net.x, 3, 4)])
    y = net.through("Flatten", [net.through("Transpose", [y], perm=[0, 2, 3, 1])])
    net.dense(y, 4)
    model = net.read(tmp_path)
    assert HostStage not in kinds(model)
    net.check(model, 2, 0.6)


def test_a_transposition_that_moves_elements(rng, tmp_path):
    net = Net(rng)
    net.dense(net.through("Flatten", [net.through("Transpose", [net.conv(net.x, 3, 4)], perm=[0, 2, 3, 1])]), 80)
    with pytest.raises(ModelError, match=r"Transpose \(node \d+, output '.*'\): it moves elements; "):
        net.read(tmp_path)


# ---- Resize ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scales", "on_npu"), [((1, 1, 2, 2), True), ((1, 1, 2.0001, 2), False), ((1, 1, 2.1, 2.1), False)]
)
def test_only_scales_of_two_are_doubling(scales, on_npu, rng, tmp_path):
    """All of these make twice as many rows and columns, but not of the same pixels."""
    net = Net(rng)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = net.node("Resize", [net.conv(net.x, 3, 4), "", net.constant("scales", np.float32(scales))], **attributes)
    net.end(y, (1, 4, 8, 10))
    model = net.read(tmp_path)
    assert kinds(model) == [Convolution, Upsample if on_npu else HostStage]
    net.check(model)


def test_doubling_by_sizes(rng, tmp_path):
    net = Net(rng)
    y = net.conv(net.x, 3, 4)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = net.node("Resize", [y, "", "", net.constant("sizes", np.int64([1, 4, 8, 10]))], **attributes)
    net.end(y, (1, 4, 8, 10))
    model = net.read(tmp_path)
    assert kinds(model) == [Convolution, Upsample]
    net.check(model)


# ---- Pools -----------------------------------------------------------------------------------------------------------


def pooled(rng, kind="AveragePool", scale=SCALE, zero=ZERO, shape=(1, 3, 2, 2), **attributes):
    net = Net(rng)
    net.end(net.node(kind, [net.x], **attributes), shape, scale, zero)
    net.end(net.node("Conv", [net.x, net.numbers((4, 3, 1, 1))]), (1, 4, 4, 5), name="a")
    return net


@pytest.mark.parametrize("scale", [SCALE, 0.031])
@pytest.mark.parametrize("counts", [0, 1])
def test_mean_with_padding(counts, scale, rng, tmp_path):
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 0], "count_include_pad": counts}
    net = pooled(rng, scale=scale, **attributes)
    model = net.read(tmp_path)
    # Without equal scales, and with windows of several sizes, there is no one factor: the host does it.
    expected = Convolution if counts else AveragePool if scale == SCALE else HostStage
    assert expected in kinds(model)
    net.check(model, share=1)  # windows of four pixels, whose means are often halves


@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool"])
def test_factors_that_no_multiplier_holds(kind, rng, tmp_path):
    attributes = {"kernel_shape": [1, 1]} if kind == "AveragePool" else {}
    net = pooled(rng, kind, 1e-12, shape=SHAPE if attributes else (1, 3, 1, 1), **attributes)
    model = net.read(tmp_path)
    assert HostStage in kinds(model)
    net.check(model)


def test_rows_that_ceil_mode_adds(rng, tmp_path):
    net = pooled(rng, "MaxPool", shape=(1, 3, 2, 3), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
    model = net.read(tmp_path)
    assert MaxPool in kinds(model) and HostStage not in kinds(model)
    net.check(model, exact=("y",))


def test_a_dilated_maximum_is_the_hosts(rng, tmp_path):
    net = pooled(rng, "MaxPool", shape=(1, 3, 2, 3), kernel_shape=[2, 2], dilations=[2, 2])
    model = net.read(tmp_path)
    assert HostStage in kinds(model)
    net.check(model, exact=("y",))


# ---- Constants of one element ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2])
def test_bounds_of_another_size(size, rng, tmp_path):
    net = Net(rng)
    y = net.node("Conv", [net.x, net.numbers((4, 3, 1, 1))])
    net.end(net.node("Clip", [y, net.constant("low", np.zeros(size, np.float32))]), (1, 4, 4, 5))
    with pytest.raises(ModelError, match=f"'low' has {size} elements; it must have one|ONNX refuses it"):
        net.read(tmp_path)


def test_padding_with_a_value_of_no_elements(rng, tmp_path):
    net = Net(rng)
    amounts = net.constant("pads", np.int64([0, 0, 1, 1, 0, 0, 1, 1]))
    y = net.through("Pad", [net.conv(net.x, 3, 4), amounts, net.constant("value", np.zeros(0, np.float32))])
    net.end(net.node("Conv", [y, net.numbers((4, 4, 3, 3))]), (1, 4, 4, 5))
    with pytest.raises(ModelError, match=r"Pad .*: 'value' has 0 elements; it must have one; "):
        net.read(tmp_path)


def test_padding_with_a_value(rng, tmp_path):
    net = Net(rng)
    amounts = net.constant("pads", np.int64([0, 0, 1, 0, 0, 0, 0, 1]))
    y = net.through("Pad", [net.conv(net.x, 3, 4), amounts, net.constant("value", np.float32(-9))])
    net.end(net.node("MaxPool", [y], kernel_shape=[2, 2]), (1, 4, 4, 5))
    model = net.read(tmp_path)
    assert kinds(model) == [Convolution, MaxPool]
    net.check(model)


# ---- Tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [17, 21])
def test_a_table_that_saturates_beyond_int32(opset, rng, tmp_path):
    net = Net(rng, opset)
    y = net.through("Mul", [net.conv(net.x, 3, 4), net.constant("m", np.float32(1e9))])
    net.end(net.node("Exp", [net.through("Clip", [y, "", net.constant("top", np.float32(6))])]), (1, 4, 4, 5), 1e-8)
    net.check(net.read(tmp_path), 0)


def test_every_core_and_all_arithmetic_has_its_row_of_the_table():
    rows = {kind.strip() for row in OPERATORS for kind in row.replace(" by a constant for each channel", "").split(",")}
    assert rows >= CORES | set(ARITHMETIC)
