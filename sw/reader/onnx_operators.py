"""ONNX's operators, in groups that compute with integers, as nodes for the NPU: which, with what limits.

An ONNX file says what its operators do to real numbers. The NPU computes the same on integers: sums are exact, and
each result is rounded once, halves up; an addition of two tensors rounds as TFLite's. So results agree with a runtime
that computes in floats but for values that lie very near the middle between two integers, which may differ by 1.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from hw.spec.numerics import Int8Array, quantize_multiplier
from sw.operators import (
    MAX_AVERAGE,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    MaxPool,
    Padding,
    Requantisation,
    Tensor,
    Upsample,
)
from sw.reader.model import Array, ModelError
from sw.reader.nodes import Node, Pad, Pointwise, Reshape
from sw.reader.onnx_convolutions import channelwise, convolution, fully_connected
from sw.reader.onnx_file import OnnxNode
from sw.reader.onnx_groups import Group
from sw.reader.onnx_runtime import onnx_runtime
from sw.reader.onnx_translator import Translator
from sw.reader.onnx_window import ints, kernel_of, window
from sw.reader.partition import Role
from sw.reader.support import LARGEST_SIDE, LARGEST_WINDOW, Support, Unsupported

_Translate = Callable[[Translator, Group, OnnxNode, Tensor, Collection[str] | None], list[Node]]


# ---- Pools -----------------------------------------------------------------------------------------------------------


def _max_pool(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    source = t.tensor(group.inputs[0])
    _same_quantisation(source, output)
    if len(node.outputs) > 1 and node.outputs[1]:
        raise Unsupported("it makes indices")
    if node.kind == "GlobalMaxPool":
        kernel = (source.height, source.width)
    else:
        kernel = kernel_of(node)
    stride, dilation, padding = window(node, source, output, kernel, ceils=bool(node.attributes.get("ceil_mode")))
    if dilation != (1, 1):
        raise Unsupported("its window is dilated")
    return [MaxPool(output.name, (source.name,), output.name, kernel, stride, padding, t.clamp(group, output))]


def _average_pool(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    source = t.tensor(group.inputs[0])
    if node.kind == "ReduceMean":
        _check_image_axes(t, node)
    if node.kind == "AveragePool":
        kernel = kernel_of(node)
        stride, dilation, padding = window(node, source, output, kernel)
        if dilation != (1, 1):
            raise Unsupported("its window is dilated")
    else:
        kernel, stride, padding = (source.height, source.width), (1, 1), Padding()
        if max(kernel) > LARGEST_WINDOW:
            raise Unsupported(f"its image is larger than {LARGEST_WINDOW}x{LARGEST_WINDOW}")
        if output.size != source.channels:
            raise Unsupported(f"it makes {output.shape} of {source.shape}")
    clamp = t.clamp(group, output)
    if padding != Padding() and not node.attributes.get("count_include_pad"):
        _same_quantisation(source, output)
        if kernel[0] * kernel[1] > MAX_AVERAGE:
            raise Unsupported(f"its window {kernel[0]}x{kernel[1]} has more than {MAX_AVERAGE} pixels")
        return [AveragePool(output.name, (source.name,), output.name, kernel, stride, padding, clamp)]
    # A sum, whose factor is the ratio of the scales divided by the number of pixels.
    try:
        multiplier, shift = quantize_multiplier(source.scale / output.scale / (kernel[0] * kernel[1]))
    except ValueError as error:
        raise Unsupported(str(error)) from None
    channels = source.channels
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            np.ones((channels, *kernel, 1), np.int8),
            np.ones(channels, np.float32),
            np.zeros(channels, np.int32),
            stride,
            (1, 1),
            padding,
            channels,
            clamp,
            Requantisation(np.full(channels, multiplier, np.int32), np.full(channels, shift, np.int32)),
            single_rounding=True,
        )
    ]


def _check_image_axes(t: Translator, node: OnnxNode) -> None:
    axes = node.attributes.get("axes")
    if axes is None and node.input(1) in t.file.constants:
        axes = t.file.constants[node.input(1)].ravel().tolist()
    if len(t.file.shape(node.input(0))) != 4 or axes is None or {int(axis) % 4 for axis in axes} != {2, 3}:
        raise Unsupported(f"its axes are {axes}; only the mean of whole images is supported")


# ---- Element by element ----------------------------------------------------------------------------------------------


def _same_quantisation(source: Tensor, output: Tensor) -> None:
    if source.quantisation != output.quantisation:
        raise Unsupported(f"it changes the quantisation from {source.quantisation} to {output.quantisation}")


def _addition(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    if len(group.inputs) != 2:
        raise Unsupported("it adds other than two tensors")
    a, b = (t.tensor(name) for name in group.inputs)
    if a.shape != b.shape:
        raise Unsupported(f"its inputs are {a.shape} and {b.shape}; it cannot repeat one of them")
    return [Addition(output.name, (a.name, b.name), output.name, t.clamp(group, output))]


_KINDS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "HardSwish": "hard_swish"}


def _function(t: Translator, group: Group, output: Tensor) -> Pointwise:
    """A function of each element: what it makes of the 256 values, ONNX's evaluator says itself."""
    kinds = []
    for number in group.numbers:
        node = t.groups.node(number)
        kinds.append(node.kind)
        for name in node.inputs if node.kind not in ("QuantizeLinear", "DequantizeLinear") else ():
            if t.groups.constant(name) and t.constant(name).size != 1:
                raise Unsupported(f"{t.file.place(node)}: its constant {name!r} has more than one element")
    for name in group.inputs:
        if t.tensor(name).shape != output.shape:
            raise Unsupported(
                f"its input is {t.tensor(name).shape}, its output {output.shape}; it cannot repeat elements"
            )
    model = t.file.submodel(group.numbers, group.inputs, [group.output])
    dtypes = [t.groups.quantised[name].dtype for name in (*group.inputs, group.output)]
    shape = (1, 256, 1, 1)[: len(t.file.shape(group.output))]

    def function(values: Sequence[Int8Array]) -> Int8Array:
        feeds = {
            name: _typed(array, dtype).reshape(shape)
            for name, array, dtype in zip(group.inputs, values, dtypes[:-1], strict=True)
        }
        (result,) = onnx_runtime().run(model, feeds)
        if result.dtype != dtypes[-1] or result.size != 256:
            raise ModelError(f"{group.output!r}: {result.dtype} {list(result.shape)} made of 256 values")
        return (result.reshape(256) ^ 0x80).view(np.int8) if dtypes[-1] == "uint8" else result.reshape(256)

    real = [kind for kind in kinds if kind not in ("QuantizeLinear", "DequantizeLinear")]
    kind = _KINDS.get(real[0], "table") if len(real) == 1 else "silu" if sorted(real) == ["Mul", "Sigmoid"] else "table"
    return Pointwise(output.name, group.inputs, output.name, kind, function)


