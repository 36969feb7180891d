"""Buffer policies: named sets of independent knobs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class BufferPolicy:
    """How a program uses the scratchpad.

    ``slots``: tiles that a ring of inputs, residuals, results or streamed weights holds. ``sets``: sets of rings that
    steps take in turn; with two, the next step's weights and first tile are loaded while a step computes.
    """

    name: str
    slots: int
    sets: int


POLICIES: dict[str, BufferPolicy] = {
    "pool": BufferPolicy("pool", slots=1, sets=1),
    "pingpong": BufferPolicy("pingpong", slots=2, sets=2),
}


def policy(name: str) -> BufferPolicy:
    """The policy of that name; ``ValueError`` with one clear line for an unknown one."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown buffer policy {name!r}; known: {', '.join(POLICIES)}") from None
