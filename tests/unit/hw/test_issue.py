"""The issue unit against its timing page, every output in every cycle, and together with the ring file."""

import dataclasses
import os
import random
import typing

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hw.issue import IssueUnit
from hw.ring_file import RingFile
from hw.spec.commands import (
    BODIES,
    COMMAND,
    HEADER,
    LEGAL_OPCODES,
    OPERAND,
    Engine,
    Fault,
    Opcode,
    pack,
)
from hw.spec.config import load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 60000  # cycles after which a simulation has hung
PRODUCER, NONE = 4, 7
CONFIG = load_config("tiny", {"rings.count": 5})
SIZE, WORD, HALF = CONFIG.scratchpad.bytes, CONFIG.word_bytes, CONFIG.accumulator_half

Values = dict[str, typing.Any]
UNUSED: Values = {"cursor": NONE}
GOOD: dict[Opcode, Values] = {
    Opcode.END: {},
    Opcode.WAIT: {},
    Opcode.RING_CONFIGURE: {"ring": 4, "slots": 3, "slot_bytes": 40, "ring_bytes": 120, "base": 64, "drained_mask": 5,
                            "consumer_mask": 5, "follows": [4, 1, 0, 2]},
    Opcode.LOAD: {"base": 3, "run_bytes": SIZE, "count": [1, 2, 3], "scratchpad_stride": [0, 1, SIZE]},
    Opcode.FILL: {"base": 0, "run_bytes": 1, "count": [1, 1, 65535]},
    Opcode.STORE: {"base": 1, "run_bytes": 77, "count": [9, 1, 1], "dram_stride": [-4, 0, 4]},
    Opcode.CONVOLVE: {"out_width": HALF // 8, "out_rows": 8, "kernel_width": 3, "kernel_height": 1, "in_blocks": 2},
}  # fmt: skip
STRIDES = ("in_row_stride", "in_block_stride", "out_row_stride", "residual_row_stride")
BAD: dict[Opcode, list[Values]] = {
    Opcode.RING_CONFIGURE: [
        {"ring": 5}, {"ring": 255}, {"slots": 0}, {"slots": 0, "ring_bytes": 0},
        {"slots": 1 << 14, "slot_bytes": 0, "ring_bytes": 0}, {"slots": (1 << 14) + 3}, {"slot_bytes": 41},
        {"slot_bytes": 40 | 1 << 31}, {"ring_bytes": 119}, {"ring_bytes": 120 | 1 << 30}, {"base": SIZE},
        {"base": SIZE - 116}, {"base": 64 | 1 << 31}, {"base": 64 + WORD // 2},
        {"base": SIZE, "slot_bytes": 0, "ring_bytes": 0},
        {"slots": 1, "slot_bytes": SIZE + 4, "ring_bytes": SIZE + 4, "base": 0}, {"consumer_mask": 5 | 16},
    ],
    Opcode.CONVOLVE: [
        {"out_width": 0}, {"out_rows": 0}, {"kernel_width": 0}, {"kernel_height": 0}, {"in_blocks": 0},
        {"out_rows": 9}, {"out_width": 32768, "out_rows": 32768}, {"out_width": HALF + 1, "out_rows": 1},
        *({name: stride} for name in STRIDES for stride in (2 * SIZE, 1 << 31)), {"diagonal": 1, "maximum": 1},
    ],
}  # fmt: skip
for _opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
    BAD[_opcode] = [
        {"run_bytes": 0}, {"run_bytes": SIZE + 1}, {"run_bytes": 1 << 31}, {"base": 4}, {"base": 128},
        {"count": [0, 1, 1]}, {"count": [1, 0, 1]}, {"count": [1, 1, 0]},
        {"scratchpad_stride": [SIZE + 1, 0, 0]}, {"scratchpad_stride": [0, 1 << 31, 0]},
        {"scratchpad_stride": [0, 0, SIZE + 1]},
    ]  # fmt: skip
FINE: dict[Opcode, list[Values]] = {
    Opcode.RING_CONFIGURE: [
        {"base": SIZE - 120}, {"slots": (1 << 14) - 1, "slot_bytes": 0, "ring_bytes": 0},
        {"slots": 1, "slot_bytes": SIZE, "ring_bytes": SIZE, "base": 0},
    ],
    Opcode.CONVOLVE: [
        {"out_width": HALF, "out_rows": 1}, {"out_width": 1, "out_rows": HALF},
        dict.fromkeys(STRIDES, 2 * SIZE - 1) | {"in_blocks": 1}, {"diagonal": 1}, {"maximum": 1},
    ],
}  # fmt: skip


def encode(opcode: int, operands: list[Values], body: Values | None = None) -> int:
    bits = pack(HEADER, {"opcode": opcode, "layer": 0xA5A5})
    operands = operands + [UNUSED] * (5 - len(operands))
    for k, operand in enumerate(operands):
        bits |= pack(OPERAND, operand) << (HEADER.size + k * OPERAND.size)
    layout = BODIES[Opcode(opcode)] if opcode in tuple(Opcode) else None
    if layout is not None:
        bits |= pack(layout, body or {}) << (COMMAND.size - COMMAND["body"].width)
    return bits


@dataclasses.dataclass
class Command:
    """A command, what decode must say of it, and its used operands in order."""

    opcode: int
    index: int
    operands: list[Values]
    body: Values
    verdict: Fault
    bits: int = 0

    def __post_init__(self) -> None:
        self.bits = encode(self.opcode, self.operands, self.body)
        self.used = [k for k, operand in enumerate(self.operands) if operand["cursor"] != NONE]


@dataclasses.dataclass
class Place:
    """What the ring file of the test answers for a ring."""

    base: int
    ring_bytes: int
    start: int


class Inputs(typing.NamedTuple):
    """Everything that the unit sees in one cycle; ``ready`` and ``fits`` are for any operand looked up."""

    command: Command | None  # on i
    o_ready: bool
    ready: bool
    fits: bool
    stalled: bool
    drained: bool
    engine_idle: bool
    engine_commit: tuple[int, int, int] | None
    engine_retire: int | None
    stop: bool
    clear: bool


def mask_of(body: Values) -> int:
    """Rings that must be drained: those named, and the ring itself."""
    return body["drained_mask"] | 1 << body["ring"]


def missing_operand(opcode: int, body: Values, used: list[bool]) -> bool:
    """Whether the engine would address an operand that is not there."""
    if opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
        return not used[0]
    if opcode != Opcode.CONVOLVE:
        return False
    last = bool(body.get("accumulate_last"))
    needed = [
        True,
        last or not body.get("maximum"),
        last and bool(body.get("load_table")),
        last and bool(body.get("residual")),
        last,
    ]
    return any(need and not there for need, there in zip(needed, used, strict=True))


def longest_step(opcode: int, body: Values, k: int) -> int:
    """Bytes that the ring of operand k must have at least."""
    body = dict.fromkeys(("in_block_stride", "out_row_stride", "residual_row_stride"), 0) | body
    last, n = bool(body.get("accumulate_last")), CONFIG.array.n
    if opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE) and k == 0:
        strides = body.get("scratchpad_stride", [0, 0, 0])
        return max(body["run_bytes"], *(s for s, count in zip(strides, body["count"], strict=True) if count > 1), 0)
    if opcode != Opcode.CONVOLVE:
        return 0
    several = body["out_rows"] > 1
    if k == 0:
        return max(1, body["in_block_stride"] if body["in_blocks"] > 1 else 0)
    if k == 1 and (last or not body.get("maximum")):
        return 9 * n if last else n
    if k == 2 and last and body.get("load_table"):
        return n
    if k == 3 and last and body.get("residual"):
        return max(n, body["residual_row_stride"] if several else 0)
    if k == 4 and last:
        return max(n, body["out_row_stride"] if several else 0)
    return 0


def illegal(ring: int, cursor: int) -> bool:
    return ring >= 5 or cursor in (5, 6)


class Model:
    """The timing page as a program: ``cycle`` gives the outputs of one cycle, then moves on to the next."""

    def __init__(self, places: list[Place]):
        self.places = places
        self.due: int | None = None
        self.reset()

    def reset(self) -> None:
        self.steps = self.body()
        next(self.steps)
        self.due = None
        self.due_next: int | None = None

    def quiet(self, at: Inputs) -> bool:
        return at.engine_idle and at.engine_commit is None and at.engine_retire is None

    def cycle(self, at: Inputs) -> Values:
        out: Values = {"flag": None, "commit": at.engine_commit, "retire": at.engine_retire, "idle": False}
        if self.due is not None and self.quiet(at):
            out["retire"] = self.due
        self.due_next = self.due
        out |= self.steps.send(at)
        if out["idle"] and self.due is not None:
            out["idle"] = False
        # The due retirement of this cycle is given, or covered by a later one of the engine.
        if self.due is not None and self.due_next == self.due:
            later = at.engine_retire is not None and at.engine_retire > self.due
            self.due_next = None if later or self.quiet(at) else self.due
        self.due = self.due_next
        if at.clear:
            self.reset()
        return out

    def body(self) -> typing.Generator[Values, Inputs, None]:
        at = yield {}
        while True:
            # Nothing held.
            command = at.command
            out = {"i_ready": True, "idle": True, "flag": "wait_command" if command is None else "pipeline"}
            stopped = at.stop
            at = yield out
            if command is None or stopped:
                continue
            # Decode.
            if at.stop:
                at = yield {"flag": "pipeline"}
                continue
            if command.verdict != Fault.NONE:
                at = yield from self.fault(command, command.verdict, at)
            at = yield {"flag": "pipeline"}
            operands = [] if command.opcode in (Opcode.END, Opcode.RING_CONFIGURE) else command.used
            dropped = False
            for k in operands:
                operand = command.operands[k]
                looked_up = False
                while not looked_up and not dropped:
                    out = {"look": (operand["ring"], operand["cursor"], operand["need"], operand["advance"])}
                    if at.stop:
                        dropped = True
                        out["flag"] = "pipeline"
                    elif illegal(operand["ring"], operand["cursor"]):
                        yield from self.fault(command, Fault.RING, at)
                    elif at.ready and self.leads_out(command, k):
                        yield from self.fault(command, Fault.FIELD, at)
                    elif at.ready:
                        looked_up = True
                        out["flag"] = "pipeline"
                    elif at.stalled and not at.fits:
                        yield from self.fault(command, Fault.RING, at)
                    else:
                        out["blocked"] = True
                        out["flag"] = "wait_free" if operand["cursor"] == PRODUCER else "wait_filled"
                    at = yield out
                if dropped:
                    break
            if dropped:
                continue
            for k in operands:
                operand = command.operands[k]
                look = (operand["ring"], operand["cursor"], operand["need"], operand["advance"])
                at = yield {"flag": "pipeline", "look": look, "take": True}
            if command.opcode in (Opcode.WAIT, Opcode.END):
                at = yield from self.hold(command, operands, at)
            elif command.opcode == Opcode.RING_CONFIGURE:
                while not at.drained and not at.stop:
                    at = yield {"flag": "wait_free", "mask": mask_of(command.body), "blocked": True}
                if at.stop:
                    at = yield {"flag": "pipeline"}
                else:
                    self.due_next = command.index
                    at = yield {"flag": "pipeline", "mask": mask_of(command.body), "configure": command.body}
            else:
                while True:
                    accepted = at.o_ready
                    at = yield {"flag": "pipeline", "offer": command}
                    if accepted:
                        break

    def leads_out(self, command: Command, k: int) -> bool:
        ring_bytes = self.places[command.operands[k]["ring"]].ring_bytes
        return max(command.operands[k]["offset"], longest_step(command.opcode, command.body, k)) > ring_bytes

    def hold(self, command: Command, operands: list[int], at: Inputs) -> typing.Generator[Values, Inputs, Inputs]:
        left = list(operands)
        while True:
            if at.stop and not left:
                return (yield {"flag": "pipeline"})
            if not self.quiet(at) or self.due is not None:
                at = yield {}
                continue
            out: Values = {"flag": "pipeline"}
            if left:
                operand = command.operands[left.pop(0)]
                out["commit"] = (operand["ring"], operand["cursor"], operand["advance"])
            if not left:
                out["retire"] = command.index
                out["job_done"] = command.opcode == Opcode.END
                return (yield out)
            at = yield out

    def fault(self, command: Command, code: Fault, at: Inputs) -> typing.Generator[Values, Inputs, typing.Any]:
        yield {"flag": "pipeline", "fault": (code, command.index)}
        while True:  # until clear starts over
            yield {"idle": True}


def random_command(rng: random.Random, engine: Engine, index: int, places: list[Place]) -> Command:
    legal = LEGAL_OPCODES[engine]
    opcode: int = rng.choice(legal)
    verdict = Fault.NONE
    body: Values = {}
    if rng.random() < 0.05:
        opcode = rng.choice([code for code in (*range(8), 128, 255) if code not in legal])
        verdict = Fault.OPCODE
    elif opcode in GOOD:
        body = dict(GOOD[Opcode(opcode)])
        if rng.random() < 0.03 and opcode in BAD:
            body |= rng.choice(BAD[Opcode(opcode)])
            verdict = Fault.FIELD
        elif rng.random() < 0.3 and opcode in FINE:
            body |= rng.choice(FINE[Opcode(opcode)])
    operands: list[Values] = []
    for _ in range(5):
        ring = rng.randrange(5)
        operand = {
            "ring": ring,
            "cursor": rng.choice([0, 1, 2, 3, PRODUCER]),
            "need": rng.randrange(1 << 14),
            "advance": rng.randrange(1 << 14),
            "offset": rng.choice([0, places[ring].ring_bytes, rng.randrange(places[ring].ring_bytes + 1)]),
        }
        if rng.random() < 0.5:
            operand["cursor"] = NONE
        elif rng.random() < 0.03:
            operand |= rng.choice([{"cursor": 5}, {"cursor": 6}, {"ring": 5}, {"ring": 63}])
        elif rng.random() < 0.01:
            operand["offset"] = rng.choice([places[ring].ring_bytes + 1, (1 << 26) - 1])
        operands.append(operand)
    for bit in ("accumulate_last", "maximum", "load_table", "residual", "diagonal"):
        if opcode == Opcode.CONVOLVE and rng.random() < 0.2:
            body[bit] = 1
    if body.get("diagonal") and body.get("maximum"):
        verdict = Fault.FIELD
    if verdict == Fault.NONE and opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
        room = max(1, places[operands[0]["ring"] % 5].ring_bytes)
        if rng.random() < 0.05:
            room = SIZE  # too much for most
        body |= {"run_bytes": rng.choice([1, room, rng.randint(1, room)])}
        body |= {"scratchpad_stride": [rng.choice([0, room, rng.randint(0, SIZE)]) for _ in range(3)]}
        body |= {"count": [1 if stride > room else rng.randint(1, 3) for stride in body["scratchpad_stride"]]}
    if verdict == Fault.NONE and opcode == Opcode.CONVOLVE:
        for k, name in ((0, "in_block_stride"), (4, "out_row_stride"), (3, "residual_row_stride")):
            room = max(1, places[operands[k]["ring"] % 5].ring_bytes)
            body[name] = rng.choice([0, room, rng.randint(0, room)]) + (rng.random() < 0.05)
    used = [operand["cursor"] != NONE for operand in operands]
    if verdict == Fault.NONE and missing_operand(opcode, body, used):
        if rng.random() < 0.03:
            verdict = Fault.FIELD
        else:
            for operand in operands:
                if operand["cursor"] == NONE:
                    operand["cursor"] = rng.choice([0, 1, 2, 3, PRODUCER])
    return Command(opcode, index, operands, body, verdict)


def simulate(dut: wiring.Component | Module, *benches: typing.Callable[..., typing.Any]) -> None:
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def watchdog(ctx):
        for _ in range(LIMIT):
            await ctx.tick()
        raise AssertionError("the simulation hangs")

    for bench in benches:
        simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def drive(ctx, dut: IssueUnit, at: Inputs, places: list[Place]) -> None:
    ctx.set(dut.i.valid, at.command is not None)
    if at.command is not None:
        ctx.set(dut.i.payload.command, at.command.bits)
        ctx.set(dut.i.payload.index, at.command.index)
    ctx.set(dut.o.ready, at.o_ready)
    ctx.set(dut.engine_idle, at.engine_idle)
    ctx.set(dut.engine_commit.valid, at.engine_commit is not None)
    if at.engine_commit is not None:
        for name, value in zip(("ring", "cursor", "advance"), at.engine_commit, strict=True):
            ctx.set(getattr(dut.engine_commit, name), value)
    ctx.set(dut.engine_retire.valid, at.engine_retire is not None)
    if at.engine_retire is not None:
        ctx.set(dut.engine_retire.index, at.engine_retire)
    ctx.set(dut.stop, at.stop)
    ctx.set(dut.clear, at.clear)
    if hasattr(dut, "configure"):
        ctx.set(dut.configure.drained, at.drained)
    # The ring file of this test.
    ring, cursor = ctx.get(dut.rings.ring), ctx.get(dut.rings.cursor)
    ctx.set(dut.rings.illegal, illegal(ring, cursor))
    ctx.set(dut.rings.ready, at.ready)
    ctx.set(dut.rings.fits, at.fits)
    ctx.set(dut.stalled, at.stalled)
    place = places[ring % 5]
    for name in ("base", "ring_bytes", "start"):
        ctx.set(getattr(dut.rings, name), getattr(place, name))


def check(ctx, dut: IssueUnit, expected: Values, places: list[Place]) -> None:
    flags = ctx.get(dut.flags)
    raised = [name for name in ("pipeline", "wait_filled", "wait_free", "wait_command") if flags[name]]
    assert raised == ([expected["flag"]] if expected["flag"] else [])
    assert ctx.get(dut.flags.as_value()).bit_count() == len(raised)
    assert bool(ctx.get(dut.i.ready)) == expected.get("i_ready", False)
    assert bool(ctx.get(dut.idle)) == expected["idle"]
    assert bool(ctx.get(dut.blocked)) == expected.get("blocked", False)
    assert bool(ctx.get(dut.job_done)) == expected.get("job_done", False)
    assert bool(ctx.get(dut.rings.take)) == expected.get("take", False)
    if "look" in expected:
        names = ("ring", "cursor", "need", "advance")
        assert tuple(ctx.get(getattr(dut.rings, name)) for name in names) == expected["look"]
    commit = None
    if ctx.get(dut.rings.commit):
        commit = tuple(ctx.get(getattr(dut.rings, f"commit_{name}")) for name in ("ring", "cursor", "advance"))
    assert commit == expected["commit"]
    assert (ctx.get(dut.retire.index) if ctx.get(dut.retire.valid) else None) == expected["retire"]
    fault = None
    if ctx.get(dut.fault.valid):
        report = ctx.get(dut.fault.report)
        fault = (report.code, report.command)
    assert fault == expected.get("fault")
    offered: Command | None = expected.get("offer")
    assert bool(ctx.get(dut.o.valid)) == (offered is not None)
    if offered is not None:
        payload = ctx.get(dut.o.payload)
        assert payload.command == offered.bits
        assert payload.index == offered.index
        for k, operand in enumerate(offered.operands):
            issued = payload.operand[k]
            assert issued.cursor == operand["cursor"]
            if operand["cursor"] != NONE:
                place = places[operand["ring"]]
                assert (issued.ring, issued.advance) == (operand["ring"], operand["advance"])
                assert (issued.base, issued.ring_bytes) == (place.base, place.ring_bytes)
                start = (place.start + operand["offset"]) % place.ring_bytes if place.ring_bytes else 0
                assert issued.start == start
    if hasattr(dut, "configure"):
        body = expected.get("configure")
        assert bool(ctx.get(dut.configure.valid)) == (body is not None)
        if "mask" in expected:
            assert ctx.get(dut.configure.drained_mask) == expected["mask"]
        if body is not None:
            for name in ("ring", "base", "slots", "slot_bytes", "ring_bytes", "consumer_mask"):
                assert ctx.get(getattr(dut.configure, name)) == body[name], name
            assert list(ctx.get(dut.configure.follows)) == body["follows"]


@pytest.mark.parametrize("engine", list(Engine))
def test_random(engine: Engine) -> None:
    print(f"RONDO_SEED={SEED}")
    rng = random.Random(SEED + engine)
    dut = IssueUnit(CONFIG, engine)
    rtlil.convert(dut)
    places = [Place(0, 0, 0)]
    for _ in range(4):
        ring_bytes = rng.randrange(1, SIZE + 1)
        places.append(Place(rng.randrange(SIZE), ring_bytes, rng.randrange(ring_bytes)))
    model = Model(places)
    seen: dict[str, int] = {}

    async def bench(ctx):
        index, command, faulted, engine_index = 0, None, 0, 0
        rates = (0.5, 0.5)
        for step in range(9000):
            if step % 50 == 0:
                rates = (rng.choice([0.1, 0.9, 1.0]), rng.choice([0.1, 0.5, 1.0]))
            if command is None and rng.random() < rates[0]:
                index += 1
                command = random_command(rng, engine, index, places)
            idle = rng.random() < rates[1]
            if index and not idle and rng.random() < 0.2:  # of a command before the one at hand
                engine_index = min(engine_index + 1, index - 1)
                retire = engine_index
            else:
                retire = None
            ready = rng.random() < rates[1]
            at = Inputs(
                command=command,
                o_ready=rng.random() < rates[1],
                ready=ready,
                fits=ready or rng.random() < 0.9,
                stalled=rng.random() < 0.1,
                drained=rng.random() < rates[1],
                engine_idle=idle,
                engine_commit=(rng.randrange(64), rng.randrange(8), rng.randrange(1 << 14))
                if rng.random() < 0.2
                else None,
                engine_retire=retire,
                stop=rng.random() < 0.02,
                clear=(faulted > 5 and rng.random() < 0.3) or rng.random() < 0.002,
            )
            drive(ctx, dut, at, places)
            expected = model.cycle(at)
            try:
                check(ctx, dut, expected, places)
            except AssertionError:
                print(step, at, expected)
                raise
            if expected.get("i_ready"):
                command = None
            faulted = 0 if at.clear else faulted + bool(faulted or expected.get("fault"))
            for name in expected:
                seen[name] = seen.get(name, 0) + (expected[name] not in (None, False))
            if expected.get("fault"):
                name = f"fault {expected['fault'][0].name}"
                seen[name] = seen.get(name, 0) + 1
            await ctx.tick()

    simulate(dut, bench)
    print(seen)
    wanted = {"blocked", "take", "commit", "retire", "offer", "job_done", "fault OPCODE", "fault RING", "fault FIELD"}
    assert all(seen.get(name, 0) > 5 for name in wanted), seen
    assert engine != Engine.LOAD or seen["configure"] > 20


@pytest.mark.parametrize("engine", list(Engine))
def test_every_field_is_checked(engine: Engine) -> None:
    """One command for each bad field, and good ones at the limits; decode answers in the cycle after the transfer."""
    dut = IssueUnit(CONFIG, engine)

    async def bench(ctx):
        ctx.set(dut.engine_idle, 1)
        ctx.set(dut.o.ready, 1)
        ctx.set(dut.rings.ready, 1)
        ctx.set(dut.rings.ring_bytes, SIZE)
        if engine == Engine.LOAD:
            ctx.set(dut.configure.drained, 1)
        for opcode in range(256):
            if opcode not in LEGAL_OPCODES[engine]:
                cases = [({}, Fault.OPCODE)]
            else:
                good = GOOD[Opcode(opcode)]
                cases = [(good, Fault.NONE)]
                cases += [(good | change, Fault.FIELD) for change in BAD.get(Opcode(opcode), [])]
                cases += [(good | change, Fault.NONE) for change in FINE.get(Opcode(opcode), [])]
            there = {"ring": 1, "cursor": 0, "need": 0, "advance": 0}
            for body, verdict in cases:
                ctx.set(dut.i.payload.command, encode(opcode, [there, there], body))
                ctx.set(dut.i.payload.index, 77)
                ctx.set(dut.i.valid, 1)
                assert ctx.get(dut.i.ready)
                await ctx.tick()
                ctx.set(dut.i.valid, 0)
                assert ctx.get(dut.fault.valid) == (verdict != Fault.NONE), (opcode, body)
                assert ctx.get(dut.fault.report.code) == verdict
                await ctx.tick().repeat(6)
                if verdict != Fault.NONE:
                    assert not ctx.get(dut.i.ready)
                    ctx.set(dut.clear, 1)
                await ctx.tick()
                ctx.set(dut.clear, 0)

    simulate(dut, bench)


@pytest.mark.parametrize("engine", [Engine.LOAD, Engine.COMPUTE, Engine.STORE])
def test_a_command_without_an_operand_it_needs_is_refused(engine: Engine) -> None:
    dut = IssueUnit(CONFIG, engine)
    there = {"ring": 1, "cursor": 0, "need": 0, "advance": 0}
    flags = [{"accumulate_last": last, "maximum": maximum} for last in (0, 1) for maximum in (0, 1)]
    flags += [{"accumulate_last": 1, name: 1} for name in ("load_table", "residual")]

    async def bench(ctx):
        for opcode in LEGAL_OPCODES[engine]:
            for extra in flags if opcode == Opcode.CONVOLVE else [{}]:
                for used in range(32):
                    present = [bool(used >> k & 1) for k in range(5)]
                    body = GOOD[opcode] | extra
                    ctx.set(dut.i.payload.command, encode(opcode, [there if use else UNUSED for use in present], body))
                    ctx.set(dut.i.valid, 1)
                    await ctx.tick()
                    ctx.set(dut.i.valid, 0)
                    assert ctx.get(dut.fault.valid) == missing_operand(opcode, body, present), (opcode, extra, present)
                    ctx.set(dut.clear, 1)
                    await ctx.tick()
                    ctx.set(dut.clear, 0)

    simulate(dut, bench)


N = CONFIG.array.n
ONE_RUN: Values = {"run_bytes": 1, "count": [1, 1, 1]}
LAST: Values = GOOD[Opcode.CONVOLVE] | {"accumulate_last": 1, "load_table": 1, "residual": 1}
STEPS: list[tuple[Opcode, Values, int, int]] = [
    *((opcode, change, 0, size) for opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE) for change, size in (
        (ONE_RUN, 1), (ONE_RUN | {"run_bytes": 600}, 600), (ONE_RUN | {"run_bytes": SIZE}, SIZE),
        (ONE_RUN | {"count": [2, 1, 1], "scratchpad_stride": [500, 0, 0]}, 500),
        (ONE_RUN | {"count": [1, 2, 1], "scratchpad_stride": [SIZE, 501, 0]}, 501),
        (ONE_RUN | {"count": [1, 1, 2], "scratchpad_stride": [SIZE, SIZE, 502]}, 502),
        (ONE_RUN | {"scratchpad_stride": [SIZE] * 3}, 1),
    )),
    (Opcode.CONVOLVE, LAST, 0, 1),
    (Opcode.CONVOLVE, LAST | {"in_block_stride": 700}, 0, 700),
    (Opcode.CONVOLVE, LAST | {"in_block_stride": 700, "in_blocks": 1}, 0, 1),
    (Opcode.CONVOLVE, LAST, 1, 9 * N),
    (Opcode.CONVOLVE, LAST | {"maximum": 1}, 1, 9 * N),
    (Opcode.CONVOLVE, LAST | {"accumulate_last": 0}, 1, N),
    (Opcode.CONVOLVE, LAST | {"accumulate_last": 0, "maximum": 1}, 1, 0),
    (Opcode.CONVOLVE, LAST, 2, N),
    (Opcode.CONVOLVE, LAST | {"load_table": 0}, 2, 0),
    (Opcode.CONVOLVE, LAST, 3, N),
    (Opcode.CONVOLVE, LAST | {"residual_row_stride": 700}, 3, 700),
    (Opcode.CONVOLVE, LAST | {"residual_row_stride": 700, "residual": 0}, 3, 0),
    (Opcode.CONVOLVE, LAST, 4, N),
    (Opcode.CONVOLVE, LAST | {"out_row_stride": 2 * SIZE - 1}, 4, 2 * SIZE - 1),
    (Opcode.CONVOLVE, LAST | {"out_row_stride": 700, "out_rows": 1}, 4, N),
    (Opcode.CONVOLVE, LAST | {"out_row_stride": 700, "accumulate_last": 0}, 4, 0),
]  # fmt: skip


