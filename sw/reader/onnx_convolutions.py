"""ONNX's Conv, Gemm and MatMul, and arithmetic with constants behind them or alone, as convolutions."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import Int8Array
from sw.operators import Convolution, Tensor
from sw.reader.nodes import Node
from sw.reader.onnx_file import OnnxNode
from sw.reader.onnx_groups import DequantisedConstant, Group
from sw.reader.onnx_translator import Translator
from sw.reader.onnx_window import window
from sw.reader.support import Unsupported

Reals = NDArray[np.float64]

_UNIT_WEIGHT = 127
"""Weight that stands for a factor without weights; large, so that bias steps are small."""


def convolution(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    """A Conv."""
    source = _source(t, group, node)
    weights, scales = _weights(t, node.input(1), 4, 0)
    cout, cin, kh, kw = weights.shape
    groups = int(node.attributes.get("group", 1))
    if groups < 1 or cin * groups != source.channels or cout != output.channels or cout % groups:
        raise Unsupported(f"its weights are {list(weights.shape)} in {groups} groups for {source.channels} channels")
    stride, dilation, padding = window(node, source, output, (kh, kw))
    weights, scales, bias = _scaled(t, group, node.input(2), weights, scales, source)
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            np.ascontiguousarray(weights.transpose(0, 2, 3, 1)),
            scales,
            bias,
            stride,
            dilation,
            padding,
            groups,
            t.clamp(group, output),
            single_rounding=True,
        )
    ]


def fully_connected(
    t: Translator, group: Group, node: OnnxNode, output: Tensor, inside: Collection[str] | None
) -> list[Node]:
    """A Gemm or MatMul by constant weights."""
    source = _source(t, group, node)
    attributes = node.attributes
    if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise Unsupported("it transposes its input, or scales")
    if len(t.file.shape(source.name)) != 2:
        raise Unsupported(f"its input {source.name!r} has shape {list(t.file.shape(source.name))}, not [1, c]")
    rows = bool(attributes.get("transB"))
    weights, scales = _weights(t, node.input(1), 2, 0 if rows else 1)
    weights = weights if rows else np.ascontiguousarray(weights.T)
    cout, cin = weights.shape
    if cin != source.channels or cout != output.channels:
        raise Unsupported(f"its weights are for {cin} to {cout} values, not {source.channels} to {output.channels}")
    image = t.image_behind(source.name, inside)
    if image is not None:
        height, width, channels = image
        weights = weights.reshape(cout, channels, height, width).transpose(0, 2, 3, 1).reshape(cout, cin)
    weights, scales, bias = _scaled(t, group, node.input(2), weights, scales, source)
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            np.ascontiguousarray(weights).reshape(cout, 1, 1, cin),
            scales,
            bias,
            clamp=t.clamp(group, output),
            single_rounding=True,
        )
    ]


def channelwise(t: Translator, group: Group, output: Tensor) -> list[Node]:
    """Arithmetic with a constant for each channel: a convolution of one pixel on the diagonal."""
    source = t.tensor(group.inputs[0])
    if source.shape != output.shape:
        raise Unsupported(f"its input is {source.shape}, its output {output.shape}; it cannot repeat elements")
    channels = source.channels
    weights = np.full((channels, 1, 1, 1), _UNIT_WEIGHT, np.int8)
    scales = np.full(channels, 1 / _UNIT_WEIGHT, np.float32)
    weights, scales, bias = _scaled(t, group, "", weights, scales, source)
    return [
        Convolution(
            output.name,
            (source.name,),
            output.name,
            weights,
            scales,
            bias,
            groups=channels,
            clamp=t.clamp(group, output),
            single_rounding=True,
        )
    ]


def _source(t: Translator, group: Group, node: OnnxNode) -> Tensor:
    if len(group.inputs) != 1 or t.groups.dequantised.get(node.input(0)) != group.inputs[0]:
        raise Unsupported("its weights are no constant")
    return t.tensor(group.inputs[0])


def _weights(t: Translator, name: str, rank: int, axis: int) -> tuple[Int8Array, NDArray[np.float32]]:
    """int8 weights and a scale for each output channel, which lie along ``axis``."""
    constant = t.groups.constants.get(name)
    if constant is None:
        raise Unsupported(f"its weights {name!r} are no quantised constant")
    data = constant.data
    if data.dtype.name not in ("int8", "uint8") or data.ndim != rank:
        raise Unsupported(f"its weights {name!r} are {data.dtype} {list(data.shape)}")
    middle = 128 if data.dtype == np.uint8 else 0
    if (constant.zero_points.astype(np.int64) != middle).any():
        raise Unsupported(f"its weights {name!r} have a zero point")
    if constant.scales.size > 1 and constant.axis != axis:
        raise Unsupported(f"its weights {name!r} have scales along axis {constant.axis}")
    scales = constant.scales.astype(np.float32).ravel()
    values = (data.astype(np.int16) - middle).astype(np.int8)
    return values, np.array(np.broadcast_to(scales, (data.shape[axis],)))


def _scaled(
    t: Translator, group: Group, bias: str, weights: Int8Array, scales: NDArray[np.float32], source: Tensor
) -> tuple[Int8Array, NDArray[np.float32], NDArray[np.int32]]:
    """Weights, scales and bias with the group's arithmetic folded in; output channels come first in ``weights``."""
    channels = len(scales)
    factor, offset = _arithmetic(t, group, channels)
    if group.arithmetic:
        negative = factor < 0
        if (weights[negative] == -128).any():
            raise Unsupported("a negative factor behind it would make weights of 128")
        signs = np.sign(factor).astype(np.int8).reshape(-1, *[1] * (weights.ndim - 1))
        weights = weights * signs
        with np.errstate(over="ignore", under="ignore"):
            scales = (scales * np.where(factor, np.abs(factor), 1.0)).astype(np.float32)
    if not bool(np.all(np.isfinite(scales) & (scales > 0))):
        raise Unsupported("its weights have a scale that is not positive and finite")
    real: Reals = np.zeros(channels)
    if bias:
        values = t.constant(bias).ravel()
        if values.size not in (1, channels):
            raise Unsupported(f"its bias {bias!r} has {values.size} values for {channels} channels")
        real = np.broadcast_to(values, (channels,))
    unit = source.scale * scales.astype(np.float64)
    constant = t.groups.constants.get(bias)
    if not group.arithmetic and constant is not None and constant.data.dtype == np.int32 and _same(constant, unit):
        return weights, scales, np.array(np.broadcast_to(constant.data.ravel(), (channels,)))
    with np.errstate(all="ignore"):
        steps = np.rint((real * factor + offset) / unit)
    if not bool(np.all(np.abs(steps) < 1 << 31)):
        raise Unsupported(f"its bias{f' {bias!r}' if bias else ''} does not fit int32")
    return weights, scales, steps.astype(np.int32)


