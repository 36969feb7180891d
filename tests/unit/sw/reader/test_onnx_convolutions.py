"""Convolutions and what is folded into them, beside ONNX Runtime: at most one step apart."""

import os

import numpy as np
import pytest

from sim import golden
from sim.testing.onnx_files import QdqBuilder, run_reference
from sw.operators import Convolution
from sw.reader.model import ModelError, evaluate
from sw.reader.onnx import read_onnx

SEED = int(os.environ.get("RONDO_SEED", "1"))
CHANNELS = 5
SHAPE = (1, CHANNELS, 4, 6)


@pytest.fixture
def rng():
    print(f"RONDO_SEED={SEED}")
    return np.random.default_rng(SEED)


def read(tmp_path, builder):
    path = tmp_path / "network.onnx"
    path.write_bytes(builder.serialise())
    return read_onnx(path)


def refusal(tmp_path, builder):
    with pytest.raises(ModelError) as caught:
        read(tmp_path, builder)
    return str(caught.value)


def graph_of(model):
    (graph,) = model.graphs
    assert len(model.stages) == 1
    return graph


def check(model, builder, rng, share=0.02):
    """At most one step apart, and that seldom."""
    dtypes = {port.name: port for port in model.inputs}
    inputs = {name: rng.integers(-128, 128, port.shape, np.int8) for name, port in dtypes.items()}
    expected = run_reference(builder.serialise(), inputs)
    apart = values = 0
    for name, found in evaluate(model, inputs, golden.run).items():
        difference = np.abs(found.astype(int) - expected[name].astype(int))
        assert difference.max() <= 1
        assert np.unique(expected[name]).size > 3 or found.size < 20
        apart, values = apart + int(difference.sum()), values + difference.size
    assert apart <= max(share * values, 3)


def start(kind="Conv"):
    builder = QdqBuilder()
    return builder, builder.input("x", SHAPE if kind == "Conv" else (1, 12), 0.05, 3)


def linear(builder, x, rng, kind="Conv", *, low=-127, bias=True):
    shape = (CHANNELS, CHANNELS, 1, 1) if kind == "Conv" else (12, CHANNELS)
    inputs = [x, builder.weights("w", rng.integers(low, 128, shape, np.int8), 0.004)]
    if bias and kind != "MatMul":
        inputs.append(builder.constant("bias", rng.normal(size=CHANNELS).astype(np.float32)))
    return builder.node(kind, inputs)


def normalisation(builder, x, rng, **attributes):
    numbers = rng.normal(size=(3, CHANNELS)).astype(np.float32)
    constants = [*numbers, rng.uniform(0.3, 2, CHANNELS).astype(np.float32)]
    names = [builder.constant(f"n{k}", values) for k, values in enumerate(constants)]
    return builder.node("BatchNormalization", [x, *names], **attributes)


def shape_of(kind):
    return SHAPE if kind == "Conv" else (1, CHANNELS)


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_batch_normalisation_is_folded(kind, rng, tmp_path):
    builder, x = start(kind)
    y = builder.node("Relu", [normalisation(builder, linear(builder, x, rng, kind), rng, epsilon=1e-3)])
    builder.output("y", y, shape_of(kind), 0.03, -60)
    model = read(tmp_path, builder)
    assert [type(operator) for operator in graph_of(model).operators] == [Convolution]
    check(model, builder, rng)


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("constant_first", [False, True])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_is_folded(kind, constant_first, operator, rng, tmp_path):
    builder, x = start(kind)
    values = rng.uniform(0.3, 1.5, CHANNELS) * rng.choice((-1, 1), CHANNELS)
    constant = builder.constant("k", values.astype(np.float32).reshape((-1, 1, 1) if kind == "Conv" else (1, -1)))
    y = linear(builder, x, rng, kind)
    y = builder.node(operator, [constant, y] if constant_first else [y, constant])
    builder.output("y", y, shape_of(kind), 0.05, 5)
    if operator == "Div" and constant_first:
        assert "divides by it" in refusal(tmp_path, builder)
        return
    model = read(tmp_path, builder)
    assert len(graph_of(model).operators) == 1
    check(model, builder, rng)


def test_matmul_with_a_bias_of_its_own(rng, tmp_path):
    """Quantised between the two, and not."""
    builder, x = start("MatMul")
    bias = builder.weights("b", rng.integers(-128, 128, CHANNELS, np.int8), 0.01)
    y = builder.between(linear(builder, x, rng, "MatMul"), 0.06, 7)
    builder.output("y", builder.node("Add", [y, bias]), (1, CHANNELS), 0.06, 7)
    z = builder.node("MatMul", [x, builder.weights("v", rng.integers(-127, 128, (12, CHANNELS), np.int8), 0.004)])
    builder.output("z", builder.node("Add", [bias, z]), (1, CHANNELS), 0.06, 7)
    model = read(tmp_path, builder)
    assert len(graph_of(model).operators) == 3
    check(model, builder, rng)


