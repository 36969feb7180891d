"""The float graph: structure of a network before quantisation, and its execution.

Structure and weights are kept apart, so that the operator table of a large network costs nothing.  Shapes are
``(height, width, channels)``.  An operator makes one tensor, and the tensor has the operator's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]
FloatArray = NDArray[np.float32]

_PATCH_VALUES = 1 << 23
"""Values of unfolded patches held at once, so that memory stays bounded (32 MB)."""


@dataclass(frozen=True)
class FloatConvolution:
    """Convolution, bias and activation.

    `activation` is 'silu', 'sigmoid', 'relu', 'relu6' or 'none'.  `normalised` says that a batch normalisation (two
    learnt parameters a channel, and no bias of the convolution's own) is folded into weights and bias.
    """

    name: str
    inputs: tuple[str, ...]
    shape: Shape
    kernel: int
    stride: int
    padding: int
    activation: str
    normalised: bool


@dataclass(frozen=True)
class FloatAddition:
    """Sum of two tensors."""

    name: str
    inputs: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True)
class FloatMaxPool:
    """Maximum over a square window, stride 1; padding never wins."""

    name: str
    inputs: tuple[str, ...]
    shape: Shape
    kernel: int
    padding: int


@dataclass(frozen=True)
class FloatConcatenation:
    """Inputs side by side along the channels."""

    name: str
    inputs: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True)
class FloatUpsample:
    """Nearest neighbour, `factor` times in both directions."""

    name: str
    inputs: tuple[str, ...]
    shape: Shape
    factor: int = 2


FloatOperator = FloatConvolution | FloatAddition | FloatMaxPool | FloatConcatenation | FloatUpsample


@dataclass(frozen=True, eq=False)
class FloatWeights:
    """Weights ``[cout, kh, kw, cin]`` and bias ``[cout]`` of one convolution, batch normalisation folded in."""

    weights: FloatArray
    bias: FloatArray


@dataclass(frozen=True)
class FloatGraph:
    """Operators in topological order; `outputs` are names of operators."""

    name: str
    inputs: dict[str, Shape]
    outputs: tuple[str, ...]
    operators: tuple[FloatOperator, ...]
    shapes: dict[str, Shape] = field(init=False)

    def __post_init__(self) -> None:
        shapes = dict(self.inputs)
        for op in self.operators:
            missing = [name for name in op.inputs if name not in shapes]
            if missing or op.name in shapes:
                raise ValueError(f"operator {op.name!r} comes out of order: inputs {op.inputs!r}")
            shapes[op.name] = op.shape
        object.__setattr__(self, "shapes", shapes)

    def input_channels(self, op: FloatOperator) -> int:
        """Return the channels of the first input; of a concatenation, the sum over its inputs."""
        if isinstance(op, FloatConcatenation):
            return sum(self.shapes[name][2] for name in op.inputs)
        return self.shapes[op.inputs[0]][2]

    def last_uses(self) -> dict[str, int]:
        """Return for each tensor the index of the last operator that reads it; an output is used after the end."""
        uses = {name: index for index, op in enumerate(self.operators) for name in op.inputs}
        return uses | {name: len(self.operators) for name in self.outputs}


@dataclass(frozen=True)
class TableRow:
    """One operator of an operator table; `params` counts batch normalisation before folding."""

    index: int
    name: str
    type: str
    inputs: str
    in_c: int
    in_h: int
    in_w: int
    out_c: int
    out_h: int
    out_w: int
    k: int
    s: int
    p: int
    params: int
    macs: int
    act: str


def operator_table(graph: FloatGraph) -> list[TableRow]:
    """List every operator with its shapes, parameters and multiply-accumulates."""
    rows: list[TableRow] = []
    for index, op in enumerate(graph.operators):
        cin = graph.input_channels(op)
        in_h, in_w, _ = graph.shapes[op.inputs[0]]
        out_h, out_w, out_c = op.shape
        kernel, stride, padding, params, macs, act = 0, 1, 0, 0, 0, "none"
        match op:
            case FloatConvolution():
                kind, kernel, stride, padding, act = "conv", op.kernel, op.stride, op.padding, op.activation
                weights = out_c * kernel * kernel * cin
                params = weights + out_c * (2 if op.normalised else 1)
                macs = weights * out_h * out_w
            case FloatAddition():
                kind = "add"
            case FloatMaxPool():
                kind, kernel, padding = "maxpool", op.kernel, op.padding
            case FloatConcatenation():
                kind = "concat"
            case FloatUpsample():
                kind, kernel = "upsample", op.factor
        sources = ";".join(op.inputs)
        rows.append(
            TableRow(
                index,
                op.name,
                kind,
                sources,
                cin,
                in_h,
                in_w,
                out_c,
                out_h,
                out_w,
                kernel,
                stride,
                padding,
                params,
                macs,
                act,
            )
        )
    return rows


def convolve(x: FloatArray, weights: FloatWeights, stride: int, padding: int) -> FloatArray:
    """Convolve ``[h, w, cin]`` with zero padding and add the bias, by matrix products over unfolded patches."""
    cout, kh, kw, cin = weights.weights.shape
    padded = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kh, kw), axis=(0, 1))[::stride, ::stride]
    height, width = windows.shape[:2]
    matrix = np.ascontiguousarray(weights.weights.reshape(cout, -1).T)
    out = np.empty((height, width, cout), np.float32)
    rows = max(1, _PATCH_VALUES // (width * kh * kw * cin))
    for top in range(0, height, rows):
        patches = windows[top : top + rows].transpose(0, 1, 3, 4, 2).reshape(-1, kh * kw * cin)
        np.matmul(patches, matrix, out=out[top : top + rows].reshape(-1, cout))
    out += weights.bias
    return out


def max_pool(x: FloatArray, kernel: int, padding: int) -> FloatArray:
    """Maximum over a square window with stride 1, one dimension after the other."""
    padded = np.pad(x, ((padding, padding), (padding, padding), (0, 0)), constant_values=-np.inf)
    height = padded.shape[0] - kernel + 1
    width = padded.shape[1] - kernel + 1
    down = np.maximum.reduce([padded[i : i + height] for i in range(kernel)])
    return np.maximum.reduce([down[:, i : i + width] for i in range(kernel)])


def activate(kind: str, x: FloatArray) -> FloatArray:
    """Apply an activation by its name; ValueError if there is none of that name."""
    if kind == "none":
        return x
    if kind == "relu":
        return np.maximum(x, np.float32(0))
    if kind == "relu6":
        return np.clip(x, np.float32(0), np.float32(6))
    if kind not in ("silu", "sigmoid"):
        raise ValueError(f"activation {kind!r} is not known")
    sigmoid = np.float32(1) / (np.float32(1) + np.exp(-np.clip(x, -80, 80)))
    return (x * sigmoid if kind == "silu" else sigmoid).astype(np.float32)


def apply(op: FloatOperator, sources: list[FloatArray]) -> FloatArray:
    """Execute any operator but a convolution, which needs weights: for that see `convolve` and `activate`."""
    match op:
        case FloatAddition():
            return sources[0] + sources[1]
        case FloatMaxPool():
            return max_pool(sources[0], op.kernel, op.padding)
        case FloatConcatenation():
            return np.concatenate(sources, axis=2)
        case FloatUpsample():
            return sources[0].repeat(op.factor, axis=0).repeat(op.factor, axis=1)
        case FloatConvolution():
            raise TypeError(f"{op.name}: a convolution needs weights")


def run(
    graph: FloatGraph, weights: Mapping[str, FloatWeights], inputs: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Execute the graph and return its outputs; a convolution is activated before it is handed on."""
    last_uses = graph.last_uses()
    values: dict[str, FloatArray] = dict(inputs)
    for index, op in enumerate(graph.operators):
        sources = [values[name] for name in op.inputs]
        if isinstance(op, FloatConvolution):
            linear = convolve(sources[0], weights[op.name], op.stride, op.padding)
            values[op.name] = activate(op.activation, linear)
        else:
            values[op.name] = apply(op, sources)
        for name in set(op.inputs):
            if last_uses[name] == index:
                del values[name]
    return {name: values[name] for name in graph.outputs}
