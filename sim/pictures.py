"""Pictures as a network's input: read, fitted into its size as YOLOv5 does it, quantised as its port says."""

import dataclasses
import math
import pathlib
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from sw import images
from sw.files import is_no_file
from sw.reader.model import Array, Port

Rgb = NDArray[np.uint8]
"""uint8 ``[height, width, 3]``, red first."""

SMALLEST_SIDE = 8
"""A tensor with a side below this is no picture."""


class PictureError(ValueError):
    """A picture that cannot be read or written; the message is one line fit for the user, whatever names it holds."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join("".join(c if c.isprintable() else " " for c in message).split()))


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a picture lies in a network's input.

    A pixel of the input is one of the picture times ``scale``, plus ``left`` or ``top``.
    """

    scale: float
    left: float
    top: float

    def to_picture(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points ``[..., 2]`` (x, y) of the input as points of the picture."""
        return (points - np.array([self.left, self.top])) / self.scale


def read_picture(path: pathlib.Path) -> Rgb:
    """Read a picture of any format that Pillow knows, turned upright. Raises ``PictureError``.

    All but EPS, which Pillow would hand to another program, and pictures of real numbers, whose white nobody knows.
    """
    check_file(path)
    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=[name for name in Image.ID if name != "EPS"]) as image:
                image.load()
                return np.array(_to_rgb(_upright(image), path))
    except PictureError:
        raise
    except UnidentifiedImageError:
        raise PictureError(f"{path}: is no picture") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"{path}: has too many pixels") from None
    except OSError as error:
        raise PictureError(f"cannot read {path}: {error.strerror or error or 'it is damaged'}") from None
    except Exception as error:  # a damaged file may raise anything in a decoder
        raise PictureError(f"{path}: is damaged: {type(error).__name__}") from None


def check_file(path: pathlib.Path) -> None:
    """Refuse what is there but is no file. Raises ``PictureError``."""
    if is_no_file(path):
        raise PictureError(f"cannot read {path}: it is no file")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged notes beside a good picture may raise anything, and say nothing
        return image


def _to_rgb(image: Image.Image, path: pathlib.Path) -> Image.Image:
    if image.mode == "F":
        raise PictureError(f"{path}: holds real numbers; levels of 8 or 16 bits are wanted")
    if image.mode.startswith("I"):
        # 16 bits a pixel: the upper ones; Pillow would clip.
        values = np.array(image).astype(np.int64).clip(0, 0xFFFF) >> 8
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        opaque = Image.new("RGBA", image.size, (255, 255, 255, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")


def letterbox(picture: Rgb, height: int, width: int) -> tuple[Rgb, Placement]:
    """Fit a picture between grey borders, its sides' ratio kept, as YOLOv5's ``letterbox`` with ``auto=False``."""
    scale, rows, columns = images.letterbox_place(*picture.shape[:2], height, width)
    return images.letterbox(picture, height, width), Placement(scale, columns.start, rows.start)


def crop(picture: Rgb, height: int, width: int) -> tuple[Rgb, Placement]:
    """The middle of a picture, as large as the sides' ratio allows, scaled to fill the input.

    Unlike ``letterbox``, which does as OpenCV, it averages when it scales down.
    """
    old_height, old_width = picture.shape[:2]
    scale = max(height / old_height, width / old_width)
    left, top = max(0.0, (old_width - width / scale) / 2), max(0.0, (old_height - height / scale) / 2)
    right, bottom = min(left + width / scale, old_width), min(top + height / scale, old_height)
    # The box first: a long narrow picture scaled as a whole would fill the memory.
    x, y = math.floor(left), math.floor(top)
    part = Image.fromarray(picture[y : math.ceil(bottom), x : math.ceil(right)])
    scaled = part.resize(
        (width, height), Image.Resampling.BILINEAR, (left - x, top - y, min(right - x, part.width), bottom - y)
    )
    return np.array(scaled), Placement(scale, -left * scale, -top * scale)


def is_picture(port: Port) -> bool:
    """Whether a port's shape is that of one grey or coloured picture."""
    if len(port.shape) != 4 or port.shape[0] != 1:
        return False
    height, width, channels = _sides(port)
    return channels in (1, 3) and min(height, width) >= SMALLEST_SIDE


def _sides(port: Port) -> tuple[int, int, int]:
    if port.channels_first:
        _, channels, height, width = port.shape
    else:
        _, height, width, channels = port.shape
    return height, width, channels


def fit(picture: Rgb, port: Port, *, cropped: bool = False) -> tuple[Array, Placement]:
    """A picture as an array of a port's shape and type, and where it lies in it.

    It is letterboxed, or with ``cropped`` fills the input. One channel is grey by ITU-R 601. Values are those of
    ``real_range``.
    """
    height, width, channels = _sides(port)
    pixels, placement = (crop if cropped else letterbox)(picture, height, width)
    if channels == 1:
        pixels = np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
    low, high = real_range(port)
    real = low + pixels.astype(np.float64) / 255 * (high - low)
    kind = np.dtype(port.dtype)
    if kind.kind in "iu":
        if port.quantisation is not None:
            scale, zero_point = port.quantisation
            real = real / scale + zero_point
        info = np.iinfo(kind)
        real = np.floor(real + 0.5).clip(info.min, info.max)
    array = real.astype(kind)[None]
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2) if port.channels_first else array), placement


def real_range(port: Port) -> tuple[float, float]:
    """What black and white are to a network, from the numbers that its input can stand for.

    Floats, and integers that stand for about 0 to 1: 0 to 1. Integers that stand for numbers from well below 0 on: -1
    to 1. Integers that stand for numbers far beyond 1, or are plain: 0 to 255, or -128 to 127 if they reach as
    far below 0 as above.
    """
    kind = np.dtype(port.dtype)
    if kind.kind == "f":
        return 0.0, 1.0
    info = np.iinfo(kind)
    scale, zero_point = port.quantisation or (1.0, 0)
    low, high = (info.min - zero_point) * scale, (info.max - zero_point) * scale
    if high > 16:
        return (-128.0, 127.0) if low < -64 else (0.0, 255.0)
    return (-1.0, 1.0) if low < -0.25 else (0.0, 1.0)
