"""What is asked of a picture, and what is answered, without a network being run."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from sim.classes import COCO, Classification
from sim.cli.meaning import Answer, Asked
from sim.detections import Detection
from sim.inputs import InputError
from sim.pictures import PictureError, crop, letterbox, read_picture
from sw.reader.model import Model, Port

GREY = np.full((60, 160, 3), 90, np.uint8)
PHOTO = np.random.default_rng(3).integers(0, 256, (60, 160, 3), np.uint8)
IMAGE = Port("image", (1, 64, 96, 3), "uint8", (1 / 255, 0))


def classifier(classes=10):
    return Model("classifier", (IMAGE,), (Port("y", (1, classes), "float32"),), ())


def detector(classes=80):
    heads = (Port(f"h{k}", (1, 8 >> k, 12 >> k, 3 * (5 + classes)), "int8", (1 / 256, -128)) for k in range(3))
    return Model("detector", (IMAGE,), tuple(heads), ())


def segmenter():
    return Model("segmenter", (IMAGE,), (Port("y", (1, 64, 96, 4), "float32"),), ())


def one_box(model):
    """Outputs in which a single box is found: class 2, centre (56, 40), 62 by 45 pixels of the input."""
    values = {port.name: np.full(port.shape, -128, np.int8) for port in model.outputs}
    numbers = model.outputs[1].shape[3] // 3
    values["h1"][0, 2, 3, numbers : numbers + 5] = [0, 0, 0, 0, 127]
    values["h1"][0, 2, 3, numbers + 7] = 127
    return values


def text(answer):
    console = Console(width=120, markup=False, file=io.StringIO())
    assert isinstance(console.file, io.StringIO)
    console.print(answer.table())
    return console.file.getvalue()


def fails(capsys, call):
    with pytest.raises(SystemExit) as caught:
        call()
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and len(lines) == 1, lines
    return lines[0]


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def labels(tmp_path):
    (tmp_path / "labels.txt").write_text("\n".join(f"name {k}" for k in range(10)))
    return tmp_path / "labels.txt"


def test_files_are_read(photo, labels, tmp_path):
    asked = Asked.read(photo, tmp_path / "out.png", labels)
    assert asked.picture is not None and np.array_equal(asked.picture, PHOTO)
    assert asked.labels == tuple(f"name {k}" for k in range(10))
    nothing = Asked.read(None, None, None)
    assert (nothing.picture, nothing.out, nothing.labels) == (None, None, None)


def test_bad_files_are_refused(photo, labels, tmp_path, capsys):
    assert "--draw needs a picture" in fails(capsys, lambda: Asked.read(None, tmp_path / "out.png", None))
    with pytest.raises(PictureError, match="is no picture"):
        Asked.read(labels, None, None)
    with pytest.raises(PictureError, match=r"ends in \.png"):
        Asked.read(photo, tmp_path / "out.gif", None)
    with pytest.raises(PictureError, match="cannot write"):
        Asked.read(photo, tmp_path / "none" / "out.png", None)
    with pytest.raises(PictureError, match="no text in UTF-8"):
        Asked.read(photo, None, photo)
    Image.new("L", (65_501, 1)).save(tmp_path / "wide.png")
    with pytest.raises(PictureError, match="no sides above"):
        Asked.read(tmp_path / "wide.png", tmp_path / "out.jpg", None)
    assert not (tmp_path / "out.jpg").exists()


def test_what_the_outputs_cannot_mean_is_refused(photo, labels, tmp_path, capsys):
    drawing = Asked.read(photo, tmp_path / "out.png", None)
    drawing.check(classifier())
    drawing.check(detector())
    assert "--draw is for YOLOv5 detectors and for classifiers" in fails(capsys, lambda: drawing.check(segmenter()))
    naming = Asked.read(None, None, labels)
    naming.check(classifier(10))
    naming.check(detector(10))
    assert "--labels is for" in fails(capsys, lambda: naming.check(segmenter()))
    assert "10 lines, but classifier has 11 classes" in fails(capsys, lambda: naming.check(classifier(11)))
    assert "10 lines, but classifier has 9 classes" in fails(capsys, lambda: naming.check(classifier(9)))
    assert "10 lines, but detector has 80 classes" in fails(capsys, lambda: naming.check(detector()))
    Asked.read(photo, None, None).check(segmenter())


def test_a_detector_sees_the_whole_picture_and_others_its_middle(photo):
    for model, how in ((detector(), letterbox), (classifier(), crop), (segmenter(), crop)):
        asked = Asked.read(photo, None, None)
        pixels, placement = how(PHOTO, 64, 96)
        assert np.array_equal(asked.inputs(model)["image"][0], pixels)
        assert asked.placement == placement


def test_without_a_picture_there_is_another_and_no_answer():
    asked = Asked.read(None, None, None)
    inputs = asked.inputs(classifier())
    assert inputs["image"].shape == IMAGE.shape and inputs["image"].dtype == np.uint8
    assert asked.answer(classifier(), {"y": np.zeros((1, 10), np.float32)}) is None


def test_a_picture_for_a_network_without_one_is_refused(photo):
    model = Model("words", (Port("x", (1, 490), "int8", (1, 0)),), classifier().outputs, ())
    with pytest.raises(InputError, match="only input is a picture"):
        Asked.read(photo, None, None).inputs(model)


def test_boxes_are_those_of_the_picture(photo, tmp_path):
    model = detector()
    asked = Asked.read(photo, tmp_path / "out.png", None)
    asked.check(model)
    asked.inputs(model)
    answer = asked.answer(model, one_box(model))
    assert answer is not None and answer.detections is not None
    (found,) = answer.detections
    # The picture, 160 by 60, lies in rows 14 to 50 of the input at 0.6 of its size.
    expected = [(56 - 31) / 0.6, (40 - 22.5 - 14) / 0.6, (56 + 31) / 0.6, 60]
    assert found.box == pytest.approx(expected) and found.label == 2
    assert answer.names == COCO
    words = text(answer).split()
    assert "car" in words and [str(round(side)) for side in expected] == words[words.index("car") + 4 :: 2][:4]
    answer.draw(tmp_path / "out.png")
    left, top, right, _ = (round(side) for side in expected)
    changed = (read_picture(tmp_path / "out.png") != PHOTO).any(axis=2)
    assert changed[top : top + 1, left:right].mean() > 0.9 and changed.mean() < 0.5


def test_names_of_a_detector_of_other_classes(photo, labels):
    for path, name in ((labels, "name 2"), (None, "class 2")):
        asked = Asked.read(photo, None, path)
        model = detector(10)
        asked.check(model)
        asked.inputs(model)
        answer = asked.answer(model, one_box(model))
        assert answer is not None and name in text(answer) and "car" not in text(answer)


def test_the_top_five(photo, labels, tmp_path):
    model = classifier()
    asked = Asked.read(photo, tmp_path / "out.png", labels)
    asked.inputs(model)
    values = np.array([[0.01, 0.02, 0.5, 0.03, 0.04, 0.3, 0.05, 0.02, 0.02, 0.01]], np.float32)
    answer = asked.answer(model, {"y": values})
    assert answer is not None
    assert answer.classification is not None and answer.classification.labels == (2, 5, 6, 4, 3)
    printed = text(answer)
    places = [printed.index(f"name {k}") for k in (2, 5, 6, 4, 3)]
    assert places == sorted(places) and printed.count("name") == 5
    assert "0.5000" in printed and "0.3000" in printed
    answer.draw(tmp_path / "out.png")
    changed = (read_picture(tmp_path / "out.png") != PHOTO).any(axis=2)
    assert changed[:10, :20].mean() > 0.9 and not changed[30:].any()


def test_a_segmenter_has_no_answer(photo):
    asked = Asked.read(photo, None, None)
    asked.inputs(segmenter())
    assert asked.answer(segmenter(), {"y": np.zeros((1, 64, 96, 4), np.float32)}) is None


def test_nothing_is_drawn_without_a_picture(tmp_path):
    answer = Answer(Asked(None, None, ("a",)), ("a",), detections=[Detection((0, 0, 1, 1), 0.5, 0)])
    answer.draw(tmp_path / "out.png")
    assert list(tmp_path.iterdir()) == []


def test_nothing_found_is_an_answer_too(tmp_path):
    answer = Answer(Asked(GREY, tmp_path / "out.png", None), COCO, detections=[])
    assert "Detections: 0" in text(answer)
    answer.draw(tmp_path / "out.png")
    assert np.array_equal(read_picture(tmp_path / "out.png"), GREY)


def test_names_are_no_markup():
    answer = Answer(Asked(GREY, None, ("[red]a",)), ("[red]a",), classification=Classification((0,), (1.0,)))
    assert "[red]a" in text(answer)
