"""Operators that we give ONNX's evaluator, beside ONNX Runtime."""

import os

import numpy as np
import pytest
from onnx import TensorProto, helper

from sim.testing.onnx_files import QdqBuilder, run_reference
from sw.reader.model import ModelError
from sw.reader.onnx_runtime import onnx_runtime

SEED = int(os.environ.get("RONDO_SEED", "1"))
OPSETS = (13, 17, 19, 21)


@pytest.fixture
def rng():
    print(f"RONDO_SEED={SEED}")
    return np.random.default_rng(SEED)


def both(builder, inputs, outputs):
    """What the evaluator and ONNX Runtime make of a file."""
    builder.outputs = [helper.make_empty_tensor_value_info(name) for name in outputs]
    data = builder.serialise()
    return onnx_runtime().run(data, inputs), list(run_reference(data, inputs).values())


def pool(rng):
    """A MaxPool with everything that it can have."""
    kernel = rng.integers(1, 4, 2)
    attributes = {"kernel_shape": kernel.tolist(), "strides": rng.integers(1, 4, 2).tolist()}
    way = int(rng.integers(3))
    if way == 0:
        # Where a stride is longer than the kernel, ONNX Runtime pads by negative numbers, or refuses to.
        attributes["strides"] = np.minimum(attributes["strides"], kernel).tolist()
        attributes["auto_pad"] = str(rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID")))
    else:
        # With dilation and automatic padding ONNX Runtime forgets the dilation.
        attributes["dilations"] = rng.integers(1, 3, 2).tolist()
        attributes["pads"] = np.minimum(rng.integers(0, 3, 4), np.tile(kernel - 1, 2)).tolist()
        attributes["ceil_mode"] = int(way == 2)
    return attributes


def test_maximum(rng):
    checked = 0
    for _ in range(150):
        shape = (1, int(rng.integers(1, 4)), *rng.integers(5, 11, 2).tolist())
        builder, attributes = QdqBuilder(int(rng.choice(OPSETS))), pool(rng)
        builder.float_input("x", shape)
        y = builder.node("MaxPool", ["x"], outputs=2, **attributes)
        inputs = {"x": rng.integers(-20, 20, shape).astype(np.float32)}
        (found, index), (expected, where) = both(builder, inputs, [y, f"{y}_1"])
        assert found.dtype == expected.dtype and np.array_equal(found, expected), attributes
        assert index.dtype == where.dtype and np.array_equal(index, where), attributes
        checked += found.size
    assert checked > 1000


def test_maximum_of_integers(rng):
    builder = QdqBuilder()
    builder.inputs.append(helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 3, 6, 7)))
    y = builder.node("MaxPool", ["x"], kernel_shape=[3, 2], pads=[2, 1, 2, 1], strides=[2, 1])
    (found,), (expected,) = both(builder, {"x": rng.integers(0, 256, (1, 3, 6, 7), np.uint8)}, [y])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantisation_of_anything_finite(opset, dtype, rng):
    """Halves, and numbers far beyond int32."""
    builder = QdqBuilder(opset)
    builder.float_input("x", (1, 600))
    y = builder.quantised("x", 0.5, 3, dtype)
    values = np.concatenate([np.arange(-400, 400, 2) / 8, rng.standard_normal(180) * 50, np.geomspace(1e8, 3e38, 20)])
    values[-10:] *= -1
    (found,), (expected,) = both(builder, {"x": values.astype(np.float32)[None]}, [y])
    assert found.dtype == dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("opset", OPSETS)
def test_scales_along_an_axis(opset, rng):
    builder = QdqBuilder(opset)
    builder.inputs.append(helper.make_tensor_value_info("x", TensorProto.INT8, (2, 3, 4)))
    s = builder.constant("s", np.float32([0.1, 2, 30]))
    z = builder.constant("z", np.int8([-3, 0, 100]))
    real = builder.node("DequantizeLinear", ["x", s, z], axis=1)
    s = builder.constant("s2", np.float32([3, 0.2, 0.1, 7]))
    y = builder.node("QuantizeLinear", [real, s, builder.constant("z2", np.uint8([0, 9, 128, 255]))], axis=2)
    found, expected = both(builder, {"x": rng.integers(-128, 128, (2, 3, 4), np.int8)}, [real, y])
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def test_the_type_that_an_attribute_asks_for():
    builder = QdqBuilder(21)
    builder.float_input("x", (1, 3))
    s = builder.constant("s", np.float32(0.5))
    names = [builder.node("QuantizeLinear", ["x", s]), builder.node("QuantizeLinear", ["x", s], output_dtype=3)]
    found, expected = both(builder, {"x": np.float32([[-900, 0.8, 900]])}, names)
    assert [a.dtype.name for a in found] == ["uint8", "int8"]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_we_do_not_quantise_to():
    builder = QdqBuilder(21)
    builder.float_input("x", (1, 4))
    y = builder.node("QuantizeLinear", ["x", builder.constant("s", np.float32(0.5))], output_dtype=TensorProto.INT4)
    builder.outputs = [helper.make_empty_tensor_value_info(y)]
    with pytest.raises(ModelError, match="QuantizeLinear to int4 is not supported"):
        onnx_runtime().run(builder.serialise(), {"x": np.zeros((1, 4), np.float32)})


@pytest.mark.parametrize(
    ("kind", "constants", "attributes", "text"),
    [
        ("ConvTranspose", [np.ones((1, 1, 2, 2))], {"auto_pad": "SAME_UPPER"}, "ConvTranspose with automatic padding"),
        ("ConvTranspose", [np.ones((1, 1, 2, 2))], {"auto_pad": "SAME_LOWER"}, "ConvTranspose with automatic padding"),
        ("LpNormalization", [], {"p": 1}, "LpNormalization by sums of magnitudes"),
        ("RoiAlign", [np.ones((1, 4)), np.zeros(1, np.int64)], {}, "RoiAlign before version 16"),
    ],
)
def test_what_the_evaluator_computes_wrongly_is_refused(kind, constants, attributes, text):
    builder = QdqBuilder(13)
    builder.float_input("x", (1, 1, 4, 5))
    arrays = [array.astype(np.float32) if array.dtype.kind == "f" else array for array in constants]
    names = [builder.constant(f"c{k}", array) for k, array in enumerate(arrays)]
    y = builder.node(kind, ["x", *names], **attributes)
    builder.outputs = [helper.make_empty_tensor_value_info(y)]
    with pytest.raises(ModelError, match=f"{text} is not supported$"):
        onnx_runtime().run(builder.serialise(), {"x": np.zeros((1, 1, 4, 5), np.float32)})


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 4, 5)])
def test_batch_normalisation(opset, shape, rng):
    builder = QdqBuilder(opset)
    builder.float_input("x", shape)
    numbers = [*rng.normal(size=(3, 3)), rng.uniform(0.2, 2, 3)]
    names = [builder.constant(f"n{k}", values.astype(np.float32)) for k, values in enumerate(numbers)]
    y = builder.node("BatchNormalization", ["x", *names], epsilon=0.1)
    (found,), (expected,) = both(builder, {"x": rng.normal(size=shape).astype(np.float32)}, [y])
    assert found.dtype == expected.dtype and np.allclose(found, expected, rtol=1e-5, atol=1e-5)
