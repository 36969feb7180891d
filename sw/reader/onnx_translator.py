"""Tensors and constants of an ONNX file as the NPU's operators want them."""

from collections.abc import Collection

import numpy as np

from sw.operators import NO_CLAMP, GraphError, Pair, Shape, Tensor
from sw.reader.model import Array
from sw.reader.onnx_file import OnnxFile
from sw.reader.onnx_groups import Group, Groups
from sw.reader.support import LARGEST_SIDE, Unsupported


class Translator:
    """What translations of groups have in common. Tensors are called by their names in the file."""

    def __init__(self, file: OnnxFile, groups: Groups) -> None:
        self.file = file
        self.groups = groups
        self.extras: dict[str, Tensor] = {}
        self._views: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = {}

    def tensor(self, name: str) -> Tensor:
        """An integer tensor of the file as one of a graph."""
        if name not in self._tensors:
            quantised = self.groups.quantised.get(name)
            if quantised is None:
                raise Unsupported(f"{name!r} is not quantised as int8 or uint8 with one scale")
            try:
                self._tensors[name] = Tensor(name, self.shape(name), quantised.scale, quantised.zero_point)
            except GraphError as error:
                raise Unsupported(str(error)) from None
        return self._tensors[name]

    def shape(self, name: str) -> Shape:
        """Height, width and channels of ``[1, c, h, w]`` or ``[1, c]``."""
        sizes = self.file.shape(name)
        if len(sizes) not in (2, 4) or sizes[0] != 1:
            raise Unsupported(f"{name!r} has shape {list(sizes)}, which is neither [1, c, h, w] nor [1, c]")
        channels, height, width = (*sizes[1:], 1, 1)[:3]
        if max(channels, height, width) > LARGEST_SIDE:
            raise Unsupported(f"{name!r} has shape {list(sizes)}; sides are at most {LARGEST_SIDE:,}")
        return height, width, channels

    def extra(self, name: str, shape: Shape, like: Tensor) -> str:
        """A tensor that the file does not have, quantised as another; returns its key."""
        self.extras[name] = Tensor(name, shape, *like.quantisation)
        return name

    def note_view(self, output: str, source: str) -> None:
        """Remember that one tensor has another's elements."""
        self._views[output] = source

    def image_behind(self, name: str, inside: Collection[str] | None) -> Shape | None:
        """Shape of the image that a program makes and flattens to make a tensor, if it does."""
        image = None
        while name in self._views and (inside is None or name in inside):
            name = self._views[name]
            height, width, channels = self.shape(name)
            if height * width > 1:
                image = height, width, channels
        return image if inside is None or name in inside else None

    def constant(self, name: str) -> Array:
        """Real values of a constant."""
        if name in self.groups.constants:
            return self.groups.constants[name].real()
        if name not in self.file.constants:
            raise Unsupported(f"{name!r} is no constant")
        return self.file.constants[name].astype(np.float64)

    def scalar(self, name: str) -> float:
        """Real value of a constant of one element."""
        values = self.constant(name)
        if values.size != 1:
            raise Unsupported(f"{name!r} has {values.size} elements; it must have one")
        return float(values.ravel()[0])

    def clamp(self, group: Group, output: Tensor) -> Pair:
        """Bounds that the Relu and Clip behind an operator put on its output."""
        low, high = NO_CLAMP
        for node in group.clamps:
            bounds: list[float] = [0.0, np.inf]
            if node.kind == "Clip":
                bounds = [-np.inf, np.inf]
                for side, name in enumerate(node.inputs[1:3]):
                    if name:
                        bounds[side] = self.scalar(name)
            quantised = [np.clip(np.rint(b / output.scale) + output.zero_point, -128, 127) for b in bounds]
            if np.isnan(quantised).any():
                raise Unsupported(f"its {node.kind} has bounds that are no numbers")
            low, high = max(low, int(quantised[0])), min(high, int(quantised[1]))
        if low > high:
            raise Unsupported(f"what is behind it leaves no value between {low} and {high}")
        return low, high
