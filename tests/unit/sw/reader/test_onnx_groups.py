"""Which nodes of a QDQ file are one operator of integers, and why others are none."""

import numpy as np
import pytest

from sim.testing.onnx_files import QdqBuilder
from sw.reader.model import ModelError
from sw.reader.onnx_file import OnnxFile
from sw.reader.onnx_groups import Groups, Quantised

SHAPE = (1, 2, 3, 4)


def groups(builder):
    return Groups(OnnxFile(builder.serialise(), "test"))


def only(builder):
    """The one group; kinds of its core, its arithmetic and its clamps."""
    found = groups(builder)
    (group,) = found.groups.values()
    assert not found.reasons
    return group, [node.kind for node in group.arithmetic], [node.kind for node in group.clamps]


def start(dtype="int8"):
    builder = QdqBuilder()
    return builder, builder.input("x", SHAPE, 0.05, 3, dtype)


def linear(builder, x):
    return builder.node("Conv", [x, builder.weights("w", np.ones((2, 2, 1, 1), np.int8), 0.1)])


def channels(builder, name, *values):
    return builder.constant(name, np.float32(values or (2, 3)).reshape(2, 1, 1))


def test_integers_have_the_zero_point_of_int8():
    builder, x = start("uint8")
    builder.output("y", builder.node("Relu", [x]), SHAPE, 0.5, 200, "uint8")
    assert groups(builder).quantised == {
        "x": Quantised(float(np.float32(0.05)), -125, "uint8"),
        "y": Quantised(0.5, 72, "uint8"),
    }


def test_a_convolution_with_arithmetic_and_clamps_behind_it():
    builder, x = start()
    y = builder.node("Mul", [channels(builder, "m"), linear(builder, x)])
    y = builder.node("Add", [y, channels(builder, "a")])
    y = builder.node("Clip", [builder.node("Relu", [y]), "", builder.constant("most", np.float32(6))])
    builder.output("y", y, SHAPE, 0.1, 0)
    group, arithmetic, clamps = only(builder)
    assert group.core is not None and group.core.kind == "Conv"
    assert (arithmetic, clamps) == (["Mul", "Add"], ["Relu", "Clip"])
    assert (group.inputs, group.output) == (("x",), "y")
    # All but the node that dequantises the weights.
    assert len(group.numbers) == 7


def test_a_table_where_constants_have_one_element():
    builder, x = start()
    y = builder.node("Mul", [x, builder.constant("m", np.float32(2))])
    builder.output("y", builder.node("Relu", [y]), SHAPE, 0.1, 0)
    group, arithmetic, clamps = only(builder)
    assert group.core is None and not arithmetic and not clamps


def test_arithmetic_alone_where_they_have_more():
    builder, x = start()
    builder.output("y", builder.node("Relu", [builder.node("Mul", [x, channels(builder, "m")])]), SHAPE, 0.1, 0)
    group, arithmetic, clamps = only(builder)
    assert group.core is None and (arithmetic, clamps) == (["Mul"], ["Relu"])


def test_two_tensors_are_no_constant():
    builder, x = start()
    z = builder.input("z", SHAPE, 0.1, 0)
    builder.output("y", builder.node("Add", [x, z]), SHAPE, 0.1, 0)
    group, arithmetic, _ = only(builder)
    assert group.core is not None and group.core.kind == "Add" and group.inputs == ("x", "z") and not arithmetic


def test_no_group_where_somebody_else_reads_real_numbers():
    builder, x = start()
    real = linear(builder, x)
    builder.output("y", builder.node("Relu", [real]), SHAPE, 0.1, 0)
    builder.float_output(builder.node("Tanh", [real]), SHAPE)
    found = groups(builder)
    assert not found.groups
    assert list(found.reasons.values()) == [
        "Conv (node 2, output 'conv_2') computes real numbers that are not quantised on both sides"
    ]


def test_no_group_where_the_network_gives_real_numbers_out():
    builder, x = start()
    real = builder.node("Mul", [x, builder.constant("m", np.float32(2))])
    builder.output("y", builder.node("Tanh", [real]), SHAPE, 0.1, 0)
    builder.float_output(real, SHAPE)
    found = groups(builder)
    assert not found.groups and list(found.reasons.values()) == [f"{real!r} is an output of the network"]


def test_the_type_without_a_zero_point():
    builder = QdqBuilder(21)
    builder.float_input("x", SHAPE)
    s = builder.constant("s", np.float32(0.5))
    a = builder.node("QuantizeLinear", ["x", s])
    b = builder.node("QuantizeLinear", ["x", s], output_dtype=3)
    for name in (a, b):
        builder.float_output(builder.node("DequantizeLinear", [name, s]), SHAPE)
    found = groups(builder).quantised
    assert found[a] == Quantised(0.5, -128, "uint8") and found[b] == Quantised(0.5, 0, "int8")


def test_several_scales_or_other_types_are_told():
    builder = QdqBuilder(21)
    builder.float_input("x", SHAPE)
    s, two = builder.constant("s", np.float32(0.5)), builder.constant("two", np.float32([0.5, 1]))
    a = builder.node("QuantizeLinear", ["x", s, builder.constant("z", np.int16(0))])
    b = builder.node("QuantizeLinear", ["x", two, builder.constant("zz", np.int8([0, 0]))], axis=1)
    for name, scale, point in ((a, s, "z"), (b, two, "zz")):
        builder.float_output(builder.node("DequantizeLinear", [name, scale, point], axis=1), SHAPE)
    assert set(groups(builder).reasons.values()) == {f"{a!r} is int16 with 1 scales", f"{b!r} is int8 with 2 scales"}


def test_a_tensor_read_with_another_scale():
    builder, x = start()
    other = builder.dequantised("x", 0.07, 3)
    builder.output("y", builder.node("Relu", [other]), SHAPE, 0.1, 0)
    builder.output("z", builder.node("Relu", [x]), SHAPE, 0.1, 0)
    assert "'x' is read with another scale or zero point than it is made with" in groups(builder).reasons.values()


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_scales_are_positive_and_finite(scale):
    builder = QdqBuilder()
    builder.output("y", builder.node("Relu", [builder.input("x", SHAPE, scale, 0)]), SHAPE, 0.1, 0)
    with pytest.raises(ModelError, match=r"^DequantizeLinear .*: a scale of 'x' is not positive and finite$"):
        groups(builder)


def test_what_a_dequantised_constant_stands_for():
    builder, x = start()
    w = builder.weights("w", np.arange(4, dtype=np.int8).reshape(2, 2, 1, 1), [0.5, 2])
    builder.output("y", builder.node("Conv", [x, w]), SHAPE, 0.1, 0)
    assert groups(builder).constants[w].real().ravel().tolist() == [0, 0.5, 4, 6]
