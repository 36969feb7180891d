"""Photographs as network inputs, letterboxed as YOLOv5 does it."""

import numpy as np
from numpy.typing import NDArray

PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket")
"""Names of photographs that scikit-image ships."""

BORDER = 114
"""Grey level of the letterbox."""


def photograph(name: str, height: int, width: int) -> NDArray[np.int8]:
    """Return a photograph as the int8 input of a network.

    Parameters
    ----------
    name
        One of `PHOTOGRAPHS`.
    height, width
        Size of the result in pixels.

    Returns
    -------
    numpy.ndarray
        int8 ``[height, width, 3]``, red first; scale 1/255, zero point -128.

    Raises
    ------
    ValueError
        If there is no such photograph.
    ModuleNotFoundError
        If scikit-image is not installed.
    """
    return quantise_image(letterbox(photograph_pixels(name), height, width))


def photograph_pixels(name: str) -> NDArray[np.uint8]:
    """Return a photograph as it is, uint8 ``[height, width, 3]``, red first; raises what `photograph` raises."""
    if name not in PHOTOGRAPHS:
        raise ValueError(f"photograph must be one of {', '.join(PHOTOGRAPHS)}, not {name!r}")
    try:
        from skimage import data
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("photographs come from scikit-image: install the package 'scikit-image'") from error
    image: NDArray[np.uint8] = getattr(data, name)()
    return image


def quantise_image(image: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Shift grey levels 0..255 to int8 -128..127."""
    return (image.astype(np.int16) - 128).astype(np.int8)


def letterbox(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Scale ``[h, w, 3]`` to fit, keeping its aspect, centred between grey borders."""
    _, rows, columns = letterbox_place(image.shape[0], image.shape[1], height, width)
    out = np.full((height, width, 3), BORDER, np.uint8)
    out[rows, columns] = resize(image, rows.stop - rows.start, columns.stop - columns.start)
    return out


def letterbox_place(image_height: int, image_width: int, height: int, width: int) -> tuple[float, slice, slice]:
    """Where an image lies in its letterbox: its scale, its rows and its columns.

    Of an odd number of border pixels the last one is on the right or at the bottom.
    """
    ratio = min(height / image_height, width / image_width)
    inner_height = max(1, round(image_height * ratio))
    inner_width = max(1, round(image_width * ratio))
    top = (height - inner_height) // 2
    left = (width - inner_width) // 2
    return ratio, slice(top, top + inner_height), slice(left, left + inner_width)


def resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Scale ``[h, w, c]`` by bilinear interpolation between pixel centres."""
    rows, row_weights = _neighbours(image.shape[0], height)
    columns, column_weights = _neighbours(image.shape[1], width)
    # Rows are picked first: numbers of a whole photograph in float64 would take gigabytes.
    upper, lower = (
        image[row][:, columns[0]] * (1 - column_weights[:, None]) + image[row][:, columns[1]] * column_weights[:, None]
        for row in rows
    )
    tall = upper * (1 - row_weights[:, None, None]) + lower * row_weights[:, None, None]
    return np.floor(tall + 0.5).astype(np.uint8)


def _neighbours(size_in: int, size_out: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]:
    """For each output position: the two input positions around it, and the weight of the second."""
    centres = np.clip((np.arange(size_out) + 0.5) * size_in / size_out - 0.5, 0, size_in - 1)
    first = np.floor(centres).astype(np.intp)
    return (first, np.minimum(first + 1, size_in - 1)), centres - first