@pytest.mark.parametrize("engine", list(Engine))
def test_no_step_is_longer_than_the_operands_ring(engine: Engine) -> None:
    """A ring of exactly the longest step's bytes is accepted, one of a byte less is refused at that operand."""
    dut = IssueUnit(CONFIG, engine)

    async def bench(ctx):
        ctx.set(dut.rings.ready, 1)
        ctx.set(dut.rings.fits, 1)
        for opcode, body, k, least in STEPS:
            if opcode not in LEGAL_OPCODES[engine]:
                continue
            operands = [{"ring": 1 + (j == k), "cursor": 0} for j in range(5)]  # ring 2 is the one in question
            for ring_bytes in (least, least - 1):
                if not 0 <= ring_bytes <= SIZE:
                    continue
                ctx.set(dut.i.payload.command, encode(opcode, operands, body))
                ctx.set(dut.i.payload.index, 9)
                ctx.set(dut.i.valid, 1)
                await ctx.tick()
                ctx.set(dut.i.valid, 0)
                fault, cycles = None, 0
                while not ctx.get(dut.rings.take) and fault is None:
                    ctx.set(dut.rings.ring_bytes, ring_bytes if ctx.get(dut.rings.ring) == 2 else SIZE)
                    if ctx.get(dut.fault.valid):
                        fault = ctx.get(dut.fault.report.code)
                    await ctx.tick()
                    cycles += 1
                assert fault == (None if ring_bytes == least else Fault.FIELD), (opcode, body, k, ring_bytes)
                assert cycles == (6 if fault is None else 2 + k)
                ctx.set(dut.clear, 1)
                await ctx.tick()
                ctx.set(dut.clear, 0)

    simulate(dut, bench)


