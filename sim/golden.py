"""The golden model: what every tensor of a quantised graph must be, byte for byte.

It works from the graph alone and knows nothing of commands, tiles or rings.  It is checked against TFLite's reference
kernels (`sim.reference`).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import Int8Array, add, apply_table, requantise
from sw.graph import Activation, Addition, Concatenation, Convolution, Graph, MaxPool, Padding, Upsample

_EXACT_FLOAT32 = 1 << 24
"""Float32 holds every integer up to here."""

_LARGEST_PRODUCT = 128 * 127
"""Of an int8 value and a symmetric int8 weight."""

_BLOCK = _EXACT_FLOAT32 // _LARGEST_PRODUCT
"""Products that can be summed in float32, in any order, without rounding: 1032."""

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
                out = add(sources[0], sources[1], graph.add_parameters(op))
            case MaxPool():
                out = max_pool(op, sources[0])
            case Concatenation():
                out = np.concatenate(sources, axis=2)
            case Upsample():
                out = sources[0].repeat(op.factor, axis=0).repeat(op.factor, axis=1)
        values[op.output] = out
    return values


def accumulators(op: Convolution, x: Int8Array, zero_point: int) -> NDArray[np.int64]:
    """Return a convolution's accumulators, bias included, as int64 ``[h, w, cout]``.

    The products run through float32 matrix multiplication, which is exact here: terms are integers, and a block has so
    few of them that no partial sum, in whatever order, can leave the integers that float32 holds.  Blocks are summed as
    integers.  The zero point is taken out afterwards: the sum of ``(x - z) * w`` is the sum of ``x * w`` less ``z``
    times the sum of ``w``, and padding, which has the value ``z``, then counts like any other pixel.
    """
    assert _BLOCK * _LARGEST_PRODUCT <= _EXACT_FLOAT32
    assert int(op.weights.min()) >= -127
    cout, kh, kw, cin = op.weights.shape
    padded = _pad(x, op.padding, zero_point)
    height = (padded.shape[0] - op.dilation[0] * (kh - 1) - 1) // op.stride[0] + 1
    width = (padded.shape[1] - op.dilation[1] * (kw - 1) - 1) // op.stride[1] + 1
    depth = kh * kw * cin
    weights = op.weights.reshape(cout, depth).T
    offset = op.bias.astype(np.int64) - zero_point * weights.sum(axis=0, dtype=np.int64)
    out = np.empty((height, width, cout), np.int64)
    rows = max(1, _PATCH_VALUES // (width * depth))
    for top in range(0, height, rows):
        count = min(rows, height - top)
        patches = np.empty((count, width, kh, kw, cin), np.float32)
        for i in range(kh):
            first = top * op.stride[0] + i * op.dilation[0]
            for j in range(kw):
                left = j * op.dilation[1]
                patches[:, :, i, j] = padded[
                    first : first + (count - 1) * op.stride[0] + 1 : op.stride[0],
                    left : left + (width - 1) * op.stride[1] + 1 : op.stride[1],
                ]
        unfolded = patches.reshape(count * width, depth)
        total = np.broadcast_to(offset, (count * width, cout)).copy()
        for k in range(0, depth, _BLOCK):
            block = unfolded[:, k : k + _BLOCK] @ weights[k : k + _BLOCK].astype(np.float32)
            total += block.astype(np.int64)
        out[top : top + count] = total.reshape(count, width, cout)
    return out


def convolution(graph: Graph, op: Convolution, x: Int8Array) -> Int8Array:
    """Compute a convolution's int8 output, before activation."""
    multipliers, shifts = graph.multipliers(op)
    acc = accumulators(op, x, graph.tensors[op.inputs[0]].zero_point)
    return requantise(acc, multipliers, shifts, graph.tensors[op.output].zero_point)


def max_pool(op: MaxPool, x: Int8Array) -> Int8Array:
    """Compute a max-pool; padding has the least value, so it never wins."""
    padded = _pad(x, op.padding, -128)
    windows = np.lib.stride_tricks.sliding_window_view(padded, op.kernel, axis=(0, 1))
    return windows[:: op.stride[0], :: op.stride[1]].max(axis=(3, 4))


def _pad(x: Int8Array, padding: Padding, value: int) -> Int8Array:
    edges = ((padding.top, padding.bottom), (padding.left, padding.right), (0, 0))
    return np.pad(x, edges, constant_values=value)
