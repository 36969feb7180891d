"""What a network is given to work on: a picture, a file of arrays, or, if nobody says, something fit for a test."""

import io
import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np

from sim.pictures import Placement, Rgb, fit, is_picture
from sw.files import is_no_file, write_whole
from sw.images import PHOTOGRAPHS, photograph_pixels
from sw.reader.model import Array, Model, Port, Values

PHOTOGRAPH = "coffee"
"""The picture that a network sees when none is given, one of scikit-image's."""
SEED = 0
"""Of the noise that inputs which are no pictures see when none are given."""


class InputError(ValueError):
    """Inputs that do not suit the network; the message is one line fit for the user."""


def default(model: Model) -> Values:
    """A photograph for each input that is a picture, uniform noise for all others."""
    assert PHOTOGRAPH in PHOTOGRAPHS
    picture = photograph_pixels(PHOTOGRAPH)
    generator = np.random.default_rng(SEED)
    return {port.name: fit(picture, port)[0] if is_picture(port) else _noise(port, generator) for port in model.inputs}


def _noise(port: Port, generator: np.random.Generator) -> Array:
    kind = np.dtype(port.dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return generator.integers(info.min, info.max, port.shape, kind, endpoint=True)
    return generator.uniform(-1, 1, port.shape).astype(kind)


def of_picture(model: Model, picture: Rgb, *, cropped: bool = False) -> tuple[Values, Placement]:
    """A picture, and where it lies in the network's input, as ``sim.pictures.fit`` puts it there.

    Raises ``InputError`` unless the network's only input is a picture.
    """
    if len(model.inputs) != 1 or not is_picture(model.inputs[0]):
        shapes = ", ".join(f"{port.name!r} {list(port.shape)}" for port in model.inputs)
        raise InputError(f"--image is for networks whose only input is a picture; {model.name} has {shapes}")
    (port,) = model.inputs
    values, placement = fit(picture, port, cropped=cropped)
    return {port.name: values}, placement


def of_file(model: Model, path: pathlib.Path) -> Values:
    """Arrays from a NumPy file: ``.npy`` for the only input, ``.npz`` with all of them by name.

    Raises ``InputError`` for a file that cannot be read, and for arrays of another shape or type than the network's.
    """
    arrays = _load(path)
    if isinstance(arrays, np.ndarray):
        if len(model.inputs) != 1:
            names = ", ".join(port.name for port in model.inputs)
            raise InputError(f"{path}: the network has {len(model.inputs)} inputs; a .npz file with {names} is needed")
        arrays = {model.inputs[0].name: arrays}
    missing = [port.name for port in model.inputs if port.name not in arrays]
    if missing:
        raise InputError(f"{path}: has no array {missing[0]!r}")
    return {port.name: _checked(arrays[port.name], port, path) for port in model.inputs}


def save(path: pathlib.Path, outputs: Values) -> None:
    """Write arrays as ``.npz``, each by its name. The file appears whole or not at all."""
    buffer = io.BytesIO()
    # Not by savez, which takes some names for options.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    write_whole(path, buffer.getvalue())


def _load(path: pathlib.Path) -> Array | Mapping[str, Array]:
    if is_no_file(path):
        raise InputError(f"cannot read {path}: it is no file")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            with content:
                return {name: content[name] for name in content.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or 'it is no NumPy file'}") from None
    except Exception:  # anything can come of a damaged file
        raise InputError(f"{path}: is no whole .npy or .npz file of numbers") from None


def _checked(array: Array, port: Port, path: pathlib.Path) -> Array:
    if array.dtype != np.dtype(port.dtype):
        raise InputError(f"{path}: input {port.name!r} is {port.dtype}, not {array.dtype}")
    if array.shape not in (port.shape, port.shape[1:]) or array.size != np.prod(port.shape):
        raise InputError(f"{path}: input {port.name!r} has shape {list(port.shape)}, not {list(array.shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{path}: input {port.name!r} has values that are no finite numbers")
    return np.ascontiguousarray(array).reshape(port.shape)
