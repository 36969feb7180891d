"""The golden model: what every tensor of a quantised graph must be, byte for byte.

It works from the graph alone and knows nothing of commands, tiles or rings.  It is checked against TFLite's reference
kernels (`sim.reference`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import Int8Array, add, apply_table, requantise
from sw.graph import (
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    MaxPool,
    Padding,
    Pair,
    Upsample,
)

_EXACT_FLOAT32 = 1 << 24
"""Float32 holds every integer up to here."""

_LARGEST_PRODUCT = 128 * 128
"""Of two int8 values."""

_BLOCK = _EXACT_FLOAT32 // _LARGEST_PRODUCT
"""Products that can be summed in float32, in any order, without rounding: 1024."""

_PATCH_VALUES = 1 << 23
"""Values of unfolded patches held at once, so that memory stays bounded (32 MB)."""


def run(graph: Graph, inputs: Mapping[str, Int8Array]) -> dict[str, Int8Array]:
    """Compute every tensor of a graph.

    Parameters
    ----------
    graph
        Any valid graph.
    inputs
        int8 ``[h, w, c]`` for each input tensor of the graph.

    Returns
    -------
    dict
        int8 ``[h, w, c]`` for every tensor by name, inputs and tensors before activations included.

    Raises
    ------
    ValueError
        If an input is missing, unknown, or of another shape or type.
    """
    if set(inputs) != set(graph.inputs):
        raise ValueError(f"inputs must be {sorted(graph.inputs)}, not {sorted(inputs)}")
    values: dict[str, Int8Array] = {}
    for name, value in inputs.items():
        if value.shape != graph.tensors[name].shape or value.dtype != np.int8:
            raise ValueError(f"input {name} must be int8 {graph.tensors[name].shape}, not {value.dtype} {value.shape}")
        values[name] = value
    for op in graph.operators:
        sources = [values[name] for name in op.inputs]
        match op:
            case Convolution():
                out = convolution(graph, op, sources[0])
            case Activation():
                out = apply_table(op.table, sources[0])
            case Addition():
                out = np.clip(add(sources[0], sources[1], graph.add_parameters(op)), *op.clamp)
            case MaxPool():
                out = np.clip(max_pool(op, sources[0]), *op.clamp)
            case AveragePool():
                out = np.clip(average_pool(op, sources[0]), *op.clamp)
            case Concatenation():
                out = np.concatenate(sources, axis=2)
            case Upsample():
                out = sources[0].repeat(op.factor, axis=0).repeat(op.factor, axis=1)
        values[op.output] = out
    return values


def accumulators(op: Convolution, x: Int8Array, zero_point: int) -> NDArray[np.int64]:
    """Return a convolution's accumulators, bias included, as int64 ``[h, w, cout]``."""
    padded = _pad(x, op.padding, zero_point)
    cout, _, _, cin = op.weights.shape
    if op.groups > 1 and cin == 1:
        sums = _depthwise(op, padded)
    else:
        per_group = cout // op.groups
        parts = [
            _dense(op, padded[:, :, g * cin : (g + 1) * cin], op.weights[g * per_group : (g + 1) * per_group])
            for g in range(op.groups)
        ]
        sums = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    # The zero point is taken out afterwards: the sum of (x - z) * w is the sum of x * w less z times the sum of w, and
    # padding, which has the value z, then counts like any other pixel.
    offset = op.bias.astype(np.int64) - zero_point * op.weights.sum(axis=(1, 2, 3), dtype=np.int64)
    return sums + offset


