"""TFLite's operators as nodes for the NPU: which, with what limits."""

from collections.abc import Callable, Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from hw.spec.numerics import Int8Array, activation_bounds
from sw.operators import (
    MAX_AVERAGE,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    GraphError,
    MaxPool,
    Padding,
    Pair,
    Requantisation,
    Shape,
    Tensor,
    Upsample,
    window_output,
)
from sw.reader.model import ModelError
from sw.reader.nodes import Node, Pad, Pointwise, Reshape
from sw.reader.partition import Role
from sw.reader.support import LARGEST_SIDE, LARGEST_WINDOW, Support, Unsupported
from sw.reader.tflite_factors import fully_connected_factors, mean_factors
from sw.reader.tflite_file import FileOperator, FileTensor, TfliteFile
from sw.reader.tflite_runtime import tflite_runtime

_ACTIVATIONS = {
    schema.ActivationFunctionType.NONE: "none",
    schema.ActivationFunctionType.RELU: "relu",
    schema.ActivationFunctionType.RELU6: "relu6",
    schema.ActivationFunctionType.RELU_N1_TO_1: "relu_n1_to_1",
}


class Translator:
    """Makes nodes of a file's operators. Tensors are called by the names that the file gives them."""

    def __init__(self, file: TfliteFile) -> None:
        self.file = file
        self.extras: dict[str, Tensor] = {}
        self._tensors: dict[int, Tensor] = {}

    def nodes(self, op: FileOperator) -> list[Node]:
        """Nodes that do what the operator does; the last makes its output, and is called as it.

        Raises
        ------
        Unsupported
            If the NPU has no such operator, or not with these sizes, types or scales.
        """
        support = OPERATORS.get(op.kind)
        if support is None or support.translate is None:
            raise Unsupported(support.limits if support else "the NPU has no such operator")
        if len(op.outputs) != 1:
            raise Unsupported("it has several outputs")
        least = support.inputs
        if len(op.inputs) < least or -1 in op.inputs[:least]:
            raise Unsupported(f"it has fewer than {least} inputs")
        return support.translate(self, op)

    def constant(self, number: int) -> bool:
        """Whether a tensor is a constant, or absent."""
        return number < 0 or self.file.tensors[number].data is not None

    def key(self, number: int) -> str:
        """What nodes call a tensor."""
        return self.file.tensors[number].name

    def tensor(self, number: int) -> Tensor:
        """A tensor of the file as one of a graph. Raises ``Unsupported`` unless it is int8 and fits."""
        if number not in self._tensors:
            self._tensors[number] = self._convert(self.file.tensors[number])
        return self._tensors[number]

    def _convert(self, tensor: FileTensor) -> Tensor:
        what = f"tensor {tensor.name!r}"
        if tensor.data is not None:
            raise Unsupported(f"{what} is a constant")
        if tensor.dtype != "int8":
            raise Unsupported(f"{what} is {tensor.dtype}, not int8")
        if len(tensor.scales) != 1:
            raise Unsupported(f"{what} has {len(tensor.scales)} scales where one is needed")
        self.file.check_static(tensor.number)
        try:
            return Tensor(tensor.name, graph_shape(tensor), tensor.scales[0], tensor.zero_points[0])
        except GraphError as error:
            raise Unsupported(str(error)) from None

    def extra(self, name: str, shape: Shape, like: Tensor) -> str:
        """A tensor that the file does not have, quantised as another; returns its key."""
        self.extras[name] = Tensor(name, shape, *like.quantisation)
        return name

    def io(self, op: FileOperator) -> tuple[Tensor, Tensor]:
        """First input and output."""
        return self.tensor(op.inputs[0]), self.tensor(op.outputs[0])

    def integers(self, number: int, count: int) -> list[int]:
        """A constant list of so many integers."""
        tensor = self.file.tensors[number] if number >= 0 else None
        if tensor is None or tensor.data is None or tensor.data.dtype.kind != "i" or tensor.data.size != count:
            what = "an input" if tensor is None else repr(tensor.name)
            raise Unsupported(f"{what} must be {count} constant integers")
        return [int(value) for value in tensor.data.ravel()]


