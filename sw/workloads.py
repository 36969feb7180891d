"""Ready-made quantised networks."""

from functools import lru_cache

import numpy as np

from sw.float_graph import FloatArray
from sw.graph import Graph
from sw.images import PHOTOGRAPHS, photograph
from sw.initial_weights import initial_weights
from sw.quantise import calibrate, quantise
from sw.yolov5 import INPUT, yolov5


@lru_cache(maxsize=4)
def quantised_yolov5(
    variant: str = "s",
    height: int = 640,
    width: int = 640,
    seed: int = 0,
    calibration_size: tuple[int, int] | None = None,
) -> Graph:
    """Return a quantised YOLOv5 v6.0 with reproducible weights; kept in memory for the next call.

    Parameters
    ----------
    variant
        One of 'n', 's', 'm', 'l', 'x'.
    height, width
        Input size, multiples of 32.
    seed
        Decides the weights, together with the calibration size.
    calibration_size
        Height and width at which scales are calibrated; the input size itself by default.  A small one is much faster
        and serves whenever the values do not matter.

    Raises
    ------
    ValueError
        If there is no such variant or size.
    """
    structure = yolov5(variant, height, width)
    calibration = yolov5(variant, *(calibration_size or (height, width)))
    images = _images(*calibration.inputs[INPUT][:2])
    weights = initial_weights(calibration, images, seed)
    return quantise(structure, weights, calibrate(calibration, weights, images))


def _images(height: int, width: int) -> list[FloatArray]:
    """Calibration photographs in 0..1."""
    quantised = [photograph(name, height, width) for name in PHOTOGRAPHS]
    return [(image.astype(np.float32) + 128) / np.float32(255) for image in quantised]
