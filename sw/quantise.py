"""From a float graph with weights to the quantised graph.

`calibrate` executes the float graph over images and notes the range of every tensor; `quantise` turns ranges into
scales and zero points, ties those that must be equal, and makes int8 weights, int32 biases and tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import INT32_MAX, SIGMOID_SCALE, SIGMOID_ZERO_POINT, relu_table, sigmoid_table, silu_table
from sw.float_graph import (
    FloatAddition,
    FloatArray,
    FloatConcatenation,
    FloatConvolution,
    FloatGraph,
    FloatMaxPool,
    FloatUpsample,
    FloatWeights,
    activate,
    apply,
    convolve,
)
from sw.graph import (
    Activation,
    Addition,
    Concatenation,
    Convolution,
    Graph,
    MaxPool,
    Operator,
    Padding,
    Tensor,
    Upsample,
)

TAIL = 5e-4
"""Part of a tensor's values that may lie beyond either end of its range: so few are not worth the resolution."""

_SAMPLE = 1 << 18
"""About as many values of a tensor as are looked at to find its range."""

IMAGE_QUANTISATION = (1.0 / 255.0, -128)
"""Scale and zero point of an input image in 0..1."""

SIGMOID_QUANTISATION = (SIGMOID_SCALE, SIGMOID_ZERO_POINT)

HEADROOM = 1.0 / 16.0
"""Part of a range that is added at either end, so that images that were not calibrated on seldom saturate."""