def _typed(values: Int8Array, dtype: str) -> Array:
    return values.view(np.uint8) ^ 0x80 if dtype == "uint8" else values


def _requantised(t: Translator, source: Tensor, output: Tensor) -> tuple[str, list[Node]]:
    """A tensor in another's quantisation, and the node that makes it if that differs."""
    if source.quantisation == output.quantisation:
        return source.name, []
    name = t.extra(f"{output.name}/{source.name}", source.shape, output)

    def function(values: Sequence[Int8Array]) -> Int8Array:
        with np.errstate(over="ignore", under="ignore"):
            real = (values[0].astype(np.float32) - np.float32(source.zero_point)) * np.float32(source.scale)
            steps = np.rint(real / np.float32(output.scale)) + output.zero_point
        return np.clip(steps, -128, 127).astype(np.int8)

    return name, [Pointwise(output.name, (source.name,), name, "table", function)]


# ---- Views and paddings ----------------------------------------------------------------------------------------------


def _view(t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None) -> list[Node]:
    source = t.tensor(group.inputs[0])
    _same_quantisation(source, output)
    if source.size != output.size:
        raise Unsupported(f"it makes {output.shape} of {source.shape}")
    if node.kind == "Transpose":
        shape = t.file.shape(group.inputs[0])
        order = ints(node, "perm", range(len(shape))[::-1])
        moved = [axis for axis in order if 0 <= axis < len(shape) and shape[axis] != 1]
        if moved != sorted(moved):
            raise Unsupported("it moves elements")
    t.note_view(group.output, group.inputs[0])
    return [Reshape(output.name, (source.name,), output.name)]