def test_arithmetic_alone_is_a_convolution_on_the_diagonal(rng, tmp_path):
    builder, x = start()
    y = builder.between(normalisation(builder, x, rng), 0.04, -10)
    y = builder.node("Conv", [y, builder.weights("w", rng.integers(-127, 128, (3, 5, 1, 1), np.int8), 0.01)])
    builder.output("y", y, (1, 3, 4, 6), 0.2, 0)
    model = read(tmp_path, builder)
    first, _ = graph_of(model).operators
    assert isinstance(first, Convolution) and first.groups == CHANNELS
    # What is one step apart is so for the second as well.
    check(model, builder, rng, 0.1)


def test_a_factor_of_nought(rng, tmp_path):
    builder, x = start()
    y = builder.node("Mul", [linear(builder, x, rng), builder.constant("m", np.zeros((CHANNELS, 1, 1), np.float32))])
    offset = builder.constant("a", np.linspace(-3, 3, CHANNELS, dtype=np.float32).reshape(-1, 1, 1))
    builder.output("y", builder.node("Add", [y, offset]), SHAPE, 0.05, 0)
    check(read(tmp_path, builder), builder, rng)


def constant_behind(rng, operator, values, *, low=-127):
    builder, x = start()
    y = builder.node(operator, [linear(builder, x, rng, low=low), builder.constant("k", np.float32(values))])
    builder.output("y", y, SHAPE, 0.1, 0)
    return builder


def each(*values):
    return np.float32(values).reshape(-1, 1, 1)


def test_what_cannot_be_folded(rng, tmp_path):
    place = r"Mul (node 3, output 'mul_3')"
    text = refusal(tmp_path, constant_behind(rng, "Mul", np.ones(6)))
    assert f"{place}: its constant 'k' of shape [6] is none for each channel" in text
    text = refusal(tmp_path, constant_behind(rng, "Mul", np.ones((1, 5, 4, 6))))
    assert f"{place}: its constant 'k' of shape [1, 5, 4, 6] is none for each channel" in text
    text = refusal(tmp_path, constant_behind(rng, "Mul", each(1, 2, np.inf, 4, 5)))
    assert f"{place} makes numbers that are not finite" in text
    text = refusal(tmp_path, constant_behind(rng, "Div", each(1, 2, 0, 4, 5)))
    assert "makes numbers that are not finite" in text
    text = refusal(tmp_path, constant_behind(rng, "Add", each(1, 2, 1e9, 4, 5)))
    assert "its bias 'bias' does not fit int32" in text
    text = refusal(tmp_path, constant_behind(rng, "Mul", each(1e-44, 1, 1, 1, 1)))
    assert "its weights have a scale that is not positive and finite" in text


def test_weights_of_128_are_not_made(tmp_path):
    builder, x = start()
    weights = np.full((CHANNELS, CHANNELS, 1, 1), -128, np.int8)
    y = builder.node("Conv", [x, builder.weights("w", weights, 0.01)])
    builder.output("y", builder.node("Mul", [y, builder.constant("k", each(1, 2, -3, 4, 5))]), SHAPE, 0.1, 0)
    assert "a negative factor behind it would make weights of 128" in refusal(tmp_path, builder)


def test_no_batch_normalisation_in_training(rng, tmp_path):
    builder, x = start()
    y = linear(builder, x, rng)
    numbers = [builder.constant(f"n{k}", np.ones(CHANNELS, np.float32)) for k in range(4)]
    y = builder.node("BatchNormalization", [y, *numbers], outputs=3, training_mode=1)
    builder.output("y", y, SHAPE, 0.1, 0)
    assert "is in training mode" in refusal(tmp_path, builder)


@pytest.mark.parametrize(
    ("constant", "text"),
    [
        (np.zeros((4, 5, 1, 1), np.int16), "its weights 'dequantizelinear_1' are int16 [4, 5, 1, 1]"),
        (np.zeros((4, 2, 1, 1), np.int8), "ONNX refuses it|in 1 groups for 5 channels"),
    ],
)
def test_weights_that_are_refused(constant, text, tmp_path):
    builder = QdqBuilder(21)
    x = builder.input("x", SHAPE, 0.05, 3)
    y = builder.node("Conv", [x, builder.weights("w", constant, 0.01)])
    builder.output("y", y, (1, 4, 4, 6), 0.1, 0)
    assert any(part in refusal(tmp_path, builder) for part in text.split("|"))


def test_uint8_weights_around_128(rng, tmp_path):
    """The same numbers as int8; with another zero point they are no weights of ours."""
    for point, good in ((128, True), (127, False)):
        builder, x = start()
        data = builder.constant("w", rng.integers(0, 256, (CHANNELS, CHANNELS, 1, 1), np.uint8))
        scale, zero = builder.constant("s", np.float32(0.004)), builder.constant("z", np.uint8(point))
        y = builder.node("Conv", [x, builder.node("DequantizeLinear", [data, scale, zero])])
        builder.output("y", y, SHAPE, 0.05, 0)
        if good:
            check(read(tmp_path, builder), builder, rng)
        else:
            assert "its weights 'dequantizelinear_1' have a zero point" in refusal(tmp_path, builder)
