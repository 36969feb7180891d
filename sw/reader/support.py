"""What readers say of operators: which unit of the NPU runs them, with what limits."""

import dataclasses
import typing

from sw.reader.partition import Role

LARGEST_WINDOW = 255
"""Most rows or columns of a kernel, and largest stride and dilation."""
LARGEST_SIDE = 32767
"""Most rows, columns or channels of a tensor."""

_Translate = typing.TypeVar("_Translate")


class Unsupported(Exception):
    """The NPU cannot run an operator; the reason, fit for the user."""


@dataclasses.dataclass(frozen=True)
class Support(typing.Generic[_Translate]):
    """What becomes of an operator: ``unit`` and ``limits`` are for the documents; ``inputs`` it has at least."""

    unit: str
    limits: str
    role: Role
    translate: _Translate | None = None
    inputs: int = 1
