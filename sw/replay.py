"""Runs a program's commands one at a time by the rules of the rings, without hardware.

Engines and rings form a process network: what each command sees does not depend on which ready engine goes first. So
one schedule that comes to its end proves that all do, and one that gets stuck shows the deadlock.

RING_CONFIGURE is the exception: that a ring is drained is a state, which may hold at several moments. So each one is
*ordered*: whatever the schedule, it acts after every command that used the bytes it takes, and before every command
that uses a ring which it names. What is proven, by clocks (what a command's start implies to be done):

* Every command that used the ring's old shape, or another ring over the new place, is done when the ring is configured.
  The test teaches only this: rings of the mask are empty at one moment, so every command that the load engine knows to
  have issued by then has passed, in them, all that it took (the load engine's own cursors are known exactly).
* Every command of another engine that uses a ring of the mask later knows that the test has been passed: by an earlier
  command, by an operand looked up before, or because it waits for a slot that is published afterwards. In the last
  case it may be looked up in the old shape, which is not ready: its engine owned the cursor, and has taken all of it.

It is assumed that no ring is configured at first, or that the same program has left the rings.
"""

import bisect
import dataclasses
import enum
from collections.abc import Iterable, Iterator

from hw.spec.commands import ComputeOperand, Cursor, Engine, Opcode
from hw.spec.config import NpuConfig
from sw.decode import Command
from sw.emit import Operand


class Part(enum.IntEnum):
    """Entries of a clock. The first three are the engines; the compute engine works in parts, each in order."""

    LOAD = 0
    COMPUTE = 1
    """Commands whose epilogue is done, and so all of them."""
    STORE = 2
    INPUT = 3
    """Commands whose input is read."""
    WEIGHTS = 4
    """Commands whose weights, parameters and table are read."""
    ISSUED = 5
    """Commands of the compute engine whose operands are taken."""


Clock = tuple[int, ...]
"""Of each ``Part``, how many commands are known to be done."""

NOTHING: Clock = (0,) * len(Part)

_PARTS = {
    ComputeOperand.INPUT: Part.INPUT,
    ComputeOperand.WEIGHTS: Part.WEIGHTS,
    ComputeOperand.TABLE: Part.WEIGHTS,
    ComputeOperand.RESIDUAL: Part.COMPUTE,
    ComputeOperand.OUTPUT: Part.COMPUTE,
}


class ReplayError(ValueError):
    """A program that breaks a rule; the message is one line and names engine and command."""


def join(a: Clock, b: Clock) -> Clock:
    return tuple(map(max, a, b))


def advanced(clock: Clock, parts: Iterable[Part], count: int) -> Clock:
    """``clock`` with ``count`` commands of ``parts`` done as well."""
    result = list(clock)
    for part in parts:
        result[part] = max(result[part], count)
    return tuple(result)


def part_of(engine: Engine, opcode: int, operand: int) -> Part:
    """Which part of an engine works on, and commits, an operand."""
    if engine == Engine.COMPUTE and opcode == Opcode.CONVOLVE:
        return _PARTS[ComputeOperand(operand)]
    return Part(engine)


def implied(part: Part) -> tuple[Part, ...]:
    """The entries that move when a part is done with a command."""
    if part == Part.COMPUTE:
        return (Part.COMPUTE, Part.INPUT, Part.WEIGHTS, Part.ISSUED)
    if part in (Part.INPUT, Part.WEIGHTS):
        return (part, Part.ISSUED)
    return (part,)


