"""Draws what a network found onto the picture."""

import colorsys
import io
import pathlib
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from sim.classes import label
from sim.detections import Detection
from sim.pictures import PictureError, Rgb
from sw.files import check_writable, write_whole

SUFFIXES = (".png", ".jpg", ".jpeg")
_GOLDEN = 0.618033988749895
_LONGEST_JPEG_SIDE = 65_500


def check_output(path: pathlib.Path, picture: Rgb | None = None) -> None:
    """See that a picture, or this one, can be written there. Raises ``PictureError``."""
    if path.suffix.lower() not in SUFFIXES:
        raise PictureError(f"{path}: the name of a picture ends in {', '.join(SUFFIXES)}")
    if picture is not None and _format(path) == "JPEG" and max(picture.shape) > _LONGEST_JPEG_SIDE:
        raise PictureError(f"{path}: JPEG has no sides above {_LONGEST_JPEG_SIDE:,} pixels; write a .png")
    try:
        check_writable(path)
    except OSError as error:
        raise PictureError(f"cannot write {path}: {error.strerror}") from None


def draw_detections(path: pathlib.Path, picture: Rgb, detections: Sequence[Detection], names: Sequence[str]) -> None:
    """Write the picture with a box, a name and a score for each detection, the least score first."""
    image = Image.fromarray(picture)
    line = max(2, round(sum(image.size) / 600))
    for detection in reversed(detections):
        colour = _colour(detection.label)
        box = _inside(detection.box, image.size)
        ImageDraw.Draw(image).rectangle(box, outline=colour, width=line)
        _caption(image, (box[0], box[1]), f"{label(detection.label, names)} {detection.score:.2f}", colour)
    _save(path, image)


def draw_caption(path: pathlib.Path, picture: Rgb, text: str) -> None:
    """Write the picture with a text in its upper left corner."""
    image = Image.fromarray(picture)
    _caption(image, (0, 0), text, _colour(0))
    _save(path, image)


def _inside(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    left, top, right, bottom = box
    left, right = min(max(left, 0), size[0] - 1), min(max(right, 0), size[0] - 1)
    top, bottom = min(max(top, 0), size[1] - 1), min(max(bottom, 0), size[1] - 1)
    return left, top, max(left, right), max(top, bottom)


def _caption(image: Image.Image, corner: tuple[float, float], text: str, colour: tuple[int, int, int]) -> None:
    """A text on its colour, above the corner if there is room."""
    canvas = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=max(12, round(sum(image.size) / 90)))
    left, top, right, bottom = canvas.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = max(0, min(corner[0], image.width - width))
    y = corner[1] - height if corner[1] >= height else corner[1]
    canvas.rectangle((x, y, x + width, y + height), fill=colour)
    dark = sum(part * weight for part, weight in zip(colour, (299, 587, 114), strict=True)) > 128_000
    canvas.text((x + 3 - left, y + 3 - top), text, font=font, fill=(0, 0, 0) if dark else (255, 255, 255))


def _colour(number: int) -> tuple[int, int, int]:
    """A colour of its own for every class."""
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, 0.85, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def _format(path: pathlib.Path) -> str:
    return "PNG" if path.suffix.lower() == ".png" else "JPEG"


def _save(path: pathlib.Path, image: Image.Image) -> None:
    """The file appears whole or not at all."""
    buffer = io.BytesIO()
    try:
        image.save(buffer, _format(path))
        write_whole(path, buffer.getvalue())
    except OSError as error:  # of Pillow too
        raise PictureError(f"cannot write {path}: {error.strerror or error}") from None
