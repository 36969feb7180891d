"""The ring file against cursors kept as plain integers, cycle by cycle."""

import dataclasses
import os
import random
import typing

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.ring_file import RingFile
from hw.spec.config import NpuConfig, load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 50000  # cycles after which a simulation has hung
PRODUCER, NONE = 4, 7


def simulate(dut: RingFile, bench: typing.Callable[..., typing.Any]) -> None:
    rtlil.convert(dut)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def watchdog(ctx):
        for _ in range(LIMIT):
            await ctx.tick()
        raise AssertionError("the simulation hangs")

    simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


@dataclasses.dataclass
class Position:
    """A cursor; ``engine`` moves it."""

    engine: int = 0
    issue: int = 0
    commit: int = 0
    offset: int = 0


@dataclasses.dataclass
class Ring:
    """One ring as architecture.md describes it; nothing wraps but offsets."""

    base: int = 0
    slots: int = 0
    slot_bytes: int = 0
    consumers: dict[int, Position] = dataclasses.field(default_factory=dict)
    follows: list[int] = dataclasses.field(default_factory=lambda: [4, 4, 4, 4])
    producer: Position = dataclasses.field(default_factory=Position)
    reserved: int = 0

    @property
    def ring_bytes(self) -> int:
        return self.slots * self.slot_bytes

    def cursor(self, code: int) -> Position | None:
        return self.producer if code == PRODUCER else self.consumers.get(code)

    def limit(self, code: int) -> int:
        followed = self.follows[code]
        return self.producer.commit if followed >= 4 else self.consumers[followed].commit

    def free(self) -> int:
        if not self.consumers:
            return self.slots
        return self.slots - (self.reserved - min(c.commit for c in self.consumers.values()))

    def available(self, code: int) -> int:
        return self.free() if code == PRODUCER else self.limit(code) - self.consumers[code].issue

    def take(self, code: int, need: int, advance: int) -> None:
        position = self.cursor(code)
        if code == PRODUCER:
            self.reserved += need
        position.issue += advance
        position.offset = (position.offset + advance * self.slot_bytes) % self.ring_bytes if self.ring_bytes else 0

    def drained(self) -> bool:
        published = self.producer.commit
        return self.slots == 0 or (
            self.reserved == self.producer.issue == published
            and all(c.issue == c.commit == published for c in self.consumers.values())
        )