def _pad(t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None) -> list[Node]:
    source = t.tensor(group.inputs[0])
    _same_quantisation(source, output)
    if node.attributes.get("mode", b"constant") != b"constant":
        raise Unsupported("it pads with something else than a constant")
    if node.input(3):
        raise Unsupported("it names axes")
    amounts = t.constant(node.input(1)).astype(np.int64).ravel().tolist()
    if len(amounts) != 8 or min(amounts) < 0 or max(amounts) > LARGEST_SIDE or any(amounts[i] for i in (0, 1, 4, 5)):
        raise Unsupported(f"it pads {amounts}; only rows and columns of images can be padded")
    value = 0.0
    if node.input(2):
        value = t.scalar(node.input(2))
    steps = np.clip(np.rint(value / output.scale) + output.zero_point, -128, 127)
    if np.isnan(steps):
        raise Unsupported("it pads with what is no number")
    padding = Padding(amounts[2], amounts[6], amounts[3], amounts[7])
    return [Pad(output.name, (source.name,), output.name, padding, int(steps))]


def _concatenation(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    rank = len(t.file.shape(group.output))
    if node.attributes.get("axis") not in (1, 1 - rank):
        raise Unsupported(f"it joins along axis {node.attributes.get('axis')}; only channels can be joined")
    if len(group.inputs) != len([name for name in node.inputs if name]):
        raise Unsupported("one of its inputs is a constant")
    nodes: list[Node] = []
    names = []
    for name in group.inputs:
        source = t.tensor(name)
        if source.shape[:2] != output.shape[:2]:
            raise Unsupported("its inputs have different sizes")
        key, more = _requantised(t, source, output)
        nodes += [n for n in more if n.output not in {other.output for other in nodes}]
        names.append(key)
    return [*nodes, Concatenation(output.name, tuple(names), output.name)]


def _resize(t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None) -> list[Node]:
    source = t.tensor(group.inputs[0])
    if node.attributes.get("mode", b"nearest") != b"nearest":
        raise Unsupported("it interpolates")
    if output.shape != (2 * source.height, 2 * source.width, source.channels):
        raise Unsupported(f"it makes {output.shape} of {source.shape}; only doubling is supported")
    scales = t.constant(node.input(2)).ravel().tolist() if node.input(2) else []
    if not _repeats(node) or any(scale not in (1.0, 2.0) for scale in scales):
        raise Unsupported(
            f"its coordinates do not repeat every pixel twice{f'; it scales by {scales}' if scales else ''}"
        )
    name, nodes = _requantised(t, source, output)
    return [*nodes, Upsample(output.name, (name,), output.name)]


def _repeats(node: OnnxNode) -> bool:
    """Whether output pixel i is input pixel i // 2."""
    if node.kind == "Upsample":
        return True
    transformation = node.attributes.get("coordinate_transformation_mode", b"half_pixel")
    nearest = node.attributes.get("nearest_mode", b"round_prefer_floor")
    position = np.arange(16)
    if transformation == b"asymmetric":
        original = position / 2
    elif transformation in (b"half_pixel", b"pytorch_half_pixel", b"half_pixel_symmetric"):
        original = (position + 0.5) / 2 - 0.5
    else:
        return False
    rounded = {
        b"floor": np.floor(original),
        b"ceil": np.ceil(original),
        b"round_prefer_floor": np.ceil(original - 0.5),
        b"round_prefer_ceil": np.floor(original + 0.5),
    }.get(nearest)
    return rounded is not None and bool((rounded.clip(0) == position // 2).all())


# ---- The table -------------------------------------------------------------------------------------------------------

_WINDOW = f"kernel, stride and dilation 1 to {LARGEST_WINDOW}; any padding; Relu and Clip behind it"
_TABLE = "in any number and order between one tensor and one quantisation; constants of one element"
_CHANNELS = "not Div of a constant; Relu and Clip behind it"
_ENDS = "at the ends of a network, or with --host-fallback"

OPERATORS: dict[str, Support[_Translate]] = {
    "Conv": Support(
        "array; on the diagonal where group is the number of channels",
        f"{_WINDOW}; groups; weights int8 per tensor or channel without zero point",
        Role.HEAVY,
        convolution,
    ),
    "Gemm": Support("array", "of [1, c]; weights as Conv's; takes in a Flatten", Role.HEAVY, fully_connected),
    "MatMul": Support("array", "as Gemm, by a constant", Role.HEAVY, fully_connected),
    "BatchNormalization": Support(
        "in the Conv, Gemm or MatMul before it; else array, on the diagonal", _CHANNELS, Role.LIGHT
    ),
    "Add, Sub, Mul, Div by a constant for each channel": Support("as BatchNormalization", _CHANNELS, Role.LIGHT),
    "AveragePool": Support(
        "array, on the diagonal",
        f"{_WINDOW}; where padding does not count: at most {MAX_AVERAGE} pixels, equal scales",
        Role.LIGHT,
        _average_pool,
    ),
    "GlobalAveragePool": Support("array, on the diagonal", "any scales", Role.LIGHT, _average_pool),
    "ReduceMean": Support("array, on the diagonal", "over all rows and columns of an image", Role.LIGHT, _average_pool),
    "MaxPool": Support("vector path", f"{_WINDOW}; equal scales; no dilation", Role.LIGHT, _max_pool),
    "GlobalMaxPool": Support("vector path", "equal scales", Role.LIGHT, _max_pool),
    "Add": Support("vector path", "two tensors of one shape; Relu and Clip behind it", Role.LIGHT, _addition),
    "Abs, Add, Clip, Div, Elu, Erf, Exp, Gelu, HardSigmoid, HardSwish, LeakyRelu, Max, Min, Mul, PRelu, Pow, Relu, "
    "Sigmoid, Sub, Tanh and their like": Support("vector path, as a table", _TABLE, Role.LIGHT),
    "Pad": Support("in the operator after it", "constant, rows and columns of an image", Role.LIGHT, _pad),
    "Concat": Support("by address", "along channels; a table for inputs of other scales", Role.LIGHT, _concatenation),
    "Resize": Support("by address", "nearest, to twice the rows and columns", Role.LIGHT, _resize),
    "Upsample": Support("by address", "as Resize", Role.LIGHT, _resize),
    "Reshape": Support("by address", "before Gemm and at the ends of a program", Role.VIEW, _view),
    "Flatten": Support("by address", "as Reshape", Role.VIEW, _view),
    "Squeeze": Support("by address", "as Reshape", Role.VIEW, _view),
    "Unsqueeze": Support("by address", "as Reshape", Role.VIEW, _view),
    "Transpose": Support("by address", "where it moves nothing but sizes of 1", Role.VIEW, _view),
    "QuantizeLinear, DequantizeLinear": Support(
        "part of the operators between them", f"alone: host, {_ENDS}", Role.BORDER
    ),
    "Softmax": Support("host", _ENDS, Role.BORDER),
    "ArgMax": Support("host", _ENDS, Role.BORDER),
}
"""Every operator with a place of its own; all others run on the host, behind the last convolution or with
``--host-fallback``."""


def role(group: Group) -> Role:
    """What a group is on the NPU."""
    return OPERATORS[group.core.kind].role if group.core is not None else Role.LIGHT


def nodes_of(t: Translator, group: Group, inside: Collection[str] | None = None) -> list[Node]:
    """Nodes that do what a group does; the last makes its output, and is called as it.

    ``inside``: outputs of the groups that are in the same program, by default all. A flattened image that the program
    has made and flattened is in the order of ``[h, w, c]``; one that came in is in that of ``[c, h, w]``, as in the
    file. That decides the order of the weights behind it.

    Raises
    ------
    Unsupported
        If the NPU cannot run it, or not with these sizes, types or scales.
    """
    output = t.tensor(group.output)
    for name in group.inputs:
        t.tensor(name)
    if group.core is None:
        return channelwise(t, group, output) if group.arithmetic else [_function(t, group, output)]
    support = OPERATORS[group.core.kind]
    assert support.translate is not None
    nodes = support.translate(t, group, group.core, output, inside)
    if group.clamps and not isinstance(nodes[-1], Convolution | Addition | MaxPool | AveragePool):
        raise Unsupported(f"a {group.clamps[0].kind} behind a {group.core.kind} is not quantised between them")
    return nodes
