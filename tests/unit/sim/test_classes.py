"""What outputs mean is decided by their shapes; and what classes are called."""

import numpy as np
import pytest

from sim.classes import (
    COCO,
    Classification,
    Detections,
    count,
    heads,
    is_classifier,
    is_detector,
    label,
    meaning,
    read_labels,
    top,
)
from sim.pictures import PictureError
from sw.reader.model import Model, Port, of_graph
from sw.workloads import quantised_yolov5


def model(outputs, size=(64, 96), *, first=False):
    shape = (1, 3, *size) if first else (1, *size, 3)
    return Model("m", (Port("x", shape, "int8", (1 / 255, -128), channels_first=first),), tuple(outputs), ())


def test_coco():
    assert len(COCO) == len(set(COCO)) == 80
    assert (COCO[0], COCO[79], label(2, COCO), label(80, COCO)) == ("person", "toothbrush", "car", "class 80")


@pytest.mark.parametrize("first", [False, True])
def test_three_heads_are_a_detector_in_any_order(first):
    sizes = [(8, 12), (4, 6), (2, 3)]
    ports = [
        Port(f"h{k}", (1, 21, *size) if first else (1, *size, 21), "float32", None, first)
        for k, size in enumerate(sizes)
    ]
    network = model([ports[1], ports[2], ports[0]], first=first)
    assert is_detector(network)
    assert [port.name for port in heads(network) or ()] == ["h0", "h1", "h2"]
    values = {port.name: np.full(port.shape, -9.0, np.float32) for port in ports}
    channel = (0, slice(None), 3, 4) if first else (0, 3, 4)
    values["h0"][channel] = 9.0
    found = meaning(network, values)
    assert isinstance(found, Detections) and len(found.found) > 0
    assert 8 * 4 < sum(found.found[0].box[0::2]) / 2 < 8 * 6


@pytest.mark.parametrize("kind", ["sigmoid", "raw"])
def test_int8_heads_are_decoded_by_what_they_can_stand_for(kind):
    scale, zero_point = (1 / 256, -128) if kind == "sigmoid" else (0.1, 0)
    ports = [Port(f"h{k}", (1, 8 >> k, 12 >> k, 18), "int8", (scale, zero_point)) for k in range(3)]
    values = {port.name: np.full(port.shape, -128, np.int8) for port in ports}
    middle = 0 if kind == "sigmoid" else zero_point  # a half after the sigmoid: the middle of a cell, an anchor's size
    values["h1"][0, 2, 3, 6:12] = [middle] * 4 + [127, 127]
    found = meaning(model(ports), values)
    assert isinstance(found, Detections)
    (only,) = found.found
    assert only.box == pytest.approx((56 - 62 / 2, 40 - 45 / 2, 56 + 62 / 2, 40 + 45 / 2))
    assert only.score > 0.99 and only.label == 0


def test_heads_of_the_projects_own_yolov5_are_a_detector_of_coco():
    graph = quantised_yolov5("n", 64, 96, calibration_size=(64, 64))
    network = of_graph(graph)
    assert is_detector(network) and count(network) == len(COCO)
    off = {port.name: np.full(port.shape, -128, np.int8) for port in network.outputs}
    assert meaning(network, off) == Detections(())
    on = {port.name: np.full(port.shape, 127, np.int8) for port in network.outputs}
    found = meaning(network, on)
    assert isinstance(found, Detections) and found.found[0].score > 0.98


@pytest.mark.parametrize("change", ["channels", "sides", "one missing", "no picture"])
def test_what_is_nearly_three_heads_is_none(change):
    ports = [Port(f"h{k}", (1, 8 >> k, 12 >> k, 21), "float32") for k in range(3)]
    network = model(ports)
    assert is_detector(network)
    if change == "channels":
        network = model([ports[0], ports[1], Port("h2", (1, 2, 3, 24), "float32")])
    elif change == "sides":
        network = model([ports[0], ports[1], Port("h2", (1, 3, 2, 21), "float32")])
    elif change == "one missing":
        network = model(ports[:2])
    else:
        network = Model("m", (Port("x", (1, 64 * 96 * 3), "float32"),), tuple(ports), ())
    assert not is_detector(network) and count(network) is None


@pytest.mark.parametrize("pixels", [False, True])
def test_rows_of_decoded_boxes(pixels):
    boxes = 3 * (8 * 12 + 4 * 6 + 2 * 3)
    network = model([Port("rows", (1, boxes, 7), "float32")])
    values = np.zeros((1, boxes, 7), np.float32)
    values[0, :, :2] = np.linspace(0.01, 0.99, boxes)[:, None]
    values[0, :, 2:4] = 0.05
    values[0, 40, 4:] = (0.9, 0.1, 1.0)
    values[0, 40, 2] = 4.5  # wide beyond the picture, as YOLOv5 allows
    if pixels:
        values[..., :4] *= [96, 64, 96, 64]
    found = meaning(network, {"rows": values})
    assert isinstance(found, Detections)
    (only,) = found.found
    assert only.label == 1
    assert only.box[3] - only.box[1] == pytest.approx(0.05 * 64, abs=1e-3)


@pytest.mark.parametrize("shape", [(1, 10), (1, 1, 1, 10), (10,), (1, 10, 1, 1)])
def test_one_vector_is_a_classifier(shape):
    network = model([Port("y", shape, "float32")])
    assert is_classifier(network) and not is_detector(network)
    found = meaning(network, {"y": np.arange(10, dtype=np.float32).reshape(shape)})
    assert isinstance(found, Classification)
    assert found.labels == (9, 8, 7, 6, 5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5, 5, 4), (), (1, 64 * 96 * 3)])
def test_other_outputs_mean_nothing(shape):
    network = model([Port("y", shape, "float32")])
    assert not is_classifier(network) and not is_detector(network)
    assert meaning(network, {"y": np.zeros(shape, np.float32)}) is None


def test_top_takes_probabilities_as_they_are_and_others_through_softmax():
    assert top(np.array([0.1, 0.6, 0.3])).scores == (0.6, 0.3, 0.1)
    logits = np.array([1.0, 3.0, -2.0])
    expected = np.exp(logits) / np.exp(logits).sum()
    assert top(logits).labels == (1, 0, 2)
    assert top(logits).scores == pytest.approx((expected[1], expected[0], expected[2]))
    assert top(np.array([1e300, -1e300, np.nan])).labels[0] == 0


def test_labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("cat\nd\u2028og\n\nbird\n\n", encoding="utf-8")
    assert read_labels(path) == ("cat", "d og", "", "bird")
    for content in (b"", b"\n\n", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(PictureError, match="labels"):
            read_labels(path)
    path.write_text("cat\n" + "d" * 201)
    with pytest.raises(PictureError, match="line 2 is longer than the 200 characters"):
        read_labels(path)
    path.write_bytes(b"cat\r\ndog\r\n")
    assert read_labels(path) == ("cat", "dog")
    with pytest.raises(PictureError, match="File name too long"):
        read_labels(tmp_path / ("long" * 100))
    with pytest.raises(PictureError, match="no file"):
        read_labels(tmp_path)