def random_ring(rng: random.Random, config: NpuConfig) -> Ring:
    slots = rng.choice([1, 2, 3, rng.randrange(1, 20), rng.randrange(1, 1 << 14), (1 << 14) - 1])
    size = config.scratchpad.bytes
    slot_bytes = rng.choice([0, rng.randrange(size // slots + 1), size // slots])
    base = rng.randrange(size - slots * slot_bytes + 1) % size
    active = [c for c in range(config.rings.consumers) if rng.random() < 0.6]
    rng.shuffle(active)
    ring = Ring(base, slots, slot_bytes)
    for position, code in enumerate(active):
        ring.consumers[code] = Position(rng.randrange(3))
        ring.follows[code] = rng.choice([4, *active[:position]])  # so that nothing follows in a circle
    ring.producer.engine = rng.randrange(3)
    return ring


async def configure(ctx, dut: RingFile, index: int, ring: Ring, consumers: int) -> None:
    port = dut.configure
    ctx.set(port.ring, index)
    for name in ("base", "slots", "slot_bytes", "ring_bytes"):
        ctx.set(getattr(port, name), getattr(ring, name))
    ctx.set(port.consumer_mask, sum(1 << c for c in ring.consumers))
    ctx.set(port.follows, ring.follows[:consumers])
    ctx.set(port.valid, 1)


def check_state(ctx, dut: RingFile, rings: list[Ring]) -> None:
    for index, ring in enumerate(rings):
        state = ctx.get(dut.state[index])
        assert state.slots == ring.slots
        assert state.consumer_mask == sum(1 << c for c in ring.consumers)
        if not ring.slots:
            continue
        assert (state.base, state.slot_bytes, state.ring_bytes) == (ring.base, ring.slot_bytes, ring.ring_bytes)
        assert state.reserved == ring.reserved % 65536
        for code in (*ring.consumers, PRODUCER):
            cursor = state.producer if code == PRODUCER else state.consumer[code]
            position = ring.cursor(code)
            assert (cursor.issue, cursor.commit) == (position.issue % 65536, position.commit % 65536)
            assert cursor.offset == position.offset


@pytest.mark.parametrize(("count", "consumers"), [(4, 4), (3, 2), (2, 1)])
def test_random(count: int, consumers: int) -> None:
    print(f"RONDO_SEED={SEED}")
    rng = random.Random(SEED)
    config = load_config("tiny", {"rings.count": count, "rings.consumers": consumers, "scratchpad.bytes": 65536})
    dut = RingFile(config)
    ports = [dut.port_0, dut.port_1, dut.port_2]
    rings = [Ring() for _ in range(count)]
    taken: list[list[tuple[int, int, int]]] = [[], [], []]  # of each engine: what it has to commit
    seen = {
        "ready": 0,
        "wait": 0,
        "illegal": 0,
        "drained": 0,
        "take": 0,
        "three": 0,
        "same": 0,
        "both": 0,
        "wrap": 0,
        "unconfigured": 0,
        "unfit": 0,
    }

    def operand(engine: int) -> tuple[int, int, int, int]:
        own = [
            (r, code)
            for r, ring in enumerate(rings)
            if ring.slots
            for code in (*ring.consumers, PRODUCER)
            if ring.cursor(code).engine == engine
        ]
        if not own or rng.random() < 0.08:
            r, code = rng.randrange(64 if rng.random() < 0.3 else count), rng.randrange(8)
            return r, code, rng.choice([0, 1, rng.randrange(1 << 14)]), rng.choice([0, 1, rng.randrange(1 << 14)])
        r, code = rng.choice(own)
        ring = rings[r]
        available = ring.available(code)
        need = rng.choice([0, 1, min(available + rng.randrange(2), (1 << 14) - 1), rng.randrange(available + 1)])
        if code == PRODUCER:  # claims no more than it has reserved
            room = ring.reserved + need - ring.producer.issue
        else:  # passes no more than is filled
            room = available
        room = min(room, (1 << 14) - 1)
        return r, code, need, rng.choice([min(need, room), room, rng.randrange(room + 1)])

    async def bench(ctx):
        for step in range(1500):
            changed = {rng.randrange(count)} if rng.random() < 0.3 else set()
            changed = {r for r in changed if rings[r].drained()}
            ctx.set(dut.configure.valid, 0)
            clear = rng.random() < 0.001
            ctx.set(dut.clear, clear)
            mask = rng.randrange(1 << 32) if rng.random() < 0.2 else 1 << rng.randrange(count)
            ctx.set(dut.configure.drained_mask, mask)
            drained = all(ring.drained() for r, ring in enumerate(rings) if mask >> r & 1)
            actions: list[typing.Callable[[], None]] = []
            touched: list[int] = []
            moves: list[set[tuple[int, int]]] = []
            for engine, port in enumerate(ports):
                r, code, need, advance = operand(engine)
                for name, value in (("ring", r), ("cursor", code), ("need", need), ("advance", advance)):
                    ctx.set(getattr(port, name), value)
                ring = rings[r] if r < count else Ring()
                position = ring.cursor(code)
                exists = r < count and (code == PRODUCER or code < consumers)
                illegal = code != NONE and not exists
                take = False
                assert ctx.get(port.illegal) == illegal, (step, r, code, need, advance, ring)
                fits = position is not None and max(need, advance) <= ring.slots
                if not illegal:
                    assert ctx.get(port.fits) == (code == NONE or (bool(ring.slots) and fits))
                if not illegal and code != NONE and not ring.slots:
                    assert not ctx.get(port.ready)
                    seen["unconfigured"] += 1
                elif not illegal and code != NONE and not fits:
                    assert not ctx.get(port.ready)
                    seen["unfit"] += 1
                elif not illegal and code != NONE:
                    ready = need <= ring.available(code)
                    assert ctx.get(port.ready) == ready
                    assert ctx.get(port.base) == ring.base
                    assert ctx.get(port.start) == position.offset
                    assert ctx.get(port.ring_bytes) == ring.ring_bytes
                    own = position.engine == engine
                    room = ring.reserved + need - position.issue if code == PRODUCER else ring.available(code)
                    take = ready and own and advance <= room and r not in changed and rng.random() < 0.8
                    seen["ready" if ready else "wait"] += 1
                elif code == NONE:
                    assert ctx.get(port.ready)
                    take = rng.random() < 0.5  # does nothing
                else:
                    seen["illegal"] += 1
                ctx.set(port.take, take)
                moved = set()
                if take and code != NONE:
                    touched.append(r)
                    moved.add((r, code))
                    actions.append(lambda ring=ring, args=(code, need, advance): ring.take(*args))
                commit = bool(taken[engine]) and rng.random() < 0.6
                if commit:  # a ring may be configured while a commit of no slots is still to come
                    r, _, passed = taken[engine][0]
                    commit = r not in changed or passed == 0
                ctx.set(port.commit, commit)
                if commit:
                    r, code, passed = taken[engine].pop(0)
                    ctx.set(port.commit_ring, r)
                    ctx.set(port.commit_cursor, code)
                    ctx.set(port.commit_advance, passed)
                    touched.append(r)
                    seen["both"] += (r, code) in moved
                    if passed:
                        actions.append(
                            lambda p=rings[r].cursor(code), passed=passed: setattr(p, "commit", p.commit + passed)
                        )
                if take and moved:
                    ((r, code),) = moved
                    taken[engine].append((r, code, advance))
                    seen["take"] += 1
                moves.append(moved)
            assert ctx.get(dut.configure.drained) == drained
            seen["drained"] += drained
            seen["three"] += all(moves)
            seen["same"] += len(touched) > len(set(touched))
            for r in changed:
                rings[r] = random_ring(rng, config)
                await configure(ctx, dut, r, rings[r], consumers)
            await ctx.tick()
            for action in actions:
                action()
            if clear:
                rings[:] = [Ring() for _ in range(count)]
                for queue in taken:
                    queue.clear()
            seen["wrap"] += any(ring.producer.commit > 65535 for ring in rings)
            if step % 8 == 0:
                check_state(ctx, dut, rings)

    simulate(dut, bench)
    print(seen)
    assert all(seen.values()), seen


def program(dut: RingFile, rings: int, script: typing.Callable[..., typing.Any]) -> None:
    """Runs ``script(ctx, look, act, configure)``."""

    async def bench(ctx):
        def look(engine: int, ring: int, cursor: int, need: int = 1, advance: int = 1) -> tuple[bool, int]:
            port = (dut.port_0, dut.port_1, dut.port_2)[engine]
            for name, value in (("ring", ring), ("cursor", cursor), ("need", need), ("advance", advance)):
                ctx.set(getattr(port, name), value)
            assert not ctx.get(port.illegal)
            return bool(ctx.get(port.ready)), ctx.get(port.start)

        async def act(engine: int, take: tuple | None = None, commit: tuple | None = None) -> None:
            port = (dut.port_0, dut.port_1, dut.port_2)[engine]
            if take:
                assert look(engine, *take)[0]
            ctx.set(port.take, bool(take))
            ctx.set(port.commit, bool(commit))
            if commit:
                for name, value in zip(("commit_ring", "commit_cursor", "commit_advance"), commit, strict=True):
                    ctx.set(getattr(port, name), value)
            await ctx.tick()
            ctx.set(port.take, 0)
            ctx.set(port.commit, 0)

        async def set_up(index: int, ring: Ring) -> None:
            await configure(ctx, dut, index, ring, 4)
            await ctx.tick()
            ctx.set(dut.configure.valid, 0)

        await script(ctx, look, act, set_up)

    simulate(dut, bench)


def test_in_place_step() -> None:
    """Engine 0 fills, engine 1 rewrites slots in place by a consumer cursor, engine 2 follows that cursor."""
    dut = RingFile(load_config("tiny"))

    async def script(ctx, look, act, set_up):
        ring = Ring(64, 2, 16, {0: Position(), 1: Position()}, [4, 0, 4, 4])
        await set_up(3, ring)
        assert look(0, 3, PRODUCER) == (True, 0)
        await act(0, take=(3, PRODUCER, 1, 1))
        assert look(0, 3, PRODUCER) == (True, 16)
        await act(0, take=(3, PRODUCER, 1, 1), commit=(3, PRODUCER, 1))
        assert look(0, 3, PRODUCER) == (False, 0)
        assert look(1, 3, 0) == (True, 0)
        assert look(2, 3, 1) == (False, 0)  # published, but not yet rewritten
        await act(1, take=(3, 0, 1, 1))
        assert look(2, 3, 1) == (False, 0)
        assert look(1, 3, 0) == (False, 16)
        await act(1, commit=(3, 0, 1))
        assert look(2, 3, 1) == (True, 0)
        assert look(0, 3, PRODUCER) == (False, 0)  # the last consumer has not passed
        await act(2, take=(3, 1, 1, 1))
        assert look(0, 3, PRODUCER) == (False, 0)
        await act(2, commit=(3, 1, 1))
        assert look(0, 3, PRODUCER) == (True, 0)

    program(dut, 4, script)


def test_semaphore_and_drained() -> None:
    """A ring of slots without bytes; drained only while everything published is passed."""
    dut = RingFile(load_config("tiny"))

    async def script(ctx, look, act, set_up):
        await set_up(15, Ring(0, 16383, 0, {2: Position()}))
        ctx.set(dut.configure.drained_mask, 1 << 15)
        assert ctx.get(dut.configure.drained)
        await act(2, take=(15, PRODUCER, 100, 100))
        assert not ctx.get(dut.configure.drained)
        assert look(0, 15, 2, 100, 100) == (False, 0)
        await act(2, commit=(15, PRODUCER, 100))
        assert look(0, 15, 2, 101, 0) == (False, 0)
        assert look(0, 15, 2, 100, 100) == (True, 0)
        await act(0, take=(15, 2, 100, 100))
        assert not ctx.get(dut.configure.drained)
        ctx.set(dut.configure.drained_mask, 0xFFFF7FFF)
        assert ctx.get(dut.configure.drained)
        ctx.set(dut.configure.drained_mask, 0xFFFFFFFF)
        assert not ctx.get(dut.configure.drained)
        await act(0, commit=(15, 2, 100))
        assert ctx.get(dut.configure.drained)

    program(dut, 16, script)


def test_an_operand_waits_for_the_shape_that_it_fits() -> None:
    """More slots than the ring has, or a consumer that is not active: neither ready nor illegal, for the ring may be
    about to be configured anew."""
    dut = RingFile(load_config("tiny"))

    async def script(ctx, look, act, set_up):
        assert look(2, 3, 1, 3, 3)[0] is False
        assert not ctx.get(dut.port_2.fits)
        await set_up(3, Ring(0, 2, 16, {0: Position()}))
        for cursor, need, advance in ((0, 3, 1), (0, 1, 3), (1, 1, 1), (PRODUCER, 3, 0), (PRODUCER, 0, 3)):
            assert look(2, 3, cursor, need, advance)[0] is False
            assert not ctx.get(dut.port_2.fits), (cursor, need, advance)
        await act(0, take=(3, PRODUCER, 2, 2), commit=(3, PRODUCER, 2))
        for cursor, need, advance in ((0, 3, 1), (0, 1, 3), (1, 1, 1)):
            assert look(2, 3, cursor, need, advance)[0] is False
        assert look(2, 3, 0, 2, 2) == (True, 0)
        await act(2, take=(3, 0, 2, 2), commit=(3, 0, 2))
        await set_up(3, Ring(0, 3, 16, {1: Position()}))
        assert look(2, 3, 1, 3, 3)[0] is False
        assert ctx.get(dut.port_2.fits)
        await act(0, take=(3, PRODUCER, 3, 3), commit=(3, PRODUCER, 3))
        assert look(2, 3, 1, 3, 3) == (True, 0)

    program(dut, 16, script)