def _same(constant: DequantisedConstant, unit: Reals) -> bool:
    scales = constant.scales.astype(np.float64).ravel()
    return not constant.zero_points.any() and bool(np.all(np.abs(scales / unit - 1) < 1e-5))


# ---- Arithmetic with constants ---------------------------------------------------------------------------------------


def _arithmetic(t: Translator, group: Group, channels: int) -> tuple[Reals, Reals]:
    """Factor and offset for each channel that the group's arithmetic comes to."""
    factor, offset = np.ones(channels), np.zeros(channels)
    with np.errstate(all="ignore"):
        for node in group.arithmetic:
            f, o = _step(t, node, len(t.file.shape(group.output)), channels)
            factor, offset = factor * f, offset * f + o
    if not bool(np.all(np.isfinite(factor) & np.isfinite(offset))):
        raise Unsupported(f"{t.file.place(group.arithmetic[-1])} makes numbers that are not finite")
    return factor, offset


def _step(t: Translator, node: OnnxNode, rank: int, channels: int) -> tuple[Reals, Reals]:
    if node.kind == "BatchNormalization":
        if node.attributes.get("training_mode"):
            raise Unsupported(f"{t.file.place(node)} is in training mode")
        gamma, beta, mean, variance = (_constant(t, node, name, 1, 0, channels) for name in node.inputs[1:5])
        factor = gamma / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
        return factor, beta - mean * factor
    second = t.groups.constant(node.input(1))
    value = _constant(t, node, node.input(int(second)), rank, 1, channels)
    if node.kind == "Add":
        return np.ones(channels), value
    if node.kind == "Sub":
        return (np.ones(channels), -value) if second else (-np.ones(channels), value)
    if node.kind == "Div" and not second:
        raise Unsupported(f"{t.file.place(node)} divides by it")
    return (1 / value if node.kind == "Div" else value), np.zeros(channels)


def _constant(t: Translator, node: OnnxNode, name: str, rank: int, axis: int, channels: int) -> Reals:
    """A constant that has one element, or one for each channel, which lie along ``axis``."""
    value = t.constant(name)
    shape = (1,) * (rank - value.ndim) + value.shape
    wanted = (1,) * axis + (channels,) + (1,) * (rank - axis - 1)
    if value.size != 1 and shape != wanted:
        raise Unsupported(
            f"{t.file.place(node)}: its constant {name!r} of shape {list(value.shape)} is none for each channel"
        )
    return np.array(np.broadcast_to(value.ravel(), (channels,)))
