"""Runs a program's commands one at a time by the rules of the rings, without hardware.

Engines and rings form a process network: what each command sees does not depend on which ready engine goes first. So
one schedule that comes to its end proves that all do, and one that gets stuck shows the deadlock.
"""

import bisect
import dataclasses
from collections.abc import Iterator

from hw.spec.commands import Cursor, Engine, Opcode
from hw.spec.config import NpuConfig
from sw.decode import Command
from sw.emit import Operand

Clock = tuple[int, int, int]
"""Commands of each engine that are known to have committed."""


class ReplayError(ValueError):
    """A program that breaks a rule; the message is one line and names engine and command."""


def join(a: Clock, b: Clock) -> Clock:
    return (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]))


@dataclasses.dataclass
class CursorState:
    issue: int = 0
    commit: int = 0
    offset: int = 0
    history: list[tuple[int, Clock]] = dataclasses.field(default_factory=list)
    """Commit count after each commit, with the clock of the command that made it."""

    def clock_at(self, count: int) -> Clock:
        """What is known once ``commit`` has reached ``count``."""
        index = bisect.bisect_left(self.history, count, key=lambda entry: entry[0])
        return self.history[index][1] if index < len(self.history) else (0, 0, 0)


@dataclasses.dataclass
class RingState:
    """One ring; ``configured_by`` is the load command that shaped it."""

    base: int = 0
    slots: int = 0
    slot_bytes: int = 0
    mask: int = 0
    follows: tuple[int, ...] = (4, 4, 4, 4)
    reserved: int = 0
    configured_by: int = -1
    producer: CursorState = dataclasses.field(default_factory=CursorState)
    consumers: list[CursorState] = dataclasses.field(default_factory=lambda: [CursorState() for _ in range(4)])

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def active(self) -> list[CursorState]:
        return [cursor for index, cursor in enumerate(self.consumers) if self.mask >> index & 1]

    def drained(self) -> bool:
        end = self.producer.commit
        return self.reserved == self.producer.issue == end and all(c.issue == c.commit == end for c in self.active())

    def wrap(self, offset: int) -> int:
        return offset % self.bytes if self.bytes else 0


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an operand points: ring offset ``start``, and ``room`` bytes from there on that the command may touch."""

    ring: RingState
    start: int
    room: int

    def address(self, delta: int) -> int:
        """Scratchpad address of the byte ``delta`` beyond the start."""
        return self.ring.base + self.ring.wrap(self.start + delta)

    def pieces(self, delta: int, size: int) -> Iterator[tuple[int, int]]:
        """Address ranges (first, last) of ``size`` bytes from ``delta`` on, cut where the ring wraps."""
        while size > 0:
            offset = self.ring.wrap(self.start + delta)
            part = min(size, self.ring.bytes - offset)
            yield self.ring.base + offset, self.ring.base + offset + part
            delta += part
            size -= part


@dataclasses.dataclass(frozen=True)
class Event:
    """One command carried out: its place in the streams, its operands, and what had committed when it started."""

    engine: Engine
    index: int
    command: Command
    places: tuple[Place | None, ...]
    started: Clock


class Replay:
    """Carries out three streams; iterate for the events in one valid order.

    ``jobs`` repeats the program as consecutive jobs; indices run on over the jobs.
    """

    def __init__(self, config: NpuConfig, streams: dict[Engine, list[Command]], jobs: int = 1) -> None:
        self.config = config
        self.streams = {engine: list(commands) * jobs for engine, commands in streams.items()}
        self.rings = [RingState() for _ in range(config.rings.count)]
        self._next = [0, 0, 0]
        self._known: list[Clock] = [(0, 0, 0)] * 3
        self._done: list[Clock] = [(0, 0, 0)] * 3

    def __iter__(self) -> Iterator[Event]:
        for engine, commands in self.streams.items():
            if not commands or commands[-1].opcode != Opcode.END:
                raise ReplayError(f"the {engine.name.lower()} stream does not end with END")
        progress = True
        while progress:
            progress = False
            for engine in Engine:
                while self._next[engine] < len(self.streams[engine]):
                    event = self._step(engine)
                    if event is None:
                        break
                    progress = True
                    yield event
                    self._commit(event)
        stuck = [
            f"{engine.name.lower()} command {self._next[engine]} ({self._blocked(engine)})"
            for engine in Engine
            if self._next[engine] < len(self.streams[engine])
        ]
        if stuck:
            raise ReplayError(f"deadlock: {', '.join(stuck)}")

    # -- one command --------------------------------------------------------------------------------------------

    def _step(self, engine: Engine) -> Event | None:
        index = self._next[engine]
        command = self.streams[engine][index]
        where = f"{engine.name.lower()} command {index}"
        known = self._known[engine]
        if command.opcode == Opcode.RING_CONFIGURE:
            mask = command.body["drained_mask"]
            rings = [ring for number, ring in enumerate(self.rings) if mask >> number & 1]
            if not all(ring.drained() for ring in rings):
                return None
            for ring in rings:
                for cursor in (ring.producer, *ring.active()):
                    known = join(known, cursor.clock_at(cursor.commit))
            self._configure(where, index, command)
        operands = [operand for operand in command.operands if operand is not None]
        for operand in operands:
            # In order, as the issue unit does: a ring's new shape is certain only once earlier operands are ready.
            self._check(where, operand)
            if not self._ready(operand):
                return None
        for operand in operands:
            known = join(known, self._clock(operand))
        if command.opcode in (Opcode.WAIT, Opcode.END):
            known = join(known, self._done[engine])
        for operand in operands:
            if known[Engine.LOAD] <= self.rings[operand.ring].configured_by and engine != Engine.LOAD:
                raise ReplayError(f"{where} may use ring {operand.ring} before it is configured")
        places = tuple(self._take(operand) if operand is not None else None for operand in command.operands)
        self._known[engine] = known
        self._next[engine] = index + 1
        return Event(engine, index, command, places, known)

    def _configure(self, where: str, index: int, command: Command) -> None:
        body = command.body
        number = body["ring"]
        if number >= len(self.rings):
            raise ReplayError(f"{where} configures ring {number}; there are {len(self.rings)}")
        if not self.rings[number].drained():
            raise ReplayError(f"{where} configures ring {number}, which its mask does not wait for and is in use")
        base, size = body["base"], body["slots"] * body["slot_bytes"]
        if base + size > self.config.scratchpad.bytes:
            raise ReplayError(f"{where} places ring {number} beyond the scratchpad")
        for other_number, other in enumerate(self.rings):
            overlaps = other.bytes and base < other.base + other.bytes and other.base < base + size
            if overlaps and other_number != number:
                if not body["drained_mask"] >> other_number & 1:
                    raise ReplayError(f"{where} places ring {number} over ring {other_number} without waiting for it")
                self.rings[other_number] = RingState()
        self.rings[number] = RingState(
            base, body["slots"], body["slot_bytes"], body["consumer_mask"], tuple(body["follows"]), configured_by=index
        )

    def _check(self, where: str, operand: Operand) -> None:
        if operand.ring >= len(self.rings):
            raise ReplayError(f"{where} uses ring {operand.ring}; there are {len(self.rings)}")
        ring = self.rings[operand.ring]
        if not ring.slots:
            return
        if operand.cursor != Cursor.PRODUCER and not (operand.cursor < 4 and ring.mask >> operand.cursor & 1):
            raise ReplayError(f"{where} uses cursor {int(operand.cursor)} of ring {operand.ring}, which is not active")
        if max(operand.need, operand.advance) > ring.slots:
            raise ReplayError(f"{where} wants more slots than ring {operand.ring} has")
        if operand.offset > ring.bytes:
            raise ReplayError(f"{where} has an offset beyond ring {operand.ring}")

    def _limit(self, ring: RingState, operand: Operand) -> CursorState:
        """The cursor that a consumer waits on."""
        follows = ring.follows[operand.cursor]
        return ring.producer if follows == Cursor.PRODUCER else ring.consumers[follows]

    def _ready(self, operand: Operand) -> bool:
        ring = self.rings[operand.ring]
        if not ring.slots:
            return False
        if operand.cursor == Cursor.PRODUCER:
            passed = min((c.commit for c in ring.active()), default=ring.reserved)
            return ring.slots - (ring.reserved - passed) >= operand.need
        return self._limit(ring, operand).commit - ring.consumers[operand.cursor].issue >= operand.need

    def _clock(self, operand: Operand) -> Clock:
        """What a ready operand's condition implies."""
        ring = self.rings[operand.ring]
        known: Clock = (0, 0, 0)
        if operand.need == 0:
            return known
        if operand.cursor == Cursor.PRODUCER:
            count = ring.reserved + operand.need - ring.slots
            for cursor in ring.active():
                if count > 0:
                    known = join(known, cursor.clock_at(count))
            return known
        return self._limit(ring, operand).clock_at(ring.consumers[operand.cursor].issue + operand.need)

    def _take(self, operand: Operand) -> Place:
        ring = self.rings[operand.ring]
        if operand.cursor == Cursor.PRODUCER:
            cursor = ring.producer
            ring.reserved += operand.need
            room = (ring.reserved - cursor.issue) * ring.slot_bytes
        else:
            cursor = ring.consumers[operand.cursor]
            room = (self._limit(ring, operand).commit - cursor.issue) * ring.slot_bytes
        place = Place(ring, ring.wrap(cursor.offset + operand.offset), max(room - operand.offset, 0))
        cursor.issue += operand.advance
        cursor.offset = ring.wrap(cursor.offset + operand.advance * ring.slot_bytes)
        if operand.cursor == Cursor.PRODUCER and cursor.issue > ring.reserved:
            raise ReplayError(f"ring {operand.ring} is published beyond what was reserved")
        return place

    def _commit(self, event: Event) -> None:
        engine = event.engine
        done = join(self._done[engine], event.started)
        mine = list(done)
        mine[engine] = event.index + 1
        done = (mine[0], mine[1], mine[2])
        self._done[engine] = done
        for operand in event.command.operands:
            if operand is None or operand.advance == 0:
                continue
            ring = self.rings[operand.ring]
            cursor = ring.producer if operand.cursor == Cursor.PRODUCER else ring.consumers[operand.cursor]
            cursor.commit += operand.advance
            cursor.history.append((cursor.commit, done))
            if len(cursor.history) > 2 * ring.slots + 4 and ring.slots < 1024:
                del cursor.history[0]

    def _blocked(self, engine: Engine) -> str:
        command = self.streams[engine][self._next[engine]]
        if command.opcode == Opcode.RING_CONFIGURE:
            return "RING_CONFIGURE waits for drained rings"
        waits = [
            f"{operand.need} {'free' if operand.cursor == Cursor.PRODUCER else 'filled'} slots of ring {operand.ring}"
            for operand in command.operands
            if operand is not None and not self._ready(operand)
        ]
        return f"{command.name} waits for {' and '.join(waits)}"