@dataclasses.dataclass
class CursorState:
    """One cursor, which belongs to one engine: ``engine``, through ``operand`` of its CONVOLVE commands."""

    issue: int = 0
    commit: int = 0
    offset: int = 0
    engine: Engine | None = None
    operand: int = -1
    history: list[tuple[int, Clock]] = dataclasses.field(default_factory=list)
    """Commit count after each commit, with what the commit implies."""
    takes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Command that took, and the slots taken (a producer's: reserved) by then."""

    def clock_at(self, count: int) -> Clock:
        """What is known once ``commit`` has reached ``count``."""
        if count <= 0:
            return NOTHING
        index = bisect.bisect_left(self.history, count, key=lambda entry: entry[0])
        return self.history[index][1] if index < len(self.history) else NOTHING

    def taken_by(self, commands: int) -> int:
        """Slots taken by the first ``commands`` commands of its engine."""
        index = bisect.bisect_left(self.takes, commands, key=lambda entry: entry[0])
        return self.takes[index - 1][1] if index else 0


@dataclasses.dataclass
class RingState:
    """One ring in one shape.

    ``configured_by`` and ``tested_by``: the load commands that gave it its shape, and that last waited until it was
    drained. ``before`` is the shape that the hardware had until then.
    """

    base: int = 0
    slots: int = 0
    slot_bytes: int = 0
    mask: int = 0
    follows: tuple[int, ...] = (4, 4, 4, 4)
    reserved: int = 0
    configured_by: int = -1
    tested_by: int = -1
    producer: CursorState = dataclasses.field(default_factory=CursorState)
    consumers: list[CursorState] = dataclasses.field(default_factory=lambda: [CursorState() for _ in range(4)])
    users: dict[Part, int] = dataclasses.field(default_factory=dict)
    """Last command of each part that used it."""
    before: "RingState | None" = None

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def active(self) -> list[CursorState]:
        return [cursor for index, cursor in enumerate(self.consumers) if self.mask >> index & 1]

    def cursor(self, number: int) -> CursorState:
        return self.producer if number == Cursor.PRODUCER else self.consumers[number]

    def drained(self) -> bool:
        end = self.producer.commit
        return self.reserved == self.producer.issue == end and all(c.issue == c.commit == end for c in self.active())

    def wrap(self, offset: int) -> int:
        return offset % self.bytes if self.bytes else 0


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an operand points: ring offset ``start``, and ``room`` bytes from there on that the command may touch.

    ``produces``: they are reserved, to be written; otherwise filled, to be read.
    """

    ring: RingState
    start: int
    room: int
    produces: bool = False

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
        self._shapes: list[RingState | None] = [None] * config.rings.count
        self._next = [0, 0, 0]
        self._known: list[Clock] = [NOTHING] * 3

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
        where = f"{engine.name.lower()} command {index} ({command.name})"
        known = self._known[engine]
        if command.opcode == Opcode.RING_CONFIGURE:
            # The ring itself too, whatever the mask says.
            mask = command.body["drained_mask"] | 1 << command.body["ring"]
            rings = [ring for number, ring in enumerate(self.rings) if mask >> number & 1]
            if not all(ring.drained() for ring in rings):
                return None
            known = self._drained(rings, known)
            for ring in rings:
                ring.tested_by = index
            self._configure(where, index, command, mask, known)
        for number, operand in enumerate(command.operands):
            if operand is None:
                continue
            # In order, as the issue unit does: a ring's new shape is certain only once earlier operands are ready.
            self._check(where, operand)
            if not self._ready(operand):
                return None
            clock = self._clock(operand)
            self._claim(where, engine, command, number, operand)
            if engine != Engine.LOAD:
                self._ordered(where, engine, operand, known, clock)
            known = join(known, clock)
        if command.opcode in (Opcode.WAIT, Opcode.END):
            known = advanced(known, implied(Part(engine)), index)
        places = tuple(
            None if operand is None else self._take(where, engine, index, command.opcode, number, operand)
            for number, operand in enumerate(command.operands)
        )
        self._known[engine] = known
        self._next[engine] = index + 1
        return Event(engine, index, command, places, known)

    def _drained(self, rings: list[RingState], known: Clock) -> Clock:
        """What the load engine knows once all ``rings`` are drained at one moment.

        Each cursor has then taken at least what commands took that are known to be issued, the load engine's exactly
        what it took so far; all cursors of a ring stand at the same count, and have committed up to it.
        """
        while True:
            before = known
            for ring in rings:
                cursors = (ring.producer, *ring.active())
                count = max(self._taken(cursor, known) for cursor in cursors)
                for cursor in cursors:
                    known = join(known, cursor.clock_at(count))
            if known == before:
                return known

    def _taken(self, cursor: CursorState, known: Clock) -> int:
        """Slots that a cursor is known to have taken."""
        if cursor.engine is None:
            return 0
        if cursor.engine == Engine.LOAD:
            return cursor.takes[-1][1]
        return cursor.taken_by(known[Part.ISSUED if cursor.engine == Engine.COMPUTE else Part.STORE])

    def _configure(self, where: str, index: int, command: Command, mask: int, known: Clock) -> None:
        body = command.body
        number = body["ring"]
        base, size = body["base"], body["slots"] * body["slot_bytes"]
        for other_number, other in enumerate(self.rings):
            overlaps = other.bytes and base < other.base + other.bytes and other.base < base + size
            if overlaps and not mask >> other_number & 1:
                raise ReplayError(f"{where} places ring {number} over ring {other_number} without waiting for it")
            if overlaps or other_number == number:
                for part, user in other.users.items():
                    if known[part] <= user:
                        engine = Engine(part if part <= Part.STORE else Part.COMPUTE).name.lower()
                        raise ReplayError(
                            f"{where} may place ring {number} while {engine} command {user} still uses ring "
                            f"{other_number}: nothing makes it wait for that command"
                        )
                self.rings[other_number] = RingState()
        before = self._shapes[number]
        if before is not None:
            before.before = None
        self.rings[number] = self._shapes[number] = RingState(
            base,
            body["slots"],
            body["slot_bytes"],
            body["consumer_mask"],
            tuple(body["follows"]),
            configured_by=index,
            tested_by=index,
            before=before,
        )

    def _claim(self, where: str, engine: Engine, command: Command, number: int, operand: Operand) -> None:
        """A cursor belongs to one engine. CONVOLVE commits it through one operand: only so do commits keep order."""
        cursor = self.rings[operand.ring].cursor(operand.cursor)
        if cursor.engine not in (None, engine):
            raise ReplayError(
                f"{where} moves cursor {int(operand.cursor)} of ring {operand.ring}, which belongs to the "
                f"{cursor.engine.name.lower()} engine"
            )
        if command.opcode == Opcode.CONVOLVE and cursor.operand not in (-1, number):
            raise ReplayError(
                f"{where} moves cursor {int(operand.cursor)} of ring {operand.ring} by operand {number}; an earlier "
                f"command did by operand {cursor.operand}"
            )

    def _ordered(self, where: str, engine: Engine, operand: Operand, known: Clock, clock: Clock) -> None:
        """Whether every look-up of ``operand`` that succeeds comes after the ring's last configuration and test.

        ``known`` before the look-up, ``clock`` by its success.
        """
        ring = self.rings[operand.ring]
        if known[Part.LOAD] > ring.tested_by:
            return
        if operand.cursor == Cursor.PRODUCER or clock[Part.LOAD] <= ring.tested_by:
            what = "configured" if known[Part.LOAD] <= ring.configured_by else "found drained"
            raise ReplayError(f"{where} may use ring {operand.ring} before it is {what}")
        old = ring.before
        if known[Part.LOAD] > ring.configured_by or old is None:
            return
        # Looked up early it meets the old shape, in which this engine has left nothing to take; another may have.
        if known[Part.LOAD] <= old.configured_by or old.cursor(operand.cursor).engine not in (None, engine):
            raise ReplayError(
                f"{where} may take ring {operand.ring} in an earlier shape, in which cursor {int(operand.cursor)} was "
                f"not the {engine.name.lower()} engine's"
            )

    def _check(self, where: str, operand: Operand) -> None:
        if operand.ring >= len(self.rings):
            raise ReplayError(f"{where} uses ring {operand.ring}; there are {len(self.rings)}")
        if operand.cursor != Cursor.PRODUCER and operand.cursor >= self.config.rings.consumers:
            raise ReplayError(
                f"{where} uses cursor {int(operand.cursor)} of ring {operand.ring}; rings have "
                f"{self.config.rings.consumers} consumers"
            )
        if operand.cursor != Cursor.PRODUCER and operand.advance > operand.need:
            raise ReplayError(f"{where} passes {operand.advance} slots of ring {operand.ring} but needs {operand.need}")
        ring = self.rings[operand.ring]
        if not ring.slots:
            return
        if operand.cursor != Cursor.PRODUCER and not ring.mask >> operand.cursor & 1:
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
        known = NOTHING
        if operand.need == 0:
            return known
        if operand.cursor == Cursor.PRODUCER:
            for cursor in ring.active():
                known = join(known, cursor.clock_at(ring.reserved + operand.need - ring.slots))
            return known
        return self._limit(ring, operand).clock_at(ring.consumers[operand.cursor].issue + operand.need)

    def _take(self, where: str, engine: Engine, index: int, opcode: int, number: int, operand: Operand) -> Place:
        ring = self.rings[operand.ring]
        cursor = ring.cursor(operand.cursor)
        produces = operand.cursor == Cursor.PRODUCER
        if produces:
            ring.reserved += operand.need
        slots = ring.reserved - cursor.issue if produces else operand.need
        place = Place(
            ring,
            ring.wrap(cursor.offset + operand.offset),
            max(slots * ring.slot_bytes - operand.offset, 0),
            produces,
        )
        cursor.issue += operand.advance
        cursor.offset = ring.wrap(cursor.offset + operand.advance * ring.slot_bytes)
        if produces and cursor.issue > ring.reserved:
            raise ReplayError(f"{where} publishes ring {operand.ring} beyond what was reserved")
        cursor.engine = engine
        if opcode == Opcode.CONVOLVE:
            cursor.operand = number
        cursor.takes.append((index, ring.reserved if produces else cursor.issue))
        ring.users[part_of(engine, opcode, number)] = index
        return place

    def _commit(self, event: Event) -> None:
        for number, operand in enumerate(event.command.operands):
            if operand is None or operand.advance == 0:
                continue
            part = part_of(event.engine, event.command.opcode, number)
            cursor = self.rings[operand.ring].cursor(operand.cursor)
            cursor.commit += operand.advance
            cursor.history.append((cursor.commit, advanced(event.started, implied(part), event.index + 1)))

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
