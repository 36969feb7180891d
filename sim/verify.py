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


def check_tensors(
    compiled: Compiled, golden: Mapping[str, Int8Array], read: Callable[[int, int, int], bytes], *, views: bool = True
) -> Iterator[tuple[str, Difference | None]]:
    """Compare every stored tensor in program order, then (with ``views``) concatenations and upsamplings as views."""
    program, lowered = compiled.program, compiled.lowered
    values: dict[str, Int8Array] = {}
    for name in (*program.inputs, *lowered.stored):
        values[name] = tensor_of(program.tensors[name], program.n, read)
        yield name, compare(name, golden[lowered.aliases.get(name, name)], values[name])
    if views:
        for name, sources in lowered.views.items():
            parts = [values[s.tensor].repeat(2, 0).repeat(2, 1) if s.upsample else values[s.tensor] for s in sources]
            yield name, compare(name, golden[name], np.concatenate(parts, axis=2))
