"""Layers from which networks are built as TFLite files, quantised as a converter does it.

A network is a function of a `Layers`.  `quantised` calls it twice: once for a float32 file, whose run on some inputs
gives the range of every tensor, and once for the int8 file with the scales that follow.  As in the converter of
TensorFlow, operators that only move values have the same scale before and after, and where a scale is fixed by the
operator (LOGISTIC) a QUANTIZE stands in between.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.testing.tflite_files import Array, FileBuilder, dtype_of, run_reference, unpack

Pair = tuple[int, int]
Quantisation = tuple[float, int]

_FIXED: dict[str, Quantisation] = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
    "L2_NORMALIZATION": (1 / 128, 0),
}
"""Outputs whose quantisation the operator dictates."""


@dataclass(frozen=True)
class Value:
    """A tensor of the file in the making."""

    number: int
    name: str
    shape: tuple[int, ...]


class Layers:
    """Appends layers to a file: float32 without a plan, int8 with one.

    Weights depend on the seed and on the layer's name, so that both files have the same.  Every method returns its
    output, named after the operator and its place in the file unless a name is given.
    """

    def __init__(self, name: str, seed: int, plan: dict[str, Quantisation] | None = None) -> None:
        self.file = FileBuilder(name)
        self.seed = seed
        self.plan = plan
        self.fixed: dict[str, Quantisation] = {}
        self._leader: dict[str, str] = {}
        self._count = 0

    # inputs and outputs

    def input(self, name: str, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: str = "int8") -> Value:
        """An input with values in low..high; of another type than int8 it goes through QUANTIZE first."""
        scale = float(np.float32((high - low) / 255))
        self.fixed[name] = quantisation = (scale, round(-128 - low / scale))
        shape = tuple(shape)
        if self.plan is None:
            return Value(self.file.input(name, shape, "float32"), name, shape)
        if dtype == "int8":
            return Value(self.file.input(name, shape, "int8", *quantisation), name, shape)
        outer = f"{name}/{dtype}"
        if dtype == "uint8":
            number = self.file.input(outer, shape, "uint8", scale, quantisation[1] + 128)
        else:
            number = self.file.input(outer, shape, dtype)
        inner = self.file.tensor(name, shape, "int8", *quantisation)
        self.file.operator("QUANTIZE", [number], [inner])
        return Value(inner, name, shape)

    def output(self, x: Value, dtype: str = "int8") -> None:
        """Make `x` an output; of another type than int8 it goes through QUANTIZE or DEQUANTIZE."""
        if self.plan is None or dtype == "int8":
            self.file.output(x.number)
            return
        scale, zero_point = self._quantisation(x.name)
        if dtype == "uint8":
            number = self.file.tensor(f"{x.name}/uint8", x.shape, "uint8", scale, zero_point + 128)
        else:
            number = self.file.tensor(f"{x.name}/{dtype}", x.shape, dtype)
        self.file.operator("QUANTIZE" if dtype == "uint8" else "DEQUANTIZE", [x.number], [number])
        self.file.output(number)

    # layers with weights

    def conv(
        self,
        x: Value,
        filters: int,
        kernel: int | Pair = 1,
        stride: int | Pair = 1,
        padding: str = "SAME",
        activation: str = "NONE",
        *,
        dilation: int = 1,
        groups: int = 1,
        gain: float = 2.0,
        name: str = "",
    ) -> Value:
        """CONV_2D with weights per channel; `gain` is the variance of the weights times the fan-in."""
        kernel, stride = _pair(kernel), _pair(stride)
        name = name or self._name("conv")
        size = _size(x.shape, kernel, stride, padding, dilation)
        weights = self._weights(f"{name}/w", (filters, *kernel, x.shape[3] // groups), gain)
        output = self._tensor(name, (1, *size, filters))
        self.file.operator(
            "CONV_2D",
            [x.number, *self._parameters(name, x, weights, 0, per_channel=True)],
            [output.number],
            {
                **_window(stride, padding, activation),
                "dilation_h_factor": dilation,
                "dilation_w_factor": dilation,
            },
        )
        return output

    def depthwise(
        self,
        x: Value,
        kernel: int | Pair = 3,
        stride: int | Pair = 1,
        padding: str = "SAME",
        activation: str = "NONE",
        *,
        multiplier: int = 1,
        gain: float = 2.0,
        name: str = "",
    ) -> Value:
        """DEPTHWISE_CONV_2D with weights per channel."""
        kernel, stride = _pair(kernel), _pair(stride)
        name = name or self._name("depthwise")
        size = _size(x.shape, kernel, stride, padding)
        channels = x.shape[3] * multiplier
        weights = self._weights(f"{name}/w", (channels, *kernel, 1), gain)
        output = self._tensor(name, (1, *size, channels))
        self.file.operator(
            "DEPTHWISE_CONV_2D",
            [x.number, *self._parameters(name, x, weights.transpose(3, 1, 2, 0), 3, per_channel=True)],
            [output.number],
            {**_window(stride, padding, activation), "depth_multiplier": multiplier},
        )
        return output

    def dense(
        self,
        x: Value,
        units: int,
        activation: str = "NONE",
        *,
        per_channel: bool = False,
        gain: float = 2.0,
        name: str = "",
    ) -> Value:
        """FULLY_CONNECTED on ``[1, n]``."""
        name = name or self._name("dense")
        weights = self._weights(f"{name}/w", (units, int(np.prod(x.shape))), gain)
        output = self._tensor(name, (1, units))
        self.file.operator(
            "FULLY_CONNECTED",
            [x.number, *self._parameters(name, x, weights, 0, per_channel=per_channel)],
            [output.number],
            {"fused_activation_function": activation},
        )
        return output

    def transpose_conv(self, x: Value, filters: int, kernel: int, stride: int, name: str = "") -> Value:
        """TRANSPOSE_CONV with SAME padding: `stride` times the size."""
        name = name or self._name("transpose_conv")
        weights = self._weights(f"{name}/w", (filters, kernel, kernel, x.shape[3]), 2.0 * stride)
        shape = (1, x.shape[1] * stride, x.shape[2] * stride, filters)
        size = self.file.constant(f"{name}/shape", list(shape))
        w, bias = self._parameters(name, x, weights, 0, per_channel=True)
        output = self._tensor(name, shape)
        options = _window((stride, stride), "SAME", "NONE")
        self.file.operator("TRANSPOSE_CONV", [size, w, x.number, bias], [output.number], options)
        return output

    # layers without weights

    def binary(self, kind: str, x: Value, y: Value | float | Sequence[Any], activation: str = "NONE") -> Value:
        """ADD, SUB or MUL with broadcast, also with a constant."""
        name = self._name(kind.lower())
        if not isinstance(y, Value):
            y = self._constant(f"{name}/constant", np.asarray(y, np.float32))
        output = self._tensor(name, np.broadcast_shapes(x.shape, y.shape))
        self.file.operator(kind, [x.number, y.number], [output.number], {"fused_activation_function": activation})
        return output

    def unary(self, kind: str, x: Value) -> Value:
        """An elementwise operator without options: LOGISTIC, RELU6, HARD_SWISH and such."""
        name = self._name(kind.lower())
        output = self._tensor(name, x.shape, _FIXED.get(kind))
        self.file.operator(kind, [x.number], [output.number])
        return output

    def softmax(self, x: Value) -> Value:
        """SOFTMAX over the last axis."""
        output = self._tensor(self._name("softmax"), x.shape, _FIXED["SOFTMAX"])
        self.file.operator("SOFTMAX", [x.number], [output.number], {"beta": 1.0})
        return output

    def pool(self, kind: str, x: Value, kernel: int | Pair, stride: int | Pair, padding: str = "VALID") -> Value:
        """AVERAGE_POOL_2D or MAX_POOL_2D."""
        kernel, stride = _pair(kernel), _pair(stride)
        shape = (1, *_size(x.shape, kernel, stride, padding), x.shape[3])
        options = {**_window(stride, padding, "NONE"), "filter_height": kernel[0], "filter_width": kernel[1]}
        return self._moved(kind, [x], shape, options)

    def mean(self, x: Value, *, keep_dims: bool = False) -> Value:
        """MEAN over height and width, with a scale of its own."""
        name = self._name("mean")
        axes = self.file.constant(f"{name}/axes", [1, 2])
        output = self._tensor(name, (1, 1, 1, x.shape[3]) if keep_dims else (1, x.shape[3]))
        self.file.operator("MEAN", [x.number, axes], [output.number], {"keep_dims": keep_dims})
        return output

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """RESHAPE, with the shape as an input and as an option."""
        return self._moved("RESHAPE", [x], shape, {"new_shape": list(shape)}, list(shape))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """TRANSPOSE."""
        return self._moved("TRANSPOSE", [x], [x.shape[axis] for axis in order], {}, list(order))

    def pad(self, x: Value, edges: Sequence[Pair]) -> Value:
        """PAD with zeros; `edges` has a pair for every axis."""
        shape = [size + sum(edge) for size, edge in zip(x.shape, edges, strict=True)]
        return self._moved("PAD", [x], shape, {}, [list(edge) for edge in edges])

    def resize(self, kind: str, x: Value, factor: int) -> Value:
        """RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR, with half-pixel centres."""
        height, width = x.shape[1] * factor, x.shape[2] * factor
        shape = (1, height, width, x.shape[3])
        return self._moved(kind, [x], shape, {"half_pixel_centers": True}, [height, width])

    def slice_last(self, x: Value, begin: int, end: int) -> Value:
        """STRIDED_SLICE of the last axis, as ``x[..., begin:end]`` becomes it."""
        ellipsis = (1 << (len(x.shape) - 1)) - 1  # begin and end are ignored on all axes but the last
        options = {"begin_mask": ellipsis, "end_mask": ellipsis}
        begins, ends = [0] * (len(x.shape) - 1) + [begin], [0] * (len(x.shape) - 1) + [end]
        shape = (*x.shape[:-1], end - begin)
        return self._moved("STRIDED_SLICE", [x], shape, options, begins, ends, [1] * len(x.shape))

    def split_last(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """SPLIT_V of the last axis."""
        name = self._name("split_v")
        outputs = [self._tensor(f"{name}/{i}", (*x.shape[:-1], size)) for i, size in enumerate(sizes)]
        self._same([x, *outputs])
        constants = [self.file.constant(f"{name}/sizes", list(sizes)), self.file.constant(f"{name}/axis", -1)]
        numbers = [output.number for output in outputs]
        self.file.operator("SPLIT_V", [x.number, *constants], numbers, {"num_splits": len(sizes)})
        return outputs

    def concat(self, values: Sequence[Value], axis: int = 3) -> Value:
        """CONCATENATION."""
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        return self._moved("CONCATENATION", values, shape, {"axis": axis})

    # internals

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _quantisation(self, name: str) -> Quantisation:
        assert self.plan is not None
        return self.fixed.get(name) or self.plan[name]

    def _tensor(self, name: str, shape: Sequence[int], fixed: Quantisation | None = None) -> Value:
        shape = tuple(shape)
        if fixed is not None:
            self.fixed[name] = fixed
        if self.plan is None:
            return Value(self.file.tensor(name, shape, "float32"), name, shape)
        return Value(self.file.tensor(name, shape, "int8", *self._quantisation(name)), name, shape)

    def _moved(
        self, kind: str, values: Sequence[Value], shape: Sequence[int], options: dict[str, Any], *constants: Any
    ) -> Value:
        """An operator whose output has the scale of its inputs; inputs of another scale are quantised anew."""
        name = self._name(kind.lower())
        inherited = self.fixed.get(values[0].name) if len(values) == 1 else None
        output = self._tensor(name, shape, inherited)
        self._same([*values, output])
        numbers = [self._requantised(value, output).number for value in values]
        numbers += [self.file.constant(f"{name}/{i}", constant) for i, constant in enumerate(constants)]
        self.file.operator(kind, numbers, [output.number], options)
        return output

    def _requantised(self, value: Value, wanted: Value) -> Value:
        if self.plan is None or self._quantisation(value.name) == self._quantisation(wanted.name):
            return value
        name = f"{wanted.name}/{value.name}"
        number = self.file.tensor(name, value.shape, "int8", *self._quantisation(wanted.name))
        self.file.operator("QUANTIZE", [value.number], [number])
        return Value(number, name, value.shape)

    def _same(self, values: Sequence[Value]) -> None:
        """Ask for one scale for all, except those whose scale is fixed."""
        names = [value.name for value in values if value.name not in self.fixed]
        for name in names[1:]:
            self._leader[self.leader(name)] = self.leader(names[0])

    def leader(self, name: str) -> str:
        """The tensor that stands for all that share the scale of this one."""
        while name in self._leader and self._leader[name] != name:
            name = self._leader[name]
        return name

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def _weights(self, name: str, shape: Sequence[int], gain: float) -> Array:
        """Normal weights, output channels first, whose channels differ in size as trained ones do."""
        rng = self._rng(name)
        deviation = np.sqrt(gain / np.prod(shape[1:]))
        spread = np.exp(rng.normal(0, 0.3, (shape[0], *[1] * (len(shape) - 1))))
        return (rng.normal(0, deviation, shape) * spread).astype(np.float32)

    def _parameters(self, name: str, x: Value, weights: Array, axis: int, *, per_channel: bool) -> list[int]:
        """The constants of weights and bias."""
        count = weights.shape[axis]
        bias = self._rng(f"{name}/b").normal(0, 0.1, count).astype(np.float32)
        if self.plan is None:
            return [self.file.constant(f"{name}/w", weights), self.file.constant(f"{name}/b", bias)]
        others = tuple(i for i in range(weights.ndim) if i != axis) if per_channel else None
        scales = np.atleast_1d(np.abs(weights).max(axis=others) / 127).astype(np.float32)
        spread = scales.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])
        data = np.clip(np.rint(weights / spread), -127, 127).astype(np.int8)
        bias_scales = np.float32(self._quantisation(x.name)[0]) * scales
        bias = np.clip(np.rint(bias / bias_scales), -(2**30), 2**30).astype(np.int32)
        zeros = np.zeros(len(scales), np.int64)
        return [
            self.file.constant(f"{name}/w", data, scales, zeros, axis if per_channel else 0),
            self.file.constant(f"{name}/b", bias, bias_scales, zeros, 0),
        ]

    def _constant(self, name: str, array: Array) -> Value:
        if self.plan is None:
            return Value(self.file.constant(name, array), name, array.shape)
        scale, zero_point = quantisation_of(float(array.min()), float(array.max()))
        data = np.clip(np.rint(array / scale) + zero_point, -128, 127).astype(np.int8)
        return Value(self.file.constant(name, data, scale, zero_point), name, array.shape)


def quantised(build: Callable[[Layers], None], name: str, seed: int, samples: int = 6) -> bytes:
    """The int8 file of a network, with scales from `samples` random inputs."""
    layers = Layers(name, seed)
    build(layers)
    data = layers.file.serialise()
    lows: dict[str, float] = {}
    highs: dict[str, float] = {}
    for i in range(samples):
        rng = np.random.default_rng([seed, i])
        inputs = {
            tensor: scale * (random_array(shape, rng) - zero_point).astype(np.float32)
            for tensor, shape, (scale, zero_point) in _inputs(layers)
        }
        for tensor, array in run_reference(data, inputs, all_tensors=True, reference=False).items():
            if array.dtype == np.float32 and array.size:
                leader = layers.leader(tensor)
                lows[leader] = min(lows.get(leader, 0.0), float(array.min()))
                highs[leader] = max(highs.get(leader, 0.0), float(array.max()))
    names = [tensor.name for tensor in layers.file.graph.tensors]
    plan = {
        tensor: quantisation_of(lows[layers.leader(tensor)], highs[layers.leader(tensor)])
        for tensor in names
        if layers.leader(tensor) in lows
    }
    layers = Layers(name, seed, plan)
    build(layers)
    return layers.file.serialise()


def quantisation_of(low: float, high: float) -> Quantisation:
    """Scale and zero point with which low..high, widened to hold 0, becomes -128..127."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32(max(high - low, 0.01) / 255))
    return scale, int(np.clip(round(-128 - low / scale), -128, 127))