def test_an_operand_that_does_not_fit_is_a_fault_only_when_nothing_moves() -> None:
    dut = IssueUnit(CONFIG, Engine.STORE)

    async def bench(ctx):
        for fits in (1, 0):
            operand = {"ring": 1, "cursor": 0, "need": 3, "advance": 3}
            ctx.set(dut.i.payload.command, encode(Opcode.STORE, [operand], ONE_RUN))
            ctx.set(dut.i.payload.index, 5)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            ctx.set(dut.rings.fits, fits)
            await ctx.tick()
            for _ in range(20):
                assert ctx.get(dut.blocked)
                assert not ctx.get(dut.fault.valid)
                await ctx.tick()
            ctx.set(dut.stalled, 1)
            assert ctx.get(dut.fault.valid) == (not fits)
            if not fits:
                assert (ctx.get(dut.fault.report.code), ctx.get(dut.fault.report.command)) == (Fault.RING, 5)
                await ctx.tick()
                assert not ctx.get(dut.i.ready)
            ctx.set(dut.stalled, 0)
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)

    simulate(dut, bench)


def test_cost_of_commands() -> None:
    """3 + 2k cycles each when nothing waits."""
    dut = IssueUnit(CONFIG, Engine.COMPUTE)

    async def bench(ctx):
        ctx.set(dut.o.ready, 1)
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.rings.ready, 1)
        ctx.set(dut.rings.ring_bytes, SIZE)
        operand = {"ring": 1, "cursor": 0, "need": 1, "advance": 1}
        for k in range(2, 6):
            ctx.set(dut.i.payload.command, encode(Opcode.CONVOLVE, [operand] * k, GOOD[Opcode.CONVOLVE]))
            cycles = 0
            while True:
                taken = ctx.get(dut.i.ready)
                if taken and cycles:
                    break
                cycles += 1
                await ctx.tick()
            assert cycles == 3 + 2 * k

    simulate(dut, bench)


