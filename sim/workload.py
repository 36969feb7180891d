"""What a run works on: a network that Rondo builds, at a size, or one that a file holds."""

import dataclasses
import pathlib
import re
import typing

from sw.files import is_no_file
from sw.reader.model import Model, ModelError, of_graph, read_model
from sw.workloads import quantised_yolov5
from sw.yolov5 import VARIANTS

SUFFIXES = (".tflite", ".onnx")
"""Endings of model files, in either case."""


class WorkloadError(ValueError):
    """An unknown network or a size that it cannot have; the message is one line fit for the user."""


class Workload(typing.Protocol):
    """A network, not yet read or built."""

    @property
    def name(self) -> str:
        """Fit for a file's name."""
        ...

    @property
    def title(self) -> str:
        """Name, and size where the network has several."""
        ...

    def load(self) -> Model:
        """Read or build it. Raises ``ModelError``."""
        ...


@dataclasses.dataclass(frozen=True)
class Yolov5:
    """``variant`` of YOLOv5 at ``height`` x ``width``: weights from a fixed seed, scales calibrated on photographs."""

    variant: str
    height: int
    width: int

    @property
    def name(self) -> str:
        return f"yolov5{self.variant}-{self.height}x{self.width}"

    @property
    def title(self) -> str:
        return f"yolov5{self.variant} {self.height}x{self.width}"

    def load(self) -> Model:
        """Takes seconds."""
        return of_graph(quantised_yolov5(self.variant, self.height, self.width))


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A TFLite or ONNX file; with ``host_fallback`` the host may run operators in the middle of it."""

    path: pathlib.Path
    host_fallback: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def title(self) -> str:
        return self.path.name

    def load(self) -> Model:
        return read_model(self.path, host_fallback=self.host_fallback)


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


def find_workload(
    model: str, size: str | None = None, *, default_size: str = "640x640", host_fallback: bool = False
) -> Workload:
    """The workload that ``--model``, ``--size`` and ``--host-fallback`` name.

    Raises
    ------
    WorkloadError
        For a network or a size that there is not, a file that cannot be read, or an option that has no effect.
    """
    variants = {f"yolov5{variant}": variant for variant in VARIANTS}
    path = pathlib.Path(model)
    if model in variants:
        if host_fallback:
            raise WorkloadError(f"--host-fallback is for model files; the NPU runs all of {model}")
        return Yolov5(variants[model], *parse_size(size or default_size))
    if path.suffix.lower() not in SUFFIXES:
        raise WorkloadError(f"unknown model {model!r}; known: {', '.join(variants)}, FILE.tflite, FILE.onnx")
    if size is not None:
        raise WorkloadError(f"--size is for networks that Rondo builds; {path.name} says its own size")
    if is_no_file(path):
        raise WorkloadError(f"cannot read {path}: it is no file")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror}") from None
    return ModelFile(path, host_fallback)


__all__ = ["ModelError", "ModelFile", "Workload", "WorkloadError", "Yolov5", "find_workload", "parse_size"]
