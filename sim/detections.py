"""From the outputs of a YOLOv5 network to boxes: decoding of heads, non-maximum suppression."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.pictures import Placement

FloatArray = NDArray[np.float64]

ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Width and height in pixels of YOLOv5's P5 models, for the strides 8, 16 and 32."""
STRIDES = (8, 16, 32)
CONFIDENCE = 0.25
"""Least score of a box, as YOLOv5's detect.py has it."""
OVERLAP = 0.45
"""Most overlap (intersection over union) of two boxes of one class."""
MOST = 300
"""Most boxes of a picture."""
_CANDIDATES = 30000
"""Most boxes that are compared with each other, those of the highest scores."""


@dataclasses.dataclass(frozen=True)
class Detection:
    """A box, left, top, right, bottom in pixels, with its class's number and its score."""

    box: tuple[float, float, float, float]
    score: float
    label: int


def decode_heads(heads: Sequence[FloatArray], *, sigmoid: bool) -> FloatArray:
    """Boxes of raw heads ``[h, w, 3 * (5 + classes)]`` for strides 8, 16 and 32, as YOLOv5 v6 decodes them.

    With ``sigmoid`` the values still have to go through it. Returns rows of centre x, centre y, width, height in pixels
    of the input, objectness, one score a class: ``[boxes, 5 + classes]``.
    """
    rows = []
    for head, anchors, stride in zip(heads, ANCHORS, STRIDES, strict=True):
        height, width, channels = head.shape
        values = head.reshape(height, width, len(anchors), channels // len(anchors))
        if sigmoid:
            # By tanh, which does not overflow.
            values = 0.5 + 0.5 * np.tanh(0.5 * values)
        y, x = np.mgrid[0:height, 0:width]
        grid = np.stack([x, y], axis=2)[:, :, None]
        centre = (values[..., :2] * 2 - 0.5 + grid) * stride
        size = (values[..., 2:4] * 2) ** 2 * np.array(anchors, np.float64)
        rows.append(np.concatenate([centre, size, values[..., 4:]], axis=3).reshape(-1, values.shape[3]))
    return np.concatenate(rows)


def detect(
    rows: FloatArray, *, confidence: float = CONFIDENCE, overlap: float = OVERLAP, most: int = MOST
) -> list[Detection]:
    """Detections among rows as ``decode_heads`` makes them, the highest score first.

    A box's score is its objectness times its best class's; of equal scores the first row goes first.
    """
    if rows.shape[1] > 5:
        with np.errstate(invalid="ignore", over="ignore"):
            scores = rows[:, 4:5] * rows[:, 5:]
        labels = scores.argmax(axis=1)
        best = scores[np.arange(len(rows)), labels]
    else:
        best, labels = rows[:, 4], np.zeros(len(rows), np.intp)
    # Values that are no numbers are no detections, nor are boxes so large that their areas would be none.
    sane = (np.abs(rows[:, :4]) < 1e100).all(axis=1)
    good = np.flatnonzero((best > confidence) & sane & (rows[:, 4] > confidence))
    good = good[np.argsort(-best[good], kind="stable")][:_CANDIDATES]
    half = rows[good, 2:4] / 2
    boxes = np.concatenate([rows[good, :2] - half, rows[good, :2] + half], axis=1)
    kept = non_maximum_suppression(boxes, labels[good], overlap, most)
    return [
        Detection(tuple(map(float, boxes[i])), float(best[good[i]]), int(labels[good[i]]))  # type: ignore[arg-type]
        for i in kept
    ]


def non_maximum_suppression(
    boxes: FloatArray, labels: NDArray[np.intp], overlap: float = OVERLAP, most: int = MOST
) -> list[int]:
    """Numbers of the boxes ``[n, 4]`` that stay, in order, ``most`` at most; they come with the highest score first.

    A box goes when one of its class that stays overlaps it by more than ``overlap``.
    """
    area = (boxes[:, 2] - boxes[:, 0]).clip(0) * (boxes[:, 3] - boxes[:, 1]).clip(0)
    alive = np.ones(len(boxes), bool)
    kept = []
    for i in range(len(boxes)):
        if len(kept) == most:
            break
        if not alive[i]:
            continue
        kept.append(i)
        rest = np.flatnonzero(alive & (labels == labels[i]))
        rest = rest[rest > i]
        corner = np.minimum(boxes[rest, 2:], boxes[i, 2:]) - np.maximum(boxes[rest, :2], boxes[i, :2])
        shared = corner.clip(0).prod(axis=1)
        joint = area[rest] + area[i] - shared
        alive[rest[shared > overlap * joint]] = False
    return kept


def to_picture(detections: Sequence[Detection], placement: Placement, height: int, width: int) -> list[Detection]:
    """Detections in pixels of the picture that was fitted into the input, cut at its edges.

    Those that lie wholly in the borders are none.
    """
    found = []
    for detection in detections:
        corners = placement.to_picture(np.array(detection.box).reshape(2, 2))
        corners = corners.clip(0, [width, height])
        if (corners[0] < corners[1]).all():
            found.append(dataclasses.replace(detection, box=tuple(map(float, corners.ravel()))))
    return found
