"""From translated operators to stages: cut into parts, folded, bound; what turns out not to fit goes to the host."""

import dataclasses
from collections.abc import Callable, Sequence

from sw.reader.fold import Unfoldable
from sw.reader.model import ModelError, Stage
from sw.reader.nodes import Node
from sw.reader.partition import Item, Part, Role, partition

_MOST_DEMOTIONS = 64
"""How many operators may turn out one by one not to fit where they stand."""


@dataclasses.dataclass
class Candidate:
    """An operator of the file. ``nodes`` do it on the NPU, the last is called ``key``; there are none if it cannot.

    ``role`` is what it has on the NPU; ``border``: the host does it at either end without being asked; ``reason``: why
    the NPU does not.
    """

    place: str
    key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    role: Role
    nodes: list[Node] | None
    border: bool = False
    reason: str = ""


def make_stages(
    candidates: Sequence[Candidate],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    host_fallback: bool,
    npu: Callable[[Part], Stage],
    host: Callable[[Part], Stage],
) -> tuple[Stage, ...]:
    """Stages of a network whose operators come in an order in which they can run.

    ``npu`` may raise ``Unfoldable``: the operator that it names is the host's from then on.  Raises ``ModelError`` as
    `sw.reader.partition.partition` does.
    """
    for _ in range(_MOST_DEMOTIONS):
        parts = partition(_items(candidates), inputs, list(dict.fromkeys(outputs)), host_fallback=host_fallback)
        try:
            return tuple((npu if part.on_npu else host)(part) for part in parts)
        except Unfoldable as error:
            misfit = next((c for c in candidates if c.nodes is not None and c.key == error.node), None)
            if misfit is None:
                raise
            misfit.nodes = None
            misfit.reason = str(error).removeprefix(f"{error.node} ")
    raise ModelError(f"more than {_MOST_DEMOTIONS} operators do not fit where they stand")


def _items(candidates: Sequence[Candidate]) -> list[Item]:
    leads_to_heavy: set[str] = set()
    items = []
    for candidate in reversed(candidates):
        middle = not leads_to_heavy.isdisjoint(candidate.outputs)
        role = candidate.role
        if candidate.nodes is None:
            # Behind the last convolution everything is post-processing, which is the host's.
            role = Role.HOST if middle and not candidate.border else Role.BORDER
        if middle or role is Role.HEAVY:
            leads_to_heavy.update(candidate.inputs)
        items.append(Item(candidate.place, candidate.inputs, candidate.outputs, role, candidate.reason))
    return items[::-1]
