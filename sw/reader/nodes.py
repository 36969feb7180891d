"""Operators between a file and a graph: those of `sw.operators`, and some that `sw.reader.fold` makes disappear."""

import dataclasses
from collections.abc import Callable, Sequence

from hw.spec.numerics import Int8Array
from sw.operators import Operator, Padding

Function = Callable[[Sequence[Int8Array]], Int8Array]
"""From the int8 values of each input, arrays of one shape, to the int8 values of the output."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pad:
    """Padding with `value`; folded into the operators that read it where they pad with the same value."""

    name: str
    inputs: tuple[str, ...]
    output: str
    padding: Padding
    value: int


@dataclasses.dataclass(frozen=True, eq=False)
class Pointwise:
    """An element-wise function of one or more tensors of one shape.

    It becomes an activation table when all its inputs come, by other such functions, from one tensor. ``kind`` is one
    of `sw.operators.ACTIVATIONS`.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    kind: str
    function: Function


@dataclasses.dataclass(frozen=True, eq=False)
class Reshape:
    """The same elements in the same order of ``[h, w, c]`` under another shape.

    Folded into a fully connected layer after it, which then has a kernel as large as the image before it, or into a
    binding at an end of the graph; without effect where it keeps the shape.
    """

    name: str
    inputs: tuple[str, ...]
    output: str


Node = Operator | Pad | Pointwise | Reshape
