"""YOLOv5 v6.0 as a float graph, built from its published depth and width multiples.

Backbone (P6 stem of 6x6 stride 2, C3 blocks, SPPF), PANet neck and three heads.  Decoding of the heads and non-maximum
suppression are not part of the graph.  Operators are named after the modules of the original.
"""

import math
from dataclasses import dataclass

from sw.float_graph import (
    FloatAddition,
    FloatConcatenation,
    FloatConvolution,
    FloatGraph,
    FloatMaxPool,
    FloatOperator,
    FloatUpsample,
    Shape,
)

VARIANTS: dict[str, tuple[float, float]] = {
    "n": (0.33, 0.25),
    "s": (0.33, 0.50),
    "m": (0.67, 0.75),
    "l": (1.00, 1.00),
    "x": (1.33, 1.25),
}
"""Depth and width multiple of each variant."""

INPUT = "images"
"""Name of the input tensor."""

CLASSES = 80
ANCHORS = 3


@dataclass(frozen=True)
class _Multiples:
    depth: float
    width: float

    def channels(self, n: int) -> int:
        return math.ceil(n * self.width / 8) * 8

    def repeats(self, n: int) -> int:
        return max(round(n * self.depth), 1)


class _Builder:
    """Appends operators; each method returns the name of the tensor it made."""

    def __init__(self, shape: Shape, multiples: _Multiples) -> None:
        self.multiples = multiples
        self.shapes: dict[str, Shape] = {INPUT: shape}
        self.operators: list[FloatOperator] = []

    def _append(self, op: FloatOperator) -> str:
        self.operators.append(op)
        self.shapes[op.name] = op.shape
        return op.name

    def conv(
        self, name: str, source: str, cout: int, kernel: int = 1, stride: int = 1, padding: int | None = None
    ) -> str:
        pad = kernel // 2 if padding is None else padding
        height, width, _ = self.shapes[source]
        shape = ((height + 2 * pad - kernel) // stride + 1, (width + 2 * pad - kernel) // stride + 1, cout)
        return self._append(FloatConvolution(name, (source,), shape, kernel, stride, pad, "silu", True))

    def head(self, name: str, source: str, cout: int) -> str:
        height, width, _ = self.shapes[source]
        return self._append(FloatConvolution(name, (source,), (height, width, cout), 1, 1, 0, "sigmoid", False))

    def add(self, name: str, a: str, b: str) -> str:
        return self._append(FloatAddition(name, (a, b), self.shapes[a]))

    def concat(self, name: str, *sources: str) -> str:
        height, width, _ = self.shapes[sources[0]]
        channels = sum(self.shapes[source][2] for source in sources)
        return self._append(FloatConcatenation(name, sources, (height, width, channels)))

    def upsample(self, name: str, source: str) -> str:
        height, width, channels = self.shapes[source]
        return self._append(FloatUpsample(name, (source,), (2 * height, 2 * width, channels)))

    def c3(self, name: str, source: str, channels: int, repeats: int, shortcut: bool) -> str:
        cout = self.multiples.channels(channels)
        hidden = cout // 2
        x = self.conv(f"{name}.cv1", source, hidden)
        for i in range(self.multiples.repeats(repeats)):
            inner = self.conv(f"{name}.m.{i}.cv1", x, hidden)
            y = self.conv(f"{name}.m.{i}.cv2", inner, hidden, 3)
            x = self.add(f"{name}.m.{i}.add", x, y) if shortcut else y
        skip = self.conv(f"{name}.cv2", source, hidden)
        return self.conv(f"{name}.cv3", self.concat(f"{name}.cat", x, skip), cout)

    def sppf(self, name: str, source: str, channels: int) -> str:
        cout = self.multiples.channels(channels)
        hidden = self.shapes[source][2] // 2
        levels = [self.conv(f"{name}.cv1", source, hidden)]
        for i in range(1, 4):
            shape = self.shapes[levels[-1]]
            levels.append(self._append(FloatMaxPool(f"{name}.m{i}", (levels[-1],), shape, 5, 2)))
        return self.conv(f"{name}.cv2", self.concat(f"{name}.cat", *levels), cout)


def yolov5(variant: str = "s", height: int = 640, width: int = 640) -> FloatGraph:
    """Build the structure of a YOLOv5 v6.0 detector.

    Parameters
    ----------
    variant
        One of 'n', 's', 'm', 'l', 'x'.
    height, width
        Size of the input image in pixels; multiples of 32.

    Raises
    ------
    ValueError
        If there is no such variant, or the size is not a positive multiple of 32.
    """
    if variant not in VARIANTS:
        raise ValueError(f"YOLOv5 variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
    if height < 32 or width < 32 or height % 32 or width % 32:
        raise ValueError(f"YOLOv5 input size must be positive multiples of 32, not {height}x{width}")
    multiples = _Multiples(*VARIANTS[variant])
    scaled = multiples.channels
    b = _Builder((height, width, 3), multiples)

    x = b.conv("model.0", INPUT, scaled(64), 6, 2, 2)
    x = b.conv("model.1", x, scaled(128), 3, 2)
    x = b.c3("model.2", x, 128, 3, True)
    x = b.conv("model.3", x, scaled(256), 3, 2)
    p3 = b.c3("model.4", x, 256, 6, True)
    x = b.conv("model.5", p3, scaled(512), 3, 2)
    p4 = b.c3("model.6", x, 512, 9, True)
    x = b.conv("model.7", p4, scaled(1024), 3, 2)
    x = b.c3("model.8", x, 1024, 3, True)
    x = b.sppf("model.9", x, 1024)

    top = b.conv("model.10", x, scaled(512))
    x = b.concat("model.12", b.upsample("model.11", top), p4)
    x = b.c3("model.13", x, 512, 3, False)
    middle = b.conv("model.14", x, scaled(256))
    x = b.concat("model.16", b.upsample("model.15", middle), p3)
    small = b.c3("model.17", x, 256, 3, False)
    x = b.concat("model.19", b.conv("model.18", small, scaled(256), 3, 2), middle)
    medium = b.c3("model.20", x, 512, 3, False)
    x = b.concat("model.22", b.conv("model.21", medium, scaled(512), 3, 2), top)
    large = b.c3("model.23", x, 1024, 3, False)

    outputs = tuple(b.head(f"model.24.m.{i}", x, ANCHORS * (5 + CLASSES)) for i, x in enumerate((small, medium, large)))
    return FloatGraph(f"yolov5{variant}", {INPUT: b.shapes[INPUT]}, outputs, tuple(b.operators))