def graph_shape(tensor: FileTensor) -> Shape:
    """Height, width and channels: the last three sizes; what stands before them must be 1."""
    sizes = list(tensor.shape)
    while len(sizes) > 3 and sizes[0] == 1:
        sizes.pop(0)
    if len(sizes) > 3:
        raise Unsupported(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; the batch must be 1")
    height, width, channels = [1] * (3 - len(sizes)) + sizes
    if max(height, width) > LARGEST_SIDE or channels > LARGEST_SIDE:
        raise Unsupported(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; sides are at most {LARGEST_SIDE:,}")
    return height, width, channels


def clamp(op: FileOperator, output: Tensor) -> Pair:
    """Bounds of the fused activation."""
    code = op.option("fusedActivationFunction", schema.ActivationFunctionType.NONE)
    if code not in _ACTIVATIONS:
        raise Unsupported("its fused activation is none of NONE, RELU, RELU6, RELU_N1_TO_1")
    low, high = activation_bounds(_ACTIVATIONS[code], *output.quantisation)
    if not -128 <= low <= high <= 127:
        raise Unsupported(f"its fused activation leaves no value between {low} and {high}")
    return low, high


def window(
    op: FileOperator, source: Tensor, output: Tensor, kernel: Pair, stride: Pair, dilation: Pair = (1, 1)
) -> Padding:
    """Padding of a window as the file has it, SAME or VALID. Checks sizes."""
    for what, pair in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
        if min(pair) < 1 or max(pair) > LARGEST_WINDOW:
            raise Unsupported(f"its {what} is {pair[0]}x{pair[1]}; it can be 1 to {LARGEST_WINDOW}")
    pads = []
    for size, k, s, d in zip(source.shape[:2], kernel, stride, dilation, strict=True):
        needed = 0
        if op.option("padding") == schema.Padding.SAME:
            needed = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        pads.append((needed // 2, needed - needed // 2))
    (top, bottom), (left, right) = pads
    for side, (size, k, s, d, (before, after)) in enumerate(
        zip(source.shape[:2], kernel, stride, dilation, pads, strict=True)
    ):
        made = window_output(size, k, s, d, before, after)
        if made != output.shape[side] or made < 1:
            what = ("rows", "columns")[side]
            raise Unsupported(f"its window makes {made} {what}, its output has {output.shape[side]}")
    return Padding(top, bottom, left, right)


def _strides(op: FileOperator) -> tuple[Pair, Pair]:
    stride = (op.option("strideH"), op.option("strideW"))
    return stride, (op.option("dilationHFactor", 1), op.option("dilationWFactor", 1))


# ---- Convolutions ----------------------------------------------------------------------------------------------------


def _weights(t: Translator, number: int, rank: int, cout: int, dimension: int) -> tuple[Int8Array, np.ndarray]:
    """Constant int8 weights and a scale for each output channel."""
    tensor = t.file.tensors[number]
    if tensor.data is None:
        raise Unsupported(f"its weights {tensor.name!r} are no constant")
    if tensor.dtype != "int8" or tensor.data.ndim != rank:
        raise Unsupported(f"its weights {tensor.name!r} are {tensor.dtype} {list(tensor.shape)}")
    if len(tensor.scales) not in (1, cout) or (len(tensor.scales) > 1 and tensor.dimension != dimension):
        raise Unsupported(f"its weights {tensor.name!r} have {len(tensor.scales)} scales along axis {tensor.dimension}")
    if any(tensor.zero_points):
        raise Unsupported(f"its weights {tensor.name!r} have a zero point")
    scales = np.array(tensor.scales, np.float32)
    if not bool(np.all(np.isfinite(scales) & (scales > 0))):
        raise Unsupported(f"its weights {tensor.name!r} have a scale that is not positive and finite")
    return tensor.data, np.array(np.broadcast_to(scales, (cout,)))


def _bias(t: Translator, op: FileOperator, cout: int) -> np.ndarray:
    if len(op.inputs) < 3 or op.inputs[2] < 0:
        return np.zeros(cout, np.int32)
    tensor = t.file.tensors[op.inputs[2]]
    if tensor.data is None or tensor.dtype != "int32" or tensor.data.size != cout:
        raise Unsupported(f"its bias {tensor.name!r} is no constant of {cout} int32")
    return tensor.data.reshape(cout)


def _convolution(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    weights, scales = _weights(t, op.inputs[1], 4, output.channels, 0)
    cout, kh, kw, cin = weights.shape
    if cout != output.channels or source.channels % cin or cout % (source.channels // cin):
        raise Unsupported(f"its weights are {list(weights.shape)} for {source.channels} to {output.channels} channels")
    stride, dilation = _strides(op)
    padding = window(op, source, output, (kh, kw), stride, dilation)
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            weights,
            scales,
            _bias(t, op, cout),
            stride,
            dilation,
            padding,
            source.channels // cin,
            clamp(op, output),
        )
    ]


def _depthwise(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    weights, scales = _weights(t, op.inputs[1], 4, output.channels, 3)
    one, kh, kw, cout = weights.shape
    if one != 1 or cout != output.channels or cout % source.channels:
        raise Unsupported(f"its weights are {list(weights.shape)} for {source.channels} to {output.channels} channels")
    stride, dilation = _strides(op)
    padding = window(op, source, output, (kh, kw), stride, dilation)
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            np.ascontiguousarray(weights.transpose(3, 1, 2, 0)),
            scales,
            _bias(t, op, cout),
            stride,
            dilation,
            padding,
            source.channels,
            clamp(op, output),
        )
    ]


def _fully_connected(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    if op.option("weightsFormat"):
        raise Unsupported("its weights are shuffled")
    units = t.file.tensors[op.inputs[1]].shape[:1]
    weights, scales = _weights(t, op.inputs[1], 2, units[0] if units else 0, 0)
    cout, cin = weights.shape
    if source.size % cin or output.channels != cout or output.size * cin != source.size * cout:
        raise Unsupported(f"its weights are {list(weights.shape)} from {source.shape} to {output.shape}")
    bias = _bias(t, op, cout)
    nodes: list[Node] = []
    name = source.name
    if source.channels != cin:
        if source.size != cin:
            raise Unsupported(f"its weights are {list(weights.shape)}, but its input {source.shape} has other rows")
        name = t.extra(f"{output.name}/flatten", (1, 1, cin), source)
        nodes.append(Reshape(output.name, (source.name,), name))
    seen = (1, 1, cin) if nodes else source.shape
    if seen[:2] != output.shape[:2]:
        raise Unsupported(f"its input {source.shape} and output {output.shape} have different rows")
    nodes.append(
        Convolution(
            output.name,
            (name,),
            output.name,
            np.ascontiguousarray(weights.reshape(cout, 1, 1, cin)),
            scales,
            bias,
            clamp=clamp(op, output),
            requantisation=_exact_factors(source, output, weights, scales, bias, clamp(op, output)),
            single_rounding=True,
        )
    )
    return nodes


def _exact_factors(
    source: Tensor, output: Tensor, weights: Int8Array, scales: np.ndarray, bias: np.ndarray, bounds: Pair
) -> Requantisation:
    """Factors of a fully connected layer."""
    farthest = max(127 - source.zero_point, source.zero_point + 128)
    reaches = np.abs(weights.astype(np.int64)).sum(axis=1) * farthest + np.abs(bias.astype(np.int64))
    # Channels of one scale share a multiplier that suits the one that reaches farthest.
    farthest_of: dict[float, int] = {}
    for scale, reach in zip(scales.tolist(), reaches.tolist(), strict=True):
        farthest_of[scale] = max(farthest_of.get(scale, 0), reach)
    steps = max(bounds[1] - output.zero_point, output.zero_point - bounds[0])
    factors = {
        scale: fully_connected_factors(source.scale * scale / output.scale, reach, steps)
        for scale, reach in farthest_of.items()
    }
    pairs = np.array([factors[scale] for scale in scales.tolist()], np.int32).reshape(-1, 2)
    return Requantisation(pairs[:, 0], pairs[:, 1])


# ---- Pools -----------------------------------------------------------------------------------------------------------


def _pool(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    _same_quantisation(source, output)
    kernel = (op.option("filterHeight"), op.option("filterWidth"))
    stride, _ = _strides(op)
    padding = window(op, source, output, kernel, stride)
    kind = MaxPool if op.kind == "MAX_POOL_2D" else AveragePool
    if kind is AveragePool and kernel[0] * kernel[1] > MAX_AVERAGE:
        raise Unsupported(f"its window {kernel[0]}x{kernel[1]} has more than {MAX_AVERAGE} pixels")
    return [kind(output.name, (source.name,), output.name, kernel, stride, padding, clamp(op, output))]


def _mean(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    tensor = t.file.tensors[op.inputs[0]]
    axes = t.file.tensors[op.inputs[1]]
    if axes.data is None or axes.data.dtype.kind != "i":
        raise Unsupported("its axes are no constant")
    rank = len(tensor.shape)
    chosen = {int(axis) % rank if -rank <= int(axis) < rank else rank for axis in axes.data.ravel()}
    if rank != 4 or chosen != {1, 2}:
        what = f"its axes are {sorted(chosen)} of {list(tensor.shape)}"
        raise Unsupported(f"{what}; only the mean of whole images is supported")
    if output.size != source.channels:
        raise Unsupported(f"it makes {output.shape} of {source.shape}")
    count = source.height * source.width
    if max(source.height, source.width) > LARGEST_WINDOW:
        raise Unsupported(f"its image is larger than {LARGEST_WINDOW}x{LARGEST_WINDOW}")
    multiplier, shift = mean_factors(source.scale, output.scale, count)
    channels = source.channels
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            np.ones((channels, source.height, source.width, 1), np.int8),
            np.ones(channels, np.float32),
            np.zeros(channels, np.int32),
            groups=channels,
            requantisation=Requantisation(np.full(channels, multiplier, np.int32), np.full(channels, shift, np.int32)),
        )
    ]


# ---- Element by element ----------------------------------------------------------------------------------------------


def _addition(t: Translator, op: FileOperator) -> list[Node]:
    if any(map(t.constant, op.inputs)):
        return _pointwise(t, op)
    a, output = t.io(op)
    b = t.tensor(op.inputs[1])
    if a.shape != b.shape:
        raise Unsupported(f"its inputs are {a.shape} and {b.shape}; it cannot repeat one of them")
    return [Addition(output.name, (a.name, b.name), output.name, clamp(op, output))]


_KINDS = {
    "LOGISTIC": "sigmoid",
    "TANH": "tanh",
    "RELU": "relu",
    "RELU6": "relu6",
    "HARD_SWISH": "hard_swish",
}


def _pointwise(t: Translator, op: FileOperator) -> list[Node]:
    """A function of each element: what it makes of the 256 values, the runtime says itself."""
    output = t.tensor(op.outputs[0])
    variable = [number for number in op.inputs if not t.constant(number)]
    for number in variable:
        source = t.tensor(number)
        if source.shape != output.shape:
            raise Unsupported(f"its input is {source.shape}, its output {output.shape}; it cannot repeat elements")
    for number in op.inputs:
        if number >= 0 and t.constant(number) and t.file.tensors[number].size != 1:
            raise Unsupported(f"its constant {t.file.tensors[number].name!r} has more than one element")
    if not variable:
        raise Unsupported("it has no input but constants")
    distinct = list(dict.fromkeys(variable))
    shape = (1, 1, 1, 256)
    model = t.file.submodel([op.number], distinct, op.outputs, dict.fromkeys((*distinct, op.outputs[0]), shape))

    def function(values: Sequence[Int8Array]) -> Int8Array:
        given = dict(zip(variable, values, strict=True))
        try:
            (result,) = tflite_runtime().run(model, [given[number].reshape(shape) for number in distinct])
        except ModelError as error:
            raise ModelError(f"{t.file.place(op)}: {error}") from None
        if result.dtype != np.int8 or result.size != 256:
            raise ModelError(f"{t.file.place(op)} makes {result.dtype} {list(result.shape)} of 256 values")
        return result.reshape(256)

    kind = _KINDS.get(op.kind, "table")
    return [Pointwise(output.name, tuple(t.key(number) for number in variable), output.name, kind, function)]


# ---- Views and paddings ----------------------------------------------------------------------------------------------


def _same_quantisation(source: Tensor, output: Tensor) -> None:
    if source.quantisation != output.quantisation:
        raise Unsupported(f"it changes the quantisation from {source.quantisation} to {output.quantisation}")


def _view(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    _same_quantisation(source, output)
    if source.size != output.size:
        raise Unsupported(f"it makes {output.shape} of {source.shape}")
    return [Reshape(output.name, (source.name,), output.name)]


def _transpose(t: Translator, op: FileOperator) -> list[Node]:
    shape = t.file.tensors[op.inputs[0]].shape
    order = t.integers(op.inputs[1], len(shape))
    moved = [axis for axis in order if 0 <= axis < len(shape) and shape[axis] != 1]
    if moved != sorted(moved):
        raise Unsupported("it moves elements")
    return _view(t, op)


def _pad(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    _same_quantisation(source, output)
    shape = t.file.tensors[op.inputs[0]].shape
    amounts = np.array(t.integers(op.inputs[1], 2 * len(shape))).reshape(-1, 2)
    if len(shape) != 4 or amounts[[0, 3]].any() or amounts.min() < 0:
        raise Unsupported(f"it pads {amounts.tolist()}; only rows and columns of images can be padded")
    if amounts.max() > LARGEST_SIDE:
        raise Unsupported(f"it pads {amounts.tolist()}; sides are at most {LARGEST_SIDE:,}")
    value = output.zero_point
    if op.kind == "PADV2":
        constant = t.file.tensors[op.inputs[2]]
        if constant.data is None or constant.dtype != "int8" or constant.data.size != 1:
            raise Unsupported("the value that it pads with is no constant")
        value = int(constant.data.ravel()[0])
    (top, bottom), (left, right) = amounts[1:3].tolist()
    return [Pad(output.name, (source.name,), output.name, Padding(top, bottom, left, right), value)]


def _concatenation(t: Translator, op: FileOperator) -> list[Node]:
    output = t.tensor(op.outputs[0])
    clamp(op, output)
    if op.option("fusedActivationFunction"):
        raise Unsupported("it has a fused activation")
    rank = len(t.file.tensors[op.outputs[0]].shape)
    sources = [t.tensor(number) for number in op.inputs]
    for source in sources:
        _same_quantisation(source, output)
    axis = op.option("axis")
    if axis not in (-1, rank - 1):
        raise Unsupported(f"it joins along axis {axis} of {rank}; only channels can be joined")
    if any(source.shape[:2] != output.shape[:2] for source in sources):
        raise Unsupported("its inputs have different sizes")
    return [Concatenation(output.name, tuple(source.name for source in sources), output.name)]


def _resize(t: Translator, op: FileOperator) -> list[Node]:
    source, output = t.io(op)
    _same_quantisation(source, output)
    if op.option("alignCorners"):
        raise Unsupported("it aligns corners")
    if output.shape != (2 * source.height, 2 * source.width, source.channels):
        raise Unsupported(f"it makes {output.shape} of {source.shape}; only doubling is supported")
    return [Upsample(output.name, (source.name,), output.name)]


# ---- The table -------------------------------------------------------------------------------------------------------


_Translate = Callable[[Translator, FileOperator], list[Node]]

_WINDOW = f"kernel, stride and dilation 1 to {LARGEST_WINDOW}; SAME and VALID; RELU, RELU6, RELU_N1_TO_1 fused"
_TABLE = "int8 in and out; fused to the convolution before it where nothing else reads that"
_FOLDED = f"{_TABLE}; constants of one element; two inputs where both are functions of one tensor"
_ENDS = "at the ends of a network, or with --host-fallback"

OPERATORS: dict[str, Support[_Translate]] = {
    "CONV_2D": Support("array", f"{_WINDOW}; groups; weights per tensor or channel", Role.HEAVY, _convolution, 2),
    "DEPTHWISE_CONV_2D": Support(
        "array, on the diagonal", f"{_WINDOW}; any depth multiplier (above 1: as groups)", Role.HEAVY, _depthwise, 2
    ),
    "FULLY_CONNECTED": Support(
        "array", "weights per tensor or channel; takes in a RESHAPE before it", Role.HEAVY, _fully_connected, 2
    ),
    "AVERAGE_POOL_2D": Support("array, on the diagonal", f"{_WINDOW}; at most {MAX_AVERAGE} pixels", Role.LIGHT, _pool),
    "MEAN": Support("array, on the diagonal", "over all rows and columns of an image", Role.LIGHT, _mean, 2),
    "MAX_POOL_2D": Support("vector path", _WINDOW, Role.LIGHT, _pool),
    "ADD": Support(
        "vector path", "two tensors of one shape, any scales; or a constant of one element", Role.LIGHT, _addition, 2
    ),
    "MUL": Support("vector path, as a table", _FOLDED, Role.LIGHT, _pointwise, 2),
    "SUB": Support("vector path, as a table", _FOLDED, Role.LIGHT, _pointwise, 2),
    "MAXIMUM": Support("vector path, as a table", _FOLDED, Role.LIGHT, _pointwise, 2),
    "MINIMUM": Support("vector path, as a table", _FOLDED, Role.LIGHT, _pointwise, 2),
    "LOGISTIC": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "TANH": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "RELU": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "RELU6": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "RELU_N1_TO_1": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "RELU_0_TO_1": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "LEAKY_RELU": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "PRELU": Support("vector path, as a table", _FOLDED, Role.LIGHT, _pointwise, 2),
    "GELU": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "HARD_SWISH": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "ABS": Support("vector path, as a table", _TABLE, Role.LIGHT, _pointwise),
    "QUANTIZE": Support(
        "vector path, as a table", f"int8 to int8; from float32 or uint8 on the host, {_ENDS}", Role.LIGHT, _pointwise
    ),
    "PAD": Support("in the operator after it", "rows and columns of an image", Role.LIGHT, _pad, 2),
    "PADV2": Support("in the operator after it", "as PAD, with the value that stands for zero", Role.LIGHT, _pad, 3),
    "CONCATENATION": Support("by address", "along channels", Role.LIGHT, _concatenation),
    "RESIZE_NEAREST_NEIGHBOR": Support("by address", "to twice the rows and columns", Role.LIGHT, _resize),
    "RESHAPE": Support("by address", "before FULLY_CONNECTED and at the ends of a program", Role.VIEW, _view),
    "SQUEEZE": Support("by address", "as RESHAPE", Role.VIEW, _view),
    "EXPAND_DIMS": Support("by address", "as RESHAPE", Role.VIEW, _view),
    "TRANSPOSE": Support("by address", "where it moves nothing but sizes of 1", Role.VIEW, _transpose, 2),
    "DEQUANTIZE": Support("host", _ENDS, Role.BORDER),
    "SOFTMAX": Support("host", _ENDS, Role.BORDER),
    "LOG_SOFTMAX": Support("host", _ENDS, Role.BORDER),
    "ARG_MAX": Support("host", _ENDS, Role.BORDER),
    "CAST": Support("host", _ENDS, Role.BORDER),
}
"""Every operator with a place of its own; all others run on the host, behind the last convolution or with
``--host-fallback``."""
