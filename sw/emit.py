"""Writes commands into the three streams, and remembers what DRAM ordering needs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hw.spec.commands import (
    BODIES,
    COMMAND_BYTES,
    HEADER,
    MAX_SLOTS,
    OPERAND,
    OPERANDS,
    RING_CONFIGURE,
    Cursor,
    Engine,
    Opcode,
    pack,
)
from sw.tiling import Rows

_BODY_SHIFT = HEADER.size + OPERANDS * OPERAND.size


@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand of a command; see `hw.spec.commands`."""

    ring: int
    cursor: Cursor
    need: int = 0
    advance: int = 0
    offset: int = 0


def encode(
    opcode: Opcode, layer: int, operands: Sequence[Operand | None], body: Mapping[str, Any] | None = None
) -> int:
    """Bits of a command. Raises ``ValueError`` for a field that does not fit."""
    bits = pack(HEADER, {"opcode": opcode, "layer": layer})
    for index in range(OPERANDS):
        operand = operands[index] if index < len(operands) else None
        if operand is None:
            fields = {"cursor": Cursor.NONE}
        else:
            fields = dataclasses.asdict(operand)
        bits |= pack(OPERAND, fields) << (HEADER.size + index * OPERAND.size)
    layout = BODIES[opcode]
    if layout is not None and body is not None:
        bits |= pack(layout, body) << _BODY_SHIFT
    return bits


class Streams:
    """Three streams under construction."""

    def __init__(self) -> None:
        self.commands: dict[Engine, list[bytes]] = {engine: [] for engine in Engine}
        self.layer = 0

    def add(
        self,
        engine: Engine,
        opcode: Opcode,
        operands: Sequence[Operand | None] = (),
        body: Mapping[str, Any] | None = None,
    ) -> None:
        """Append one command to an engine's stream, marked with the current layer."""
        self.commands[engine].append(encode(opcode, self.layer, operands, body).to_bytes(COMMAND_BYTES, "little"))

    def configure(self, ring: int, base: int, slots: int, slot_bytes: int, drained_mask: int) -> None:
        """Append a RING_CONFIGURE with one consumer."""
        self.add(
            Engine.LOAD,
            Opcode.RING_CONFIGURE,
            (),
            {
                "ring": ring,
                "consumer_mask": 1,
                "slots": slots,
                "base": base,
                "slot_bytes": slot_bytes,
                "ring_bytes": slots * slot_bytes,
                "follows": [Cursor.PRODUCER] * 4,
                "drained_mask": drained_mask,
            },
        )

    def position(self) -> dict[str, int]:
        """Commands so far, by engine name."""
        return {engine.name.lower(): len(commands) for engine, commands in self.commands.items()}

    def finish(self) -> dict[Engine, bytes]:
        return {engine: b"".join(commands) for engine, commands in self.commands.items()}


assert RING_CONFIGURE.size <= COMMAND_BYTES * 8 - _BODY_SHIFT


class StoreOrder:
    """Orders loads after the stores that wrote what they read, by one counted semaphore.

    The store engine publishes one slot for each store whose tensor is loaded again; a load waits until the semaphore
    has reached the last store that it depends on, and moves its cursor there.
    """

    def __init__(self, ring: int) -> None:
        self.ring = ring
        self.published = 0
        self.waited = 0
        self._stores: dict[str, list[tuple[Rows, int]]] = {}

    def publish(self, tensor: str, rows: Rows) -> Operand:
        """The semaphore operand of a store of ``rows`` of ``tensor``."""
        self.published += 1
        self._stores.setdefault(tensor, []).append((rows, self.published))
        return Operand(self.ring, Cursor.PRODUCER, 1, 1)

    def wait(self, tensor: str, rows: Rows) -> Operand | None:
        """The semaphore operand of a load of ``rows`` of ``tensor``; None if nothing is left to wait for."""
        last = max(
            (
                number
                for stored, number in self._stores.get(tensor, ())
                if stored.first < rows.last and rows.first < stored.last
            ),
            default=0,
        )
        if last <= self.waited:
            return None
        count = last - self.waited
        self.waited = last
        return Operand(self.ring, Cursor.CONSUMER_0, count, count)

    def make_room(self, stores: int) -> Operand | None:
        """The operand that waits for what was published, if ``stores`` more could exceed the semaphore's count.

        Raises ``ValueError`` if ``stores`` alone exceed it.
        """
        if stores > MAX_SLOTS:
            raise ValueError(f"{stores} ordered stores in one step; the hardware counts {MAX_SLOTS}")
        return self.settle() if self.published - self.waited + stores > MAX_SLOTS else None

    def settle(self) -> Operand | None:
        """The operand that waits for every store published; None if all were waited for."""
        if self.waited == self.published:
            return None
        count = self.published - self.waited
        self.waited = self.published
        return Operand(self.ring, Cursor.CONSUMER_0, count, count)
