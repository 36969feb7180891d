"""Drawing: onto the picture and nowhere else, into files that appear whole."""

import numpy as np
import pytest
from PIL import Image

from sim.detections import Detection
from sim.draw import check_output, draw_caption, draw_detections
from sim.pictures import PictureError, read_picture

GREY = np.full((200, 300, 3), 90, np.uint8)


def test_boxes_touch_nothing_else(tmp_path):
    out = tmp_path / "out.png"
    draw_detections(out, GREY, [Detection((100, 80, 180, 160), 0.5, 2)], ["a", "b", "c"])
    changed = (read_picture(out) != GREY).any(axis=2)
    assert changed[80:160, 100:102].all() and changed[159:161, 100:180].all()
    changed[50:162, 98:182] = False
    assert not changed.any()


def test_boxes_at_and_beyond_the_edges(tmp_path):
    boxes = [(-50, -50, 20, 20), (290, 190, 400, 300), (0, 0, 300, 200), (10, 10, 10, 10)]
    draw_detections(tmp_path / "out.jpg", GREY, [Detection(box, 0.9, k) for k, box in enumerate(boxes)], [])
    assert read_picture(tmp_path / "out.jpg").shape == GREY.shape


def test_a_caption_on_a_picture_of_one_pixel(tmp_path):
    draw_caption(tmp_path / "out.png", GREY[:1, :1], "a long name that does not fit")
    assert read_picture(tmp_path / "out.png").shape == (1, 1, 3)


@pytest.mark.parametrize("name", ["out.gif", "out", "none/out.png", "folder.png"])
def test_where_it_cannot_be_written(name, tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(PictureError, match=r"out|folder"):
        check_output(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_sides_that_jpeg_cannot_hold_are_refused_beforehand(tmp_path):
    wide = np.zeros((1, 65_501, 3), np.uint8)
    with pytest.raises(PictureError, match="no sides above 65,500"):
        check_output(tmp_path / "out.jpg", wide)
    check_output(tmp_path / "out.png", wide)
    check_output(tmp_path / "out.jpg", wide[:, 1:])
    draw_caption(tmp_path / "out.jpg", wide[:, 1:], "widest")


def test_names_in_any_script_can_be_drawn(tmp_path):
    for text in ("", "\u72ac", "\U0001f415", "x" * 220, "a\u0301"):
        draw_caption(tmp_path / "out.png", GREY, text)


def test_a_class_has_one_colour_and_others_have_others(tmp_path):
    def colour(number):
        draw_detections(tmp_path / "out.png", GREY, [Detection((100, 80, 180, 160), 0.5, number)], [])
        return tuple(read_picture(tmp_path / "out.png")[159, 140])

    colours = [colour(number) for number in range(20)]
    assert len(set(colours)) == 20 and [colour(number) for number in range(20)] == colours


def test_a_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    out = tmp_path / "out.png"
    draw_caption(out, GREY, "old")
    before = out.read_bytes()

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fails)
    with pytest.raises(PictureError, match="No space left"):
        draw_caption(out, GREY, "new")
    assert out.read_bytes() == before
