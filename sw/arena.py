"""Placement of buffers by lifetime: two that live at once never overlap."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Buffer:
    """``size`` bytes that live in the half-open interval ``[lower, upper)``."""

    id: str
    lower: int
    upper: int
    size: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """Offset of each buffer; ``peak`` is the end of the highest, ``lower_bound`` the largest live sum."""

    offsets: dict[str, int]
    peak: int
    lower_bound: int


def live_sum(buffers: Sequence[Buffer]) -> int:
    """The largest sum of sizes that live at one moment: no placement can have a lower peak."""
    events: dict[int, int] = {}
    for buffer in buffers:
        events[buffer.lower] = events.get(buffer.lower, 0) + buffer.size
        events[buffer.upper] = events.get(buffer.upper, 0) - buffer.size
    most = live = 0
    for moment in sorted(events):
        live += events[moment]
        most = max(most, live)
    return most


def place(buffers: Sequence[Buffer], alignment: int = 64) -> Placement:
    """Place buffers by the best of several greedy orders; stops early at the lower bound."""
    sized = [dataclasses.replace(b, size=-(-b.size // alignment) * alignment) for b in buffers]
    bound = live_sum(sized)
    orders = (
        lambda b: (-b.size, b.lower),
        lambda b: (-(b.upper - b.lower), -b.size),
        lambda b: (-b.size * (b.upper - b.lower), b.lower),
        lambda b: (b.lower, -b.size),
    )
    best: Placement | None = None
    for order in orders:
        offsets = _first_fit(sorted(sized, key=order))
        peak = max((offsets[b.id] + b.size for b in sized), default=0)
        if best is None or peak < best.peak:
            best = Placement(offsets, peak, bound)
        if peak == bound:
            break
    assert best is not None
    return best


def place_apart(buffers: Sequence[Buffer], alignment: int = 64) -> Placement:
    """Place buffers one after the other, none over another: every tensor can be read back afterwards."""
    offsets = {}
    position = 0
    for buffer in buffers:
        offsets[buffer.id] = position
        position += -(-buffer.size // alignment) * alignment
    return Placement(offsets, position, live_sum(buffers))


def _first_fit(buffers: Sequence[Buffer]) -> dict[str, int]:
    """Lowest gap that fits, in the order given."""
    placed: list[tuple[int, Buffer]] = []
    for buffer in buffers:
        position = 0
        for offset, other in sorted(
            ((o, b) for o, b in placed if b.lower < buffer.upper and buffer.lower < b.upper), key=lambda pair: pair[0]
        ):
            if offset - position >= buffer.size:
                break
            position = max(position, offset + other.size)
        placed.append((position, buffer))
    return {buffer.id: offset for offset, buffer in placed}
