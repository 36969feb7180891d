"""Quantisation: ranges, tied scales, and distributions that use their range."""

import numpy as np
import pytest

from hw.spec.numerics import SIGMOID_SCALE
from sim import golden
from sw.float_graph import (
    FloatConcatenation,
    FloatConvolution,
    FloatGraph,
    FloatMaxPool,
    FloatOperator,
    FloatUpsample,
    FloatWeights,
    convolve,
    run,
)
from sw.graph import Activation, Concatenation, Convolution, Graph, MaxPool, Upsample
from sw.images import BORDER, PHOTOGRAPHS, letterbox, photograph, resize
from sw.quantise import IMAGE_QUANTISATION, Range, calibrate, quantise, quantise_weights
from sw.workloads import quantised_yolov5


def conv(name: str, source: str, activation: str = "silu", channels: int = 4) -> FloatConvolution:
    return FloatConvolution(name, (source,), (8, 8, channels), 3, 1, 1, activation, True)


def weights_of(graph: FloatGraph) -> dict[str, FloatWeights]:
    rng = np.random.default_rng(1)
    made: dict[str, FloatWeights] = {}
    for op in graph.operators:
        if isinstance(op, FloatConvolution):
            cin = graph.input_channels(op)
            drawn = rng.normal(0, 1 / np.sqrt(cin), (op.shape[2], op.kernel, op.kernel, cin))
            made[op.name] = FloatWeights(drawn.astype(np.float32), rng.normal(0, 0.1, op.shape[2]).astype(np.float32))
    return made


def small(*ops: FloatOperator) -> FloatGraph:
    return FloatGraph("small", {"x": (8, 8, 3)}, (ops[-1].name,), ops)


IMAGES = [np.random.default_rng(2).random((8, 8, 3), np.float32) for _ in range(2)]


def test_a_range_contains_zero() -> None:
    assert Range.of(np.array([2.0, 3.0], np.float32)) == Range(0.0, 3.0)
    assert Range(0.0, 3.0).union(Range(-1.0, 2.0)) == Range(-1.0, 3.0)


@pytest.mark.parametrize("values", [Range(-3.0, 5.0), Range(0.0, 6.0), Range(-1.0, 0.0), Range(0.0, 0.0)])
def test_quantisation_covers_the_range_and_zero_is_exact(values: Range) -> None:
    scale, zero_point = values.quantisation()
    assert -128 <= zero_point <= 127
    assert scale * (-128 - zero_point) <= values.low
    assert scale * (127 - zero_point) >= values.high


def test_weights_keep_their_largest_value() -> None:
    weights = np.zeros((2, 1, 1, 2), np.float32)
    weights[0, 0, 0] = [-0.5, 0.25]
    quantised, scales = quantise_weights(weights)
    assert quantised[0, 0, 0].tolist() == [-127, 64]
    assert scales[0] == np.float32(0.5 / 127)
    assert scales[1] > 0  # a channel of zeros still has a scale


def test_scales_are_tied_through_chains() -> None:
    """Pool, upsampling and two concatenations tie tensors that never meet."""
    graph = small(
        conv("a", "x"),
        conv("b", "a"),
        conv("c", "a"),
        FloatMaxPool("pool", ("a",), (8, 8, 4), 3, 1),
        FloatConcatenation("left", ("pool", "b"), (8, 8, 8)),
        FloatConcatenation("right", ("b", "c"), (8, 8, 8)),
        FloatUpsample("up", ("right",), (16, 16, 8)),
    )
    weights = weights_of(graph)
    quantised = quantise(graph, weights, calibrate(graph, weights, IMAGES))
    tied = {quantised.tensors[name].quantisation for name in ("a", "b", "c", "pool", "left", "right", "up")}
    assert len(tied) == 1
    assert quantised.tensors["a.conv"].quantisation not in tied


def test_fixed_quantisations() -> None:
    graph = small(conv("head", "x", "sigmoid"))
    weights = weights_of(graph)
    quantised = quantise(graph, weights, calibrate(graph, weights, IMAGES))
    assert quantised.tensors["head"].quantisation == (SIGMOID_SCALE, -128)
    assert quantised.tensors["x"].quantisation == (float(np.float32(IMAGE_QUANTISATION[0])), -128)
    assert [type(op) for op in quantised.operators] == [Convolution, Activation]
    assert [op.output for op in quantised.operators] == ["head.conv", "head"]


