"""What a run works on: a network by name, its input picture, its size."""

import dataclasses
import re

import numpy as np
from numpy.typing import NDArray

from sw.graph import Graph
from sw.images import photograph
from sw.workloads import quantised_yolov5
from sw.yolov5 import VARIANTS

PHOTOGRAPH = "coffee"
"""The picture that runs see, one of scikit-image's."""


class WorkloadError(ValueError):
    """An unknown network or a size that it cannot have; the message is one line fit for the user."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network, not yet built: ``variant`` of YOLOv5 at ``height`` x ``width``."""

    name: str
    variant: str
    height: int
    width: int

    @property
    def title(self) -> str:
        return f"{self.name} {self.height}x{self.width}"

    def build(self) -> Graph:
        """The quantised network: weights from a fixed seed, scales calibrated on photographs. Takes seconds."""
        return quantised_yolov5(self.variant, self.height, self.width)

    def inputs(self, graph: Graph) -> dict[str, NDArray[np.int8]]:
        """A real photograph, letterboxed to the network's size."""
        return {name: photograph(PHOTOGRAPH, self.height, self.width) for name in graph.inputs}


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from ``HxW``. Raises ``WorkloadError``."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if not match:
        raise WorkloadError(f"--size wants HEIGHTxWIDTH, as in 640x640, not {text!r}")
    height, width = int(match[1]), int(match[2])
    for value in (height, width):
        if value % 32 or not 32 <= value <= 4096:
            raise WorkloadError(f"--size {text}: both sides must be multiples of 32 from 32 to 4096")
    return height, width


def find_workload(model: str, size: str) -> Workload:
    """The workload that ``--model`` and ``--size`` name. Raises ``WorkloadError``."""
    height, width = parse_size(size)
    names = {f"yolov5{variant}": variant for variant in VARIANTS}
    if model not in names:
        raise WorkloadError(f"unknown model {model!r}; known: {', '.join(names)}")
    return Workload(model, names[model], height, width)
