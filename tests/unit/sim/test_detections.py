"""Decoding of YOLOv5's heads and non-maximum suppression, against the plainest code that does the same."""

import os

import numpy as np
import pytest

from sim.detections import ANCHORS, Detection, decode_heads, detect, non_maximum_suppression, to_picture
from sim.pictures import Placement

SEED = int(os.environ.get("RONDO_SEED", "1"))


@pytest.mark.parametrize("sigmoid", [True, False])
def test_decoding_value_by_value(sigmoid):
    rng = np.random.default_rng(SEED)
    classes = 2
    heads = [rng.normal(0, 2, (8 >> k, 12 >> k, 3 * (5 + classes))) for k in range(3)]
    if not sigmoid:
        heads = [1 / (1 + np.exp(-head)) for head in heads]
    rows = decode_heads(heads, sigmoid=sigmoid)
    index = 0
    for k, stride in enumerate((8, 16, 32)):
        for y in range(8 >> k):
            for x in range(12 >> k):
                for a in range(3):
                    v = heads[k][y, x, a * (5 + classes) : (a + 1) * (5 + classes)]
                    v = 1 / (1 + np.exp(-v)) if sigmoid else v
                    expected = [
                        (v[0] * 2 - 0.5 + x) * stride,
                        (v[1] * 2 - 0.5 + y) * stride,
                        (v[2] * 2) ** 2 * ANCHORS[k][a][0],
                        (v[3] * 2) ** 2 * ANCHORS[k][a][1],
                        *v[4:],
                    ]
                    assert np.allclose(rows[index], expected)
                    index += 1
    assert index == len(rows)


def test_decoding_extreme_values_does_not_overflow():
    rows = decode_heads([np.full((8 >> k, 8 >> k, 18), (-1e6, 1e6, 0)[k]) for k in range(3)], sigmoid=True)
    assert np.isfinite(rows).all()


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    joint = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / joint if joint else 0.0


@pytest.mark.parametrize("case", range(40))
def test_suppression_pair_by_pair(case):
    rng = np.random.default_rng([SEED, case])
    count = int(rng.integers(0, 60))
    corners = rng.integers(0, 40, (count, 2)).astype(float)
    boxes = np.concatenate([corners, corners + rng.integers(0, 25, (count, 2))], axis=1)
    labels = rng.integers(0, 3, count)
    limit = float(rng.uniform(0.1, 0.8))
    kept: list[int] = []
    for i in range(count):
        if all(labels[i] != labels[j] or overlap(boxes[i], boxes[j]) <= limit for j in kept):
            kept.append(i)
    assert non_maximum_suppression(boxes, labels, limit) == kept, f"seed {SEED}"


def test_no_more_boxes_than_wanted():
    boxes = np.array([[10 * k, 0, 10 * k + 5, 5] for k in range(20)], float)
    assert non_maximum_suppression(boxes, np.zeros(20, np.intp), most=7) == list(range(7))
    assert len(detect(np.hstack([boxes + 5, np.ones((20, 3))]), most=7)) == 7


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_without_sense_give_no_boxes_and_no_warnings(value):
    sound = np.tile([5.0, 5.0, 4.0, 4.0, 0.9, 0.9, 0.1], (7, 1))
    sound[:, :2] += np.arange(7)[:, None] * 50
    spoilt = sound + np.array([500, 500, 0, 0, 0, 0, 0])
    spoilt[np.arange(7), np.arange(7)] = value  # each row another of its numbers
    found = detect(np.concatenate([sound, spoilt]))
    assert {detection.box for detection in found} >= {(3 + 50 * k,) * 2 + (7 + 50 * k,) * 2 for k in range(7)}
    assert np.isfinite([detection.box for detection in found]).all()
    assert not {detection.box for detection in detect(spoilt[:4])}


def test_detections_come_by_score_then_row():
    rows = np.array(
        [
            [10, 10, 8, 8, 0.9, 0.5, 0.1],
            [50, 50, 8, 8, 0.9, 0.1, 0.9],
            [90, 90, 8, 8, 0.9, 0.5, 0.1],
            [10, 11, 8, 8, 0.8, 0.5, 0.1],  # goes for the first
            [10, 11, 8, 8, 0.8, 0.1, 0.5],  # another class
            [70, 70, 8, 8, 0.2, 1.0, 1.0],  # below the confidence
            [np.nan, 70, 8, 8, 1.0, 1.0, 1.0],
        ]
    )
    found = detect(rows)
    assert [(d.label, round(d.score, 2), d.box[:2]) for d in found] == [
        (1, 0.81, (46, 46)),
        (0, 0.45, (6, 6)),
        (0, 0.45, (86, 86)),
        (1, 0.4, (6, 7)),
    ]


def test_boxes_go_back_to_the_picture_and_end_at_its_edges():
    found = to_picture([Detection((-10, 0, 60, 40), 0.5, 3)], Placement(0.5, 5, 10), 100, 90)
    assert found == [Detection((0, 0, 90, 60), 0.5, 3)]


def test_a_box_in_the_borders_is_none():
    assert to_picture([Detection((0, 0, 60, 9), 0.5, 3)], Placement(0.5, 5, 10), 100, 90) == []