def test_refuses_two_fixed_quantisations_that_are_tied() -> None:
    graph = small(conv("head", "x", "sigmoid"), FloatConcatenation("cat", ("x", "head"), (8, 8, 7)))
    weights = weights_of(graph)
    with pytest.raises(ValueError, match="head and x must share a quantisation"):
        quantise(graph, weights, calibrate(graph, weights, IMAGES))


@pytest.mark.parametrize("activation", ["none", "silu", "sigmoid", "relu", "relu6"])
def test_quantised_layer_is_near_the_float_one(activation: str) -> None:
    graph = small(conv("layer", "x", activation))
    weights = weights_of(graph)
    quantised = quantise(graph, weights, calibrate(graph, weights, IMAGES))
    exact = run(graph, weights, {"x": IMAGES[0]})["layer"]
    image = np.rint(IMAGES[0] * 255 - 128).astype(np.int8)
    out = quantised.tensors["layer"]
    got = out.scale * (golden.run(quantised, {"x": image})["layer"].astype(np.float64) - out.zero_point)
    linear = quantised.tensors["layer" if activation == "none" else "layer.conv"]
    # A step of the output, a step of the tensor before it, and the weights' own rounding.
    assert np.abs(got - exact).max() <= 1.5 * (out.scale + linear.scale) + 0.02


def test_convolution_agrees_with_its_definition() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((7, 6, 2), np.float32)
    weights = FloatWeights(rng.random((3, 3, 3, 2), np.float32), rng.random(3, np.float32))
    out = convolve(x, weights, 2, 1)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    expected = [
        [np.tensordot(weights.weights, padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3], 3) for j in range(3)]
        for i in range(4)
    ]
    assert np.allclose(out, np.array(expected) + weights.bias, atol=1e-5)


@pytest.mark.parametrize(("variant", "height", "width"), [("n", 64, 64), ("s", 256, 320)])
def test_distributions_use_their_range(variant: str, height: int, width: int) -> None:
    graph = quantised_yolov5(variant, height, width)
    values = golden.run(graph, {"images": photograph("coffee", height, width)})
    for name, value in values.items():
        assert max(np.mean(value == -128), np.mean(value == 127)) <= 0.01, name
        assert len(np.unique(value)) >= 32, name


def test_a_whole_network_keeps_its_ties_and_names() -> None:
    graph = quantised_yolov5("n", 64, 64)
    assert graph.outputs == ("model.24.m.0", "model.24.m.1", "model.24.m.2")
    assert graph.tensors["images"].shape == (64, 64, 3)
    for op in graph.operators:
        assert op.name == op.output
        if isinstance(op, MaxPool | Concatenation | Upsample):
            assert {graph.tensors[name].quantisation for name in op.inputs} == {graph.tensors[op.output].quantisation}


def test_the_same_seed_gives_the_same_network() -> None:
    first = quantised_yolov5("n", 32, 32, 5)
    quantised_yolov5.cache_clear()
    second, other = quantised_yolov5("n", 32, 32, 5), quantised_yolov5("n", 32, 32, 6)

    def stem(graph: Graph) -> bytes:
        op = graph.operators[0]
        assert isinstance(op, Convolution)
        return op.weights.tobytes() + op.bias.tobytes()

    assert stem(first) == stem(second) != stem(other)
    assert first.tensors == second.tensors


def test_cheap_calibration_gives_the_asked_size() -> None:
    graph = quantised_yolov5("n", 192, 96, calibration_size=(64, 64))
    assert graph.tensors["images"].shape == (192, 96, 3)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs(name: str) -> None:
    image = photograph(name, 96, 64)
    assert image.shape == (96, 64, 3)
    assert image.dtype == np.int8
    assert np.all(image[0] == BORDER - 128)  # none is tall enough to reach the top
    assert len(np.unique(image)) > 100


def test_refuses_a_photograph() -> None:
    with pytest.raises(ValueError, match=r"photograph must be one of astronaut, .*, not 'nobody'"):
        photograph("nobody", 32, 32)


def test_letterbox_keeps_the_aspect() -> None:
    image = np.full((10, 20, 3), 7, np.uint8)
    out = letterbox(image, 40, 40)
    assert np.all(out[10:30] == 7)
    assert np.all(out[:10] == BORDER)
    assert np.all(out[30:] == BORDER)


def test_resize_is_exact_on_a_ramp() -> None:
    ramp = np.repeat(np.arange(0, 64, 4, dtype=np.uint8)[None, :, None], 3, axis=0)
    assert resize(ramp, 3, 8)[0, :, 0].tolist() == [2, 10, 18, 26, 34, 42, 50, 58]
    assert np.array_equal(resize(ramp, 3, 16), ramp)