@dataclass(frozen=True)
class Range:
    """Span of a tensor's values but for the tails, always containing 0."""

    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, x: FloatArray) -> "Range":
        """Return the range of a tensor's values, a `TAIL` left off at either end."""
        sample = x.ravel()[:: max(1, x.size // _SAMPLE)]
        tail = int(TAIL * sample.size)
        ends = np.partition(sample, (tail, sample.size - 1 - tail))
        return cls(min(float(ends[tail]), 0.0), max(float(ends[sample.size - 1 - tail]), 0.0))

    def union(self, other: "Range") -> "Range":
        """Return the smallest range that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def quantisation(self) -> tuple[float, int]:
        """Return scale and zero point of int8 values that cover the range and some headroom."""
        span = max(self.high - self.low, 1e-6)
        low, high = self.low - HEADROOM * span, self.high + HEADROOM * span
        scale = float(np.float32((high - low) / 255.0))
        return scale, int(np.clip(round(-128 - low / scale), -128, 127))


def linear_name(op: FloatConvolution) -> str:
    """Return the name of a convolution's tensor before activation: the operator's own when it has no activation."""
    return op.name if op.activation == "none" else f"{op.name}.conv"


def calibrate(graph: FloatGraph, weights: Mapping[str, FloatWeights], images: Sequence[FloatArray]) -> dict[str, Range]:
    """Execute the graph over images and return the range of every tensor, those before activations included.

    Parameters
    ----------
    graph
        A network with one input.
    weights
        Of every convolution.
    images
        Float ``[h, w, channels]`` in 0..1, of the graph's input shape.
    """
    (source,) = graph.inputs
    last_uses = graph.last_uses()
    ranges: dict[str, Range] = {}

    def note(name: str, x: FloatArray) -> None:
        ranges[name] = ranges.get(name, Range()).union(Range.of(x))

    for image in images:
        values: dict[str, FloatArray] = {source: image}
        note(source, image)
        for index, op in enumerate(graph.operators):
            if isinstance(op, FloatConvolution):
                linear = convolve(values[op.inputs[0]], weights[op.name], op.stride, op.padding)
                note(linear_name(op), linear)
                values[op.name] = activate(op.activation, linear)
            else:
                values[op.name] = apply(op, [values[name] for name in op.inputs])
            note(op.name, values[op.name])
            for name in set(op.inputs):
                if last_uses[name] == index:
                    del values[name]
    return ranges


def quantise(graph: FloatGraph, weights: Mapping[str, FloatWeights], ranges: Mapping[str, Range]) -> Graph:
    """Build the quantised graph.

    Parameters
    ----------
    graph
        Structure; each input is taken to be an image in 0..1.
    weights
        Of every convolution.
    ranges
        Of every tensor, as `calibrate` returns them; they may come from another input size.

    Raises
    ------
    ValueError
        If two tensors must share a quantisation that each has fixed otherwise.
    """
    quantisations = _quantisations(graph, ranges)
    tensors: dict[str, Tensor] = {}
    operators: list[Operator] = []

    def tensor(name: str, shape: tuple[int, int, int]) -> Tensor:
        tensors[name] = Tensor(name, shape, *quantisations[name])
        return tensors[name]

    for name, shape in graph.inputs.items():
        tensor(name, shape)
    for op in graph.operators:
        match op:
            case FloatConvolution():
                linear = tensor(linear_name(op), op.shape)
                operators.append(_convolution(op, weights[op.name], tensors[op.inputs[0]].scale, linear))
                if op.activation != "none":
                    out = tensor(op.name, op.shape)
                    table = _table(op.activation, linear, out)
                    operators.append(Activation(op.name, (linear.name,), op.name, op.activation, table))
                continue
            case FloatAddition():
                operators.append(Addition(op.name, op.inputs, op.name))
            case FloatMaxPool():
                pad = Padding.all(op.padding)
                operators.append(MaxPool(op.name, op.inputs, op.name, (op.kernel, op.kernel), (1, 1), pad))
            case FloatConcatenation():
                operators.append(Concatenation(op.name, op.inputs, op.name))
            case FloatUpsample():
                operators.append(Upsample(op.name, op.inputs, op.name, op.factor))
        tensor(op.name, op.shape)
    return Graph(graph.name, tuple(graph.inputs), graph.outputs, tensors, operators)


def quantise_weights(weights: FloatArray) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise ``[cout, kh, kw, cin]`` symmetrically to -127..127 and return the scale of each output channel."""
    largest = np.abs(weights).max(axis=(1, 2, 3))
    scales = (np.where(largest > 0, largest, 1.0) / 127.0).astype(np.float32)
    scaled = np.rint(weights / scales[:, None, None, None])
    return np.clip(scaled, -127, 127).astype(np.int8), scales


def _convolution(op: FloatConvolution, weights: FloatWeights, scale_in: float, out: Tensor) -> Convolution:
    quantised, scales = quantise_weights(weights.weights)
    bias = np.rint(weights.bias.astype(np.float64) / (scale_in * scales.astype(np.float64)))
    # Half of the accumulator is left to the products; the graph's own check then proves that nothing overflows.
    bias = np.clip(bias, -(INT32_MAX // 2), INT32_MAX // 2).astype(np.int32)
    stride = (op.stride, op.stride)
    pad = Padding.all(op.padding)
    return Convolution(out.name, op.inputs, out.name, quantised, scales, bias, stride, (1, 1), pad)


def _table(kind: str, source: Tensor, out: Tensor) -> NDArray[np.int8]:
    if kind == "sigmoid":
        return sigmoid_table(*source.quantisation)
    if kind == "silu":
        return silu_table(*source.quantisation, *out.quantisation)
    return relu_table(*source.quantisation, *out.quantisation, 6.0 if kind == "relu6" else None)


def _quantisations(graph: FloatGraph, ranges: Mapping[str, Range]) -> dict[str, tuple[float, int]]:
    """Scale and zero point of every tensor; one for all tensors that are tied together, directly or through others."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    fixed: dict[str, tuple[float, int]] = dict.fromkeys(graph.inputs, IMAGE_QUANTISATION)
    for name in graph.inputs:
        root(name)
    for op in graph.operators:
        root(op.name)
        if isinstance(op, FloatConvolution):
            root(linear_name(op))
            if op.activation == "sigmoid":
                fixed[op.name] = SIGMOID_QUANTISATION
        elif not isinstance(op, FloatAddition):
            for name in op.inputs:
                parent[root(name)] = root(op.name)

    united: dict[str, Range] = {}
    for name in parent:
        united[root(name)] = united.get(root(name), Range()).union(ranges[name])
    chosen = {name: united[name].quantisation() for name in united}
    settled: dict[str, str] = {}
    for name, quantisation in fixed.items():
        other = settled.setdefault(root(name), name)
        if fixed[other] != quantisation:
            raise ValueError(f"{name} and {other} must share a quantisation, but theirs are fixed and differ")
        chosen[root(name)] = quantisation
    return {name: chosen[root(name)] for name in parent}