def random_array(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """int8 of the whole range: for images, coarse patches with some noise, which a network tells apart better."""
    noise = rng.integers(-128, 128, shape)
    if len(shape) != 4:
        return noise.astype(np.int8)
    coarse = rng.integers(-128, 128, (1, shape[1] // 8 + 1, shape[2] // 8 + 1, shape[3]))
    patches = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, : shape[1], : shape[2]]
    return np.clip(patches + noise // 4, -128, 127).astype(np.int8)


def random_inputs(data: bytes, rng: np.random.Generator) -> dict[str, Array]:
    """Random arrays for the inputs of a sound file; float ones reach a little past the range of their QUANTIZE."""
    model = unpack(data)
    graph = model.subgraphs[0]
    arrays: dict[str, Array] = {}
    for number in graph.inputs:
        tensor = graph.tensors[number]
        dtype = np.dtype(dtype_of(tensor.type))
        array = random_array(tuple(int(size) for size in tensor.shape), rng)
        if dtype == np.uint8:
            array = array.view(np.uint8) ^ 0x80
        elif dtype.kind == "f":
            scale, zero_point = 1 / 64, 0
            readers = [op for op in graph.operators if len(op.inputs) == 1 and op.inputs[0] == number]
            for op in readers:
                quantisation = graph.tensors[op.outputs[0]].quantization
                if quantisation is not None and quantisation.scale is not None and len(quantisation.scale) == 1:
                    scale, zero_point = float(quantisation.scale[0]), int(quantisation.zeroPoint[0])
            array = ((array * 1.05 - zero_point) * scale).astype(dtype)
        arrays[tensor.name.decode() if isinstance(tensor.name, bytes) else tensor.name] = array.astype(dtype)
    return arrays


def _inputs(layers: Layers) -> list[tuple[str, tuple[int, ...], Quantisation]]:
    tensors = [layers.file.graph.tensors[number] for number in layers.file.graph.inputs]
    return [(t.name, tuple(int(size) for size in t.shape), layers.fixed[t.name]) for t in tensors]


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


def _size(shape: Sequence[int], kernel: Pair, stride: Pair, padding: str, dilation: int = 1) -> Pair:
    height, width = (
        -(-size // step) if padding == "SAME" else (size - (taps - 1) * dilation - 1) // step + 1
        for size, taps, step in zip(shape[1:3], kernel, stride, strict=True)
    )
    return height, width


def _window(stride: Pair, padding: str, activation: str) -> dict[str, Any]:
    return {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "fused_activation_function": activation,
    }
