"""Compares what lies in memory with the golden model, tensor by tensor."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sw.compiler import Compiled
from sw.layout import TensorLayout
from sw.program import StoredTensor

Int8Array = NDArray[np.int8]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where a tensor is not what it should be."""

    tensor: str
    position: tuple[int, ...]
    expected: int
    found: int
    count: int

    def __str__(self) -> str:
        y, x, c = self.position
        return (
            f"tensor {self.tensor} differs in {self.count} values, first at row {y}, column {x}, channel {c}: "
            f"{self.found} instead of {self.expected}"
        )


def tensor_of(stored: StoredTensor, n: int, read: Callable[[int, int, int], bytes]) -> Int8Array:
    """A stored tensor as int8 [height, width, channels]; ``read(base, offset, size)`` gives bytes of a buffer."""
    layout = TensorLayout(*stored.shape, n, stored.packed)
    return layout.unpack(read(stored.base, stored.offset, layout.size))


def compare(name: str, expected: Int8Array, found: Int8Array) -> Difference | None:
    """The first difference in row, column, channel order; None if there is none."""
    wrong = expected != found
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    position = tuple(int(i) for i in first)
    return Difference(name, position, int(expected[first]), int(found[first]), int(wrong.sum()))


@dataclasses.dataclass(frozen=True)
class Spread:
    """How much of the int8 range the tensors of a run use; a network of constants would prove nothing."""

    most_saturated: float
    """Largest share of values at -128 or 127 in any tensor."""
    fewest_values: int
    """Smallest number of different values in any tensor."""


def spread(values: Mapping[str, Int8Array]) -> Spread:
    """The worst tensor of each kind."""
    saturated = []
    different = []
    for tensor in values.values():
        counts = np.bincount(tensor.ravel().astype(np.int64) + 128, minlength=256)
        saturated.append((counts[0] + counts[255]) / tensor.size)
        different.append(int((counts > 0).sum()))
    return Spread(float(max(saturated)), min(different))


def check_tensors(
    compiled: Compiled, golden: Mapping[str, Int8Array], read: Callable[[int, int, int], bytes], *, views: bool = True
) -> Iterator[tuple[str, Difference | None]]:
    """Compare every stored tensor in program order, then (with ``views``) concatenations and upsamplings as views.

    Of a program that reuses its arena, only the outputs are still there to be compared.
    """
    program, lowered = compiled.program, compiled.lowered
    if not program.tensors_kept:
        for name in program.outputs:
            yield name, compare(name, golden[name], tensor_of(program.tensors[name], program.n, read))
        return
    values: dict[str, Int8Array] = {}
    for name in (*program.inputs, *lowered.stored):
        values[name] = tensor_of(program.tensors[name], program.n, read)
        yield name, compare(name, golden[lowered.aliases.get(name, name)], values[name])
    if views:
        for name, sources in lowered.views.items():
            parts = [values[s.tensor].repeat(2, 0).repeat(2, 1) if s.upsample else values[s.tensor] for s in sources]
            yield name, compare(name, golden[name], np.concatenate(parts, axis=2))
