"""Small random graphs that are valid, and whose tensors use their range, for tests of everything that reads a graph.

Scales come from a rough simulation: with each tensor goes a sample of the real values that it may hold, as if all its
elements were drawn independently.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import (
    INT8_MAX,
    INT8_MIN,
    SIGMOID_SCALE,
    SIGMOID_ZERO_POINT,
    Int8Array,
    activation_bounds,
    relu_table,
    sigmoid_table,
    silu_table,
)
from sw.graph import (
    NO_CLAMP,
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    MaxPool,
    Operator,
    Padding,
    Pair,
    Quantisation,
    Shape,
    Tensor,
    Upsample,
    window_output,
)

Sample = NDArray[np.float64]

FUNCTIONS = ("silu", "sigmoid", "relu", "relu6")
"""Activations with a table."""

FUSED = ("relu", "relu6", "relu_n1_to_1")
"""Activations that are bounds of another operator's output."""

_SAMPLES = 512


def random_graph(
    rng: np.random.Generator, kind: str | None = None, *, max_size: int = 20, max_channels: int = 40
) -> Graph:
    """Return a random graph.

    Parameters
    ----------
    rng
        Source of all randomness: the same state gives the same graph.
    kind
        One of `KINDS`; a random one by default.
    max_size
        Largest height and width of an input.
    max_channels
        Largest number of channels of an input or of a convolution's output; at least 2.

    Raises
    ------
    ValueError
        If there is no such kind.
    """
    if kind is None:
        kind = KINDS[rng.integers(len(KINDS))]
    if kind not in _MAKERS:
        raise ValueError(f"kind of random graph must be one of {', '.join(KINDS)}, not {kind!r}")
    builder = _Builder(rng, max_size, max_channels)
    outputs = _MAKERS[kind](builder)
    return Graph(f"random-{kind}", tuple(builder.inputs), outputs, builder.tensors, builder.operators)


def random_inputs(rng: np.random.Generator, graph: Graph) -> dict[str, Int8Array]:
    """Return inputs for a graph, each element any int8 value with equal chance."""
    shapes = {name: graph.tensors[name].shape for name in graph.inputs}
    return {name: rng.integers(INT8_MIN, INT8_MAX + 1, shape).astype(np.int8) for name, shape in shapes.items()}