def test_three_engines_through_rings() -> None:
    """Load fills, compute rewrites, store empties: every slot is used in order, and never before it is there."""
    print(f"RONDO_SEED={SEED}")
    rng = random.Random(SEED)
    rings = RingFile(CONFIG)
    units = [IssueUnit(CONFIG, engine) for engine in Engine]

    def build() -> Module:
        m = Module()
        m.submodules.rings = rings
        for engine, unit in zip(Engine, units, strict=True):
            m.submodules[f"issue_{engine.name.lower()}"] = unit
            wiring.connect(m, unit.rings, getattr(rings, f"port_{int(engine)}"))
        wiring.connect(m, units[0].configure, rings.configure)
        return m

    tiles = 40
    slots = {0: 3, 1: 2, 2: 4}
    # Ring 0: load to compute; ring 1: compute to store; ring 2: semaphore from store to load.
    configures = [
        {"ring": r, "slots": n, "slot_bytes": size, "ring_bytes": n * size, "base": 256 * r, "consumer_mask": 1,
         "follows": [4] * 4, "drained_mask": 7}
        for (r, n), size in zip(slots.items(), (16, 8, 0), strict=True)
    ]  # fmt: skip

    def one(ring: int, cursor: int) -> Values:
        return {"ring": ring, "cursor": cursor, "need": 1, "advance": 1}

    load = encode(Opcode.LOAD, [one(0, PRODUCER)], {"run_bytes": 16, "count": [1, 1, 1]})
    store = encode(Opcode.STORE, [one(1, 0), one(2, PRODUCER)], {"run_bytes": 8, "count": [1, 1, 1]})
    wait = encode(Opcode.WAIT, [one(2, 0)])
    programs = [
        [encode(Opcode.RING_CONFIGURE, [], body) for body in configures]
        + [load] * 5
        + [wait, load] * (tiles - 5)
        + [wait] * 5
        + [encode(Opcode.RING_CONFIGURE, [], configures[0]), encode(Opcode.END, [])],
        [
            encode(
                Opcode.CONVOLVE,
                [one(0, 0), UNUSED, UNUSED, UNUSED, one(1, PRODUCER)],
                GOOD[Opcode.CONVOLVE] | {"maximum": 1},
            )
        ]
        * tiles
        + [encode(Opcode.END, [])],
        [store] * tiles + [encode(Opcode.END, [])],
    ]
    log: list[tuple[str, int, int]] = []  # take or commit, ring, cursor
    retired: list[list[int]] = [[], [], []]
    done = [0, 0, 0]

    def engine_bench(number: int) -> typing.Callable[..., typing.Any]:
        unit, program = units[number], programs[number]

        async def bench(ctx):
            position, queue, _commits, timer = 0, [], [], 0
            while not done[number]:
                ctx.set(unit.i.valid, position < len(program) and rng.random() < 0.8)
                if position < len(program):
                    ctx.set(unit.i.payload.command, program[position])
                    ctx.set(unit.i.payload.index, position)
                ctx.set(unit.o.ready, len(queue) < 3 and rng.random() < 0.6)
                ctx.set(unit.engine_commit.valid, 0)
                ctx.set(unit.engine_retire.valid, 0)
                ctx.set(unit.engine_idle, not queue)
                timer += 1
                if queue and timer > 6:
                    index, places = queue[0]
                    ring, cursor, advance = places.pop(0)
                    ctx.set(unit.engine_commit.valid, 1)
                    for name, value in (("ring", ring), ("cursor", cursor), ("advance", advance)):
                        ctx.set(getattr(unit.engine_commit, name), value)
                    if not places:
                        ctx.set(unit.engine_retire.valid, 1)
                        ctx.set(unit.engine_retire.index, index)
                        queue.pop(0)
                        timer = rng.randrange(6)
                accept = ctx.get(unit.i.ready) and ctx.get(unit.i.valid)
                issue = ctx.get(unit.o.ready) and ctx.get(unit.o.valid)
                if issue:
                    payload = ctx.get(unit.o.payload)
                    used = [place for place in payload.operand if place.cursor != NONE]
                    queue.append((payload.index, [(p.ring, p.cursor, p.advance) for p in used]))
                    for place in used:
                        number_of = sum(entry == ("start", place.ring, place.cursor) for entry in log)
                        log.append(("start", place.ring, place.cursor))
                        if place.ring_bytes:
                            assert place.base == 256 * place.ring
                            slot_bytes = place.ring_bytes // slots[place.ring]
                            assert place.start == number_of % slots[place.ring] * slot_bytes
                assert not ctx.get(unit.fault.valid)
                if ctx.get(unit.rings.commit):
                    log.append(("commit", ctx.get(unit.rings.commit_ring), ctx.get(unit.rings.commit_cursor)))
                if ctx.get(unit.retire.valid):
                    retired[number].append(ctx.get(unit.retire.index))
                done[number] = ctx.get(unit.job_done)
                await ctx.tick()
                position += accept

        return bench

    rtlil.convert(build(), ports=[units[0].idle])
    simulate(build(), *(engine_bench(number) for number in range(3)))

    for number, program in enumerate(programs):
        assert retired[number] == sorted(set(retired[number]))
        assert retired[number][-1] == len(program) - 1
    for ring, count in slots.items():
        filled = passed = started = 0
        for what, of, cursor in log:
            if of == ring:
                filled += (what, cursor) == ("commit", PRODUCER)
                passed += (what, cursor) == ("commit", 0)
                started += (what, cursor) == ("start", 0)
                assert passed <= filled <= passed + count
                assert started <= filled
        assert filled == passed == tiles
