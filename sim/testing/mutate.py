"""Changes random fields of a TFLite file, through the object API, so that it stays a well-formed file."""

from collections import defaultdict
from typing import Any

import numpy as np

from sim.testing.tflite_files import pack, unpack

_INTS = (0, 1, -1, 2, 3, 4, 5, 8, 16, 64, 127, 128, 255, 256, -128, 1000, 65536, 2**31 - 1, -(2**31))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, 1e-10, 1e-45, 1e10, 3e38, np.inf, -np.inf, np.nan)
_TEXTS = ("", "x", "a\nb", "\x1b[1m", "[red]", "é", "n" * 1000, None)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with one to three fields changed.

    Raises
    ------
    ValueError, TypeError, OverflowError, struct.error, AttributeError
        If the result cannot be written: try again.
    """
    model = unpack(data)
    for _ in range(int(rng.choice((1, 1, 1, 2, 3)))):
        kinds = _objects(model)
        targets = kinds[str(rng.choice(sorted(kinds)))]
        target = targets[int(rng.integers(len(targets)))]
        field = str(rng.choice(sorted(vars(target))))
        setattr(target, field, _changed(getattr(target, field), rng))
    return pack(model)


def _objects(model: Any) -> dict[str, list[Any]]:
    """All tables of a model by kind."""
    found: dict[str, list[Any]] = defaultdict(list)

    def visit(item: Any) -> None:
        if isinstance(item, list):
            for part in item:
                visit(part)
        elif hasattr(item, "Pack"):
            found[type(item).__name__].append(item)
            for part in vars(item).values():
                visit(part)

    visit(model)
    return found


def _changed(value: Any, rng: np.random.Generator) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + int(rng.integers(-3, 4)) if rng.random() < 0.5 else int(rng.choice(_INTS))
        case float():
            return value * float(rng.uniform(0.1, 3)) if rng.random() < 0.3 else float(rng.choice(_FLOATS))
        case bytes() | str():
            return _TEXTS[int(rng.integers(len(_TEXTS)))]
        case np.ndarray():
            return _changed_array(value.copy(), rng)
        case list() if value:
            return _changed_list(list(value), rng)
    return value


def _changed_array(array: Any, rng: np.random.Generator) -> Any:
    if array.ndim != 1 or not array.size:
        return np.zeros(1, array.dtype)
    place = int(rng.integers(array.size))
    match int(rng.integers(6)):
        case 0:
            return array[:place]
        case 1:
            return np.append(array, array[place])
        case 2:
            return np.delete(array, place)
        case 3:
            other = int(rng.integers(array.size))
            array[[place, other]] = array[[other, place]]
        case 4 if array.dtype.kind != "f":
            array[place] += int(rng.choice((-1, 1)))
        case _ if array.dtype.kind == "f":
            array[place] = rng.choice(_FLOATS)
        case _:
            array[place] = np.array(int(rng.choice(_INTS))).astype(array.dtype)
    return array


def _changed_list(items: list[Any], rng: np.random.Generator) -> list[Any]:
    place, other = (int(i) for i in rng.integers(len(items), size=2))
    match int(rng.integers(4)):
        case 0:
            del items[place]
        case 1:
            items.insert(other, items[place])
        case 2:
            items[place], items[other] = items[other], items[place]
        case _:
            items[place] = items[other]
    return items