class _Builder:
    """Appends random operators; each method returns the name of the tensor it made."""

    def __init__(self, rng: np.random.Generator, max_size: int, max_channels: int) -> None:
        self.rng = rng
        self.max_size = max_size
        self.max_channels = max_channels
        self.inputs: list[str] = []
        self.tensors: dict[str, Tensor] = {}
        self.samples: dict[str, Sample] = {}
        self.operators: list[Operator] = []

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pair(self, low: int, high: int) -> Pair:
        return self.integer(low, high), self.integer(low, high)

    def shape(self) -> Shape:
        return self.integer(1, self.max_size), self.integer(1, self.max_size), self.integer(1, self.max_channels)

    def _tensor(self, name: str, shape: Shape, quantisation: Quantisation, sample: Sample) -> str:
        scale, zero_point = quantisation
        self.tensors[name] = Tensor(name, shape, scale, zero_point)
        self.samples[name] = np.clip(sample, scale * (INT8_MIN - zero_point), scale * (INT8_MAX - zero_point))
        return name

    def _draw(self, name: str, shape: tuple[int, ...]) -> Sample:
        return self.rng.choice(self.samples[name], shape)

    def fit(self, *samples: Sample) -> Quantisation:
        """Choose a quantisation for values like these, a little too narrow or too wide."""
        low, high = np.quantile(np.concatenate(samples), [0.01, 0.99])
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max(high - low, 0.25) / 255 * self.rng.uniform(0.8, 1.5)
        return float(scale), int(np.clip(round(INT8_MIN - low / scale), INT8_MIN, INT8_MAX))

    def input(self, shape: Shape | None = None, quantisation: Quantisation | None = None) -> str:
        scale, zero_point = quantisation or (float(2.0 ** self.rng.uniform(-8, 0)), self.integer(INT8_MIN, INT8_MAX))
        name = f"input{len(self.inputs)}"
        self.inputs.append(name)
        values = self.rng.integers(INT8_MIN, INT8_MAX + 1, _SAMPLES).astype(np.float64)
        sample = scale * (values - zero_point)
        return self._tensor(name, shape or self.shape(), (scale, zero_point), sample)

    def convolution(
        self,
        name: str,
        source: str,
        cout: int,
        kernel: Pair = (1, 1),
        stride: Pair = (1, 1),
        dilation: Pair = (1, 1),
        padding: Padding | None = None,
        groups: int = 1,
    ) -> str:
        before = self.tensors[source]
        pad = padding or Padding()
        height = window_output(before.height, kernel[0], stride[0], dilation[0], pad.top, pad.bottom)
        width = window_output(before.width, kernel[1], stride[1], dilation[1], pad.left, pad.right)
        # Tiny weights and a narrow output give multipliers above 1; the usual ones are far below.
        tiny = self.rng.random() < 0.15
        amplitude = 1 if tiny else 127
        shape = (cout, *kernel, before.channels // groups)
        weights = self.rng.integers(-amplitude - (not tiny), amplitude + 1, shape).astype(np.int8)
        depth = weights[0].size
        drawn = self._draw(source, (_SAMPLES // 4, depth)) @ weights.reshape(cout, depth).T
        # Outputs of a few units, where activations bend.
        spread = 2.0 ** self.rng.uniform(-0.5, 0.5, cout) * self.rng.uniform(1, 3)
        scales = (spread / (drawn.std() + before.scale)).astype(np.float32)
        units = before.scale * scales.astype(np.float64)
        products = drawn * scales
        offsets = (self.rng.normal(0, 0.5, cout) - self.rng.uniform(0, 1)) * products.std(axis=0) - products.mean(
            axis=0
        )
        bias = np.rint(offsets / units).astype(np.int32)
        sample = (products + bias * units).ravel()
        scale, zero_point = self.fit(sample)
        self._tensor(name, (height, width, cout), (scale * (0.4 if tiny else 1.0), zero_point), sample)
        op = Convolution(name, (source,), name, weights, scales, bias, stride, dilation, pad, groups, self.clamp(name))
        self.operators.append(op)
        return name

    def clamp(self, name: str) -> Pair:
        """Bounds of a fused activation, or none, for the operator that makes a tensor."""
        kind = FUSED[self.rng.integers(len(FUSED))] if self.rng.random() < 0.4 else "none"
        bounds = activation_bounds(kind, *self.tensors[name].quantisation)
        return bounds if bounds[0] <= bounds[1] else NO_CLAMP

    def function(self, name: str, kind: str, source: str, quantisation: Quantisation | None = None) -> str:
        before = self.tensors[source]
        sample = real_activation(kind, self.samples[source])
        if kind == "sigmoid":
            quantisation = SIGMOID_SCALE, SIGMOID_ZERO_POINT
        self._tensor(name, before.shape, quantisation or self.fit(sample), sample)
        table = self._table(kind, before, self.tensors[name])
        self.operators.append(Activation(name, (source,), name, kind, table))
        return name

    @staticmethod
    def _table(kind: str, before: Tensor, after: Tensor) -> Int8Array:
        if kind == "sigmoid":
            return sigmoid_table(*before.quantisation)
        if kind == "silu":
            return silu_table(*before.quantisation, *after.quantisation)
        return relu_table(*before.quantisation, *after.quantisation, 6.0 if kind == "relu6" else None)

    def addition(self, name: str, a: str, b: str) -> str:
        sample = self._draw(a, (_SAMPLES,)) + self._draw(b, (_SAMPLES,))
        self._tensor(name, self.tensors[a].shape, self.fit(sample), sample)
        self.operators.append(Addition(name, (a, b), name, self.clamp(name)))
        return name

    def pool(
        self,
        kind: type[MaxPool] | type[AveragePool],
        name: str,
        source: str,
        kernel: Pair,
        stride: Pair,
        padding: Padding,
    ) -> str:
        before = self.tensors[source]
        height = window_output(before.height, kernel[0], stride[0], 1, padding.top, padding.bottom)
        width = window_output(before.width, kernel[1], stride[1], 1, padding.left, padding.right)
        self._tensor(name, (height, width, before.channels), before.quantisation, self.samples[source])
        self.operators.append(kind(name, (source,), name, kernel, stride, padding, self.clamp(name)))
        return name

    def concatenation(self, name: str, *sources: str) -> str:
        first = self.tensors[sources[0]]
        shape = (first.height, first.width, sum(self.tensors[source].channels for source in sources))
        sample = np.concatenate([self.samples[source] for source in sources])
        self._tensor(name, shape, first.quantisation, sample)
        self.operators.append(Concatenation(name, sources, name))
        return name

    def upsample(self, name: str, source: str) -> str:
        before = self.tensors[source]
        shape = (2 * before.height, 2 * before.width, before.channels)
        self._tensor(name, shape, before.quantisation, self.samples[source])
        self.operators.append(Upsample(name, (source,), name, 2))
        return name

    def silu(self, name: str, source: str, cout: int, kernel: int = 1, stride: int = 1) -> str:
        """Append a convolution with odd kernel and half padding, and SiLU."""
        pad = Padding.all(kernel // 2)
        linear = self.convolution(f"{name}.conv", source, cout, (kernel, kernel), (stride, stride), padding=pad)
        return self.function(name, "silu", linear)

    def joined(self, name: str, kinds: list[str], sources: list[str]) -> str:
        """Append an activation of each source, all to one quantisation, and their concatenation."""
        samples = [real_activation(kind, self.samples[source]) for kind, source in zip(kinds, sources, strict=True)]
        common = self.fit(*samples)
        pairs = enumerate(zip(kinds, sources, strict=True))
        parts = [self.function(f"{name}.{i}", kind, source, common) for i, (kind, source) in pairs]
        return self.concatenation(name, *parts)


def real_activation(kind: str, x: Sample) -> Sample:
    """Apply an activation, one of `FUNCTIONS`, to real numbers."""
    if kind in ("relu", "relu6"):
        return np.clip(x, 0, 6 if kind == "relu6" else None)
    sigmoid = 1 / (1 + np.exp(-np.clip(x, -80, 80)))
    return x * sigmoid if kind == "silu" else sigmoid


def _convolution(b: _Builder, grouped: bool = False) -> tuple[str, ...]:
    while True:
        shape, kernel, stride, dilation = b.shape(), b.pair(1, 5), b.pair(1, 3), b.pair(1, 3)
        padding = Padding(*b.pair(0, 3), *b.pair(0, 3)) if b.rng.random() < 0.7 else Padding()
        height = window_output(shape[0], kernel[0], stride[0], dilation[0], padding.top, padding.bottom)
        width = window_output(shape[1], kernel[1], stride[1], dilation[1], padding.left, padding.right)
        if height > 0 and width > 0:
            break
    cout, groups = b.integer(1, b.max_channels), 1
    if grouped:
        groups = b.integer(1, shape[2])
        shape = (*shape[:2], max(1, shape[2] // groups) * groups)
        cout = max(1, cout // groups) * groups
    return (b.convolution("conv", b.input(shape), cout, kernel, stride, dilation, padding, groups),)


def _grouped(b: _Builder) -> tuple[str, ...]:
    return _convolution(b, grouped=True)


def _depthwise(b: _Builder) -> tuple[str, ...]:
    """A depthwise convolution, with one output channel for each input channel or several, and an activation or none."""
    shape, kernel, stride = b.shape(), b.pair(1, 5), b.pair(1, 2)
    padding = Padding(*(size // 2 for size in (kernel[0], kernel[0] + 1, kernel[1], kernel[1] + 1)))
    multiplier = 1 if b.rng.random() < 0.6 else b.integer(2, 5)
    source = b.input(shape)
    name = b.convolution("dw", source, shape[2] * multiplier, kernel, stride, padding=padding, groups=shape[2])
    if b.rng.random() < 0.5:
        return (name,)
    kind = FUNCTIONS[b.rng.integers(len(FUNCTIONS))]
    return (b.function(kind, kind, name),)


def _average_pool(b: _Builder) -> tuple[str, ...]:
    """Without padding, or with the padding of TFLite's SAME."""
    shape, kernel, stride = b.shape(), b.pair(1, 6), b.pair(1, 3)
    kernel = min(kernel[0], shape[0]), min(kernel[1], shape[1])
    padding = Padding()
    if b.rng.random() < 0.6:
        edges = []
        for size, taps, step in zip(shape[:2], kernel, stride, strict=True):
            total = max((-(-size // step) - 1) * step + taps - size, 0)
            edges += [total // 2, total - total // 2]
        padding = Padding(*edges)
    elif b.rng.random() < 0.3:
        kernel = shape[:2]
    return (b.pool(AveragePool, "pool", b.input(shape), kernel, stride, padding),)


def _mobile(b: _Builder) -> tuple[str, ...]:
    """An inverted residual block and a classifier: expansion, depthwise, projection, addition, mean, dense layer."""
    channels, wide = b.integer(1, max(1, b.max_channels // 2)), b.integer(1, b.max_channels)
    source = b.input((*b.shape()[:2], channels))
    x = b.convolution("expand", source, wide)
    x = b.convolution("dw", x, wide, (3, 3), padding=Padding.all(1), groups=wide)
    x = b.addition("add", b.convolution("project", x, channels), source)
    x = b.pool(AveragePool, "mean", x, b.tensors[x].shape[:2], (1, 1), Padding())
    return (b.convolution("dense", x, b.integer(1, b.max_channels)),)


def _activation(b: _Builder) -> tuple[str, ...]:
    kind = FUNCTIONS[b.rng.integers(len(FUNCTIONS))]
    # From a step that is barely seen to a range where all functions are flat or straight.
    quantisation = float(2.0 ** b.rng.uniform(-8, -2)), b.integer(INT8_MIN // 2, INT8_MAX // 2)
    return (b.function(kind, kind, b.input(quantisation=quantisation)),)


def _addition(b: _Builder) -> tuple[str, ...]:
    shape = b.shape()
    return (b.addition("add", b.input(shape), b.input(shape)),)


def _max_pool(b: _Builder) -> tuple[str, ...]:
    while True:
        shape, kernel, stride = b.shape(), b.pair(1, 5), b.pair(1, 3)
        vertical = b.integer(0, kernel[0] // 2), b.integer(0, kernel[0] // 2)
        horizontal = b.integer(0, kernel[1] // 2), b.integer(0, kernel[1] // 2)
        padding = Padding(*vertical, *horizontal)
        height = window_output(shape[0], kernel[0], stride[0], 1, *vertical)
        width = window_output(shape[1], kernel[1], stride[1], 1, *horizontal)
        if height > 0 and width > 0 and max(vertical) < kernel[0] and max(horizontal) < kernel[1]:
            return (b.pool(MaxPool, "pool", b.input(shape), kernel, stride, padding),)


def _concatenation(b: _Builder) -> tuple[str, ...]:
    height, width, _ = b.shape()
    first = b.input((height, width, b.integer(1, b.max_channels)))
    common = b.tensors[first].quantisation
    rest = [b.input((height, width, b.integer(1, b.max_channels)), common) for _ in range(b.integer(1, 3))]
    return (b.concatenation("cat", first, *rest),)


def _upsample(b: _Builder) -> tuple[str, ...]:
    return (b.upsample("up", b.input()),)


def _layer(b: _Builder) -> tuple[str, ...]:
    """A convolution and its activation."""
    (linear,) = _convolution(b)
    kind = FUNCTIONS[b.rng.integers(len(FUNCTIONS))]
    return (b.function(kind, kind, linear),)


def _c3(b: _Builder) -> tuple[str, ...]:
    """A block as in YOLOv5: two readers of one tensor, a residual addition that lags behind, a concatenation."""
    hidden = b.integer(1, max(1, b.max_channels // 2))
    source = b.input()
    x = b.silu("cv1", source, hidden)
    for i in range(b.integer(1, 2)):
        inner = b.silu(f"m{i}.cv1", x, hidden)
        y = b.silu(f"m{i}.cv2", inner, hidden, 3)
        x = b.addition(f"m{i}.add", x, y)
    linear = b.convolution("last", x, hidden)
    skip = b.convolution("cv2", source, hidden)
    return (b.silu("cv3", b.joined("cat", ["silu", "silu"], [linear, skip]), b.integer(1, b.max_channels)),)


def _neck(b: _Builder) -> tuple[str, ...]:
    """Down and up again: a skip that is kept for long, an upsampling and a pooling into concatenations, two outputs."""
    height, width = (2 * b.integer(1, max(1, b.max_size // 2)) for _ in range(2))
    limit = max(1, b.max_channels // 2)
    source = b.input((height, width, b.integer(1, limit)))
    fine = b.convolution("fine.conv", source, b.integer(1, limit), (3, 3), padding=Padding.all(1))
    deep = b.silu("down", b.function("fine", "silu", fine), b.integer(1, limit), 3, 2)
    bottom = b.convolution("bottom.conv", deep, b.integer(1, limit))
    # The upsampling, the pooling and the skip share one quantisation, so that they can be put side by side.
    sample = [real_activation("silu", b.samples[name]) for name in (bottom, fine)]
    common = b.fit(*sample)
    low = b.function("bottom", "silu", bottom, common)
    pooled = b.pool(MaxPool, "pool", low, (5, 5), (1, 1), Padding.all(2))
    spatial = (
        b.concatenation("pyramid", low, pooled, low)
        if b.rng.random() < 0.3
        else b.concatenation("pyramid", low, pooled)
    )
    skip = b.function("skip", "silu", fine, common)
    wide = b.concatenation("cat", b.upsample("up", spatial), skip)
    head = b.convolution("head.conv", wide, b.integer(1, b.max_channels))
    coarse = b.convolution("coarse.conv", spatial, b.integer(1, b.max_channels), (3, 3), padding=Padding.all(1))
    return b.function("head", "sigmoid", head), b.function("coarse", "sigmoid", coarse)


_MAKERS: dict[str, Callable[[_Builder], tuple[str, ...]]] = {
    "convolution": _convolution,
    "grouped": _grouped,
    "depthwise": _depthwise,
    "activation": _activation,
    "addition": _addition,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "mobile": _mobile,
    "concatenation": _concatenation,
    "upsample": _upsample,
    "layer": _layer,
    "c3": _c3,
    "neck": _neck,
}

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""Kinds of random graph: each operator alone, a convolution with activation, and three small networks."""
