"""What a network's outputs mean: boxes, classes, or nothing that we know."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from sim.detections import ANCHORS, STRIDES, Detection, decode_heads, detect
from sim.pictures import PictureError, check_file, is_picture
from sw.reader.model import Model, Port, Values

# fmt: off
COCO = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)
# fmt: on
"""The 80 classes of COCO, in YOLOv5's order."""
TOP = 5
_MOST_LABELS = 100_000
_LONGEST_LABEL = 200


@dataclasses.dataclass(frozen=True)
class Detections:
    """What a detector found, boxes in pixels of the network's input."""

    found: tuple[Detection, ...]


@dataclasses.dataclass(frozen=True)
class Classification:
    """The classes of the highest probabilities, highest first."""

    labels: tuple[int, ...]
    scores: tuple[float, ...]


def heads(model: Model) -> list[Port] | None:
    """The three raw heads of a YOLOv5 network, by stride, if the model's outputs are such."""
    size = _input_size(model)
    if size is None or len(model.outputs) != len(STRIDES):
        return None
    ports = sorted(model.outputs, key=lambda port: -math.prod(port.shape))
    for port, stride in zip(ports, STRIDES, strict=True):
        if len(port.shape) != 4 or port.shape[0] != 1 or _hwc(port)[:2] != (size[0] // stride, size[1] // stride):
            return None
        channels = _hwc(port)[2]
        if channels % len(ANCHORS[0]) or channels < 6 * len(ANCHORS[0]) or channels != _hwc(ports[0])[2]:
            return None
    return ports


def rows(model: Model) -> Port | None:
    """The output ``[1, boxes, 5 + classes]`` of a YOLOv5 network that decodes its heads itself, if there is one."""
    size = _input_size(model)
    if size is None:
        return None
    boxes = sum(len(ANCHORS[0]) * (size[0] // stride) * (size[1] // stride) for stride in STRIDES)
    for port in model.outputs:
        shape = port.shape[1:] if len(port.shape) == 3 and port.shape[0] == 1 else port.shape
        if len(shape) == 2 and shape[0] == boxes and shape[1] >= 6:
            return port
    return None


def is_detector(model: Model) -> bool:
    """Whether a model's outputs are those of a YOLOv5 network."""
    return heads(model) is not None or rows(model) is not None


def is_classifier(model: Model) -> bool:
    """Whether a model's only output is one score a class: a vector of fewer numbers than go in."""
    if len(model.outputs) != 1:
        return False
    shape = model.outputs[0].shape
    if math.prod(shape) >= sum(math.prod(port.shape) for port in model.inputs):
        return False  # such as an autoencoder
    return (len(shape) >= 1 and math.prod(shape) == shape[-1] > 1) or (
        len(shape) == 4 and math.prod(shape) == shape[1] > 1
    )


def count(model: Model) -> int | None:
    """Number of a detector's or classifier's classes; None for other networks."""
    decoded, raw = rows(model), heads(model)
    if raw is not None:
        return _hwc(raw[0])[2] // len(ANCHORS[0]) - 5
    if decoded is not None:
        return decoded.shape[-1] - 5
    return math.prod(model.outputs[0].shape) if is_classifier(model) else None


def meaning(model: Model, outputs: Values) -> Detections | Classification | None:
    """What the outputs say; None for a network that is neither a YOLOv5 detector nor a classifier."""
    raw = heads(model)
    if raw is not None:
        arrays = [_to_hwc(port, port.real(outputs[port.name])) for port in raw]
        return Detections(tuple(detect(decode_heads(arrays, sigmoid=not _is_unit_range(raw, arrays)))))
    decoded = rows(model)
    if decoded is not None:
        values = decoded.real(outputs[decoded.name]).reshape(decoded.shape[-2:])
        size = _input_size(model)
        assert size is not None
        # The authors' TFLite export gives boxes in parts of the input's sides, their ONNX export in pixels.
        # Centres tell them apart: the last cell's is 1.5 sides at most, or 20 pixels at least. Widths reach 4 anchors.
        if np.nanmax(values[:, :2], initial=0) <= 2:
            values[:, :4] *= np.array([size[1], size[0]] * 2)
        return Detections(tuple(detect(values)))
    if is_classifier(model):
        (port,) = model.outputs
        return top(port.real(outputs[port.name]).ravel())
    return None


def top(values: np.ndarray, most: int = TOP) -> Classification:
    """The highest probabilities; of equal ones the first class goes first.

    Values that are all within 0 to 1 are taken as they are: a softmax, whose sum is far from 1 once many small values
    are rounded to int8, or sigmoids. Others go through softmax. What is no number counts as least.
    """
    limits = np.finfo(np.float64)
    values = np.nan_to_num(values.astype(np.float64), nan=limits.min, posinf=limits.max, neginf=limits.min)
    order = np.argsort(-values, kind="stable")[:most]
    if values.min() < 0 or values.max() > 1:
        # Halves first, so that the difference of any two does not overflow.
        values = np.exp(np.maximum(values / 2 - values.max() / 2, -1000) * 2)
        values /= values.sum()
    return Classification(tuple(map(int, order)), tuple(float(values[i]) for i in order))


def read_labels(path: pathlib.Path) -> tuple[str, ...]:
    """Names of classes, one a line. Raises ``PictureError``."""
    check_file(path)
    try:
        # By line feeds alone: other separators that Python knows may stand in a name.
        names = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise PictureError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PictureError(f"{path}: is no text in UTF-8") from None
    names = ["".join(c if c.isprintable() else " " for c in name).strip() for name in names]
    while names and not names[-1]:
        names.pop()
    if not 1 <= len(names) <= _MOST_LABELS:
        raise PictureError(f"{path}: has {len(names):,} lines; 1 to {_MOST_LABELS:,} names are wanted")
    for line, name in enumerate(names, 1):
        if len(name) > _LONGEST_LABEL:
            raise PictureError(f"{path}: line {line:,} is longer than the {_LONGEST_LABEL} characters of a name")
    return tuple(names)


def label(number: int, names: Sequence[str]) -> str:
    """Name of a class, or its number."""
    return names[number] if number < len(names) and names[number] else f"class {number}"


def _input_size(model: Model) -> tuple[int, int] | None:
    if len(model.inputs) != 1 or not is_picture(model.inputs[0]):
        return None
    height, width, _ = _hwc(model.inputs[0])
    return (height, width) if height % STRIDES[-1] == width % STRIDES[-1] == 0 else None


def _hwc(port: Port) -> tuple[int, int, int]:
    _, a, b, c = port.shape
    return (b, c, a) if port.channels_first else (a, b, c)


def _to_hwc(port: Port, values: np.ndarray) -> np.ndarray:
    return np.moveaxis(values[0], 0, 2) if port.channels_first else values[0]


def _is_unit_range(ports: Sequence[Port], arrays: Sequence[np.ndarray]) -> bool:
    """Whether heads have been through the sigmoid: then their numbers reach from 0 to 1.

    Integers by what they can stand for, floats by what they are.
    """
    for port, values in zip(ports, arrays, strict=True):
        if port.quantisation is None:
            if not (values.min() >= 0 and values.max() <= 1):
                return False
            continue
        scale, zero_point = port.quantisation
        info = np.iinfo(port.dtype)
        if (info.min - zero_point) * scale < -1e-6 or (info.max - zero_point) * scale > 1.01:
            return False
    return True