def _taps(
    op: Convolution | AveragePool, dilation: Pair, padded: NDArray[Any], top: int, count: int, width: int
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Each tap of a kernel, row and column, with the pixels it reads for ``count`` rows of output from ``top`` on."""
    for i in range(op.kernel[0]):
        first = top * op.stride[0] + i * dilation[0]
        rows = slice(first, first + (count - 1) * op.stride[0] + 1, op.stride[0])
        for j in range(op.kernel[1]):
            left = j * dilation[1]
            yield i, j, padded[rows, left : left + (width - 1) * op.stride[1] + 1 : op.stride[1]]


def _output_size(op: Convolution | AveragePool, dilation: Pair, padded: NDArray[Any]) -> Pair:
    height = (padded.shape[0] - dilation[0] * (op.kernel[0] - 1) - 1) // op.stride[0] + 1
    width = (padded.shape[1] - dilation[1] * (op.kernel[1] - 1) - 1) // op.stride[1] + 1
    return height, width


def _dense(op: Convolution, padded: Int8Array, weights: Int8Array) -> NDArray[np.int64]:
    """Sums of products of one group.

    They run through float32 matrix multiplication, which is exact here: terms are integers, and a block has so few of
    them that no partial sum, in whatever order, can leave the integers that float32 holds.  Blocks are summed as
    integers.
    """
    assert _BLOCK * _LARGEST_PRODUCT <= _EXACT_FLOAT32
    cout, kh, kw, cin = weights.shape
    height, width = _output_size(op, op.dilation, padded)
    depth = kh * kw * cin
    matrix = weights.reshape(cout, depth).T
    out = np.empty((height, width, cout), np.int64)
    rows = max(1, _PATCH_VALUES // (width * depth))
    for top in range(0, height, rows):
        count = min(rows, height - top)
        patches = np.empty((count, width, kh, kw, cin), np.float32)
        for i, j, pixels in _taps(op, op.dilation, padded, top, count, width):
            patches[:, :, i, j] = pixels
        unfolded = patches.reshape(count * width, depth)
        total = np.zeros((count * width, cout), np.int64)
        for k in range(0, depth, _BLOCK):
            block = unfolded[:, k : k + _BLOCK] @ matrix[k : k + _BLOCK].astype(np.float32)
            total += block.astype(np.int64)
        out[top : top + count] = total.reshape(count, width, cout)
    return out


def _depthwise(op: Convolution, padded: Int8Array) -> NDArray[np.int64]:
    """Sums of products where every group has one input channel."""
    height, width = _output_size(op, op.dilation, padded)
    cout = op.weights.shape[0]
    source = np.arange(cout) // (cout // op.groups)
    out = np.zeros((height, width, cout), np.int64)
    for i, j, pixels in _taps(op, op.dilation, padded, 0, height, width):
        out += pixels[:, :, source].astype(np.int64) * op.weights[:, i, j, 0].astype(np.int64)
    return out


def convolution(graph: Graph, op: Convolution, x: Int8Array) -> Int8Array:
    """Compute a convolution's int8 output."""
    multipliers, shifts = graph.multipliers(op)
    acc = accumulators(op, x, graph.tensors[op.inputs[0]].zero_point)
    return requantise(
        acc,
        multipliers,
        shifts,
        graph.tensors[op.output].zero_point,
        *op.clamp,
        single_rounding=op.single_rounding,
    )


def max_pool(op: MaxPool, x: Int8Array) -> Int8Array:
    """Compute a max-pool; padding has the least value, so it never wins."""
    padded = _pad(x, op.padding, -128)
    windows = np.lib.stride_tricks.sliding_window_view(padded, op.kernel, axis=(0, 1))
    return windows[:: op.stride[0], :: op.stride[1]].max(axis=(3, 4))


def average_pool(op: AveragePool, x: Int8Array) -> Int8Array:
    """Compute an average-pool: the sum over the window's pixels within the input, divided by their number."""
    ones = np.ones((*x.shape[:2], 1), np.int64)
    padding = ((op.padding.top, op.padding.bottom), (op.padding.left, op.padding.right), (0, 0))
    values, inside = np.pad(x.astype(np.int64), padding), np.pad(ones, padding)
    height, width = _output_size(op, (1, 1), values)
    total = sum(pixels for _, _, pixels in _taps(op, (1, 1), values, 0, height, width))
    count = sum(pixels for _, _, pixels in _taps(op, (1, 1), inside, 0, height, width))
    # Halves away from zero.
    magnitude = (np.abs(total) + count // 2) // count
    return np.where(total < 0, -magnitude, magnitude).astype(np.int8)


def _pad(x: Int8Array, padding: Padding, value: int) -> Int8Array:
    edges = ((padding.top, padding.bottom), (padding.left, padding.right), (0, 0))
    return np.pad(x, edges, constant_values=value)
