"""The front end with engines and memory in Python: every cycle against docs/timing/front_end.md, and whole jobs."""

import dataclasses
import os
import random
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.front_end import FrontEnd
from hw.spec.commands import COMMAND_BYTES, JOB_BYTES, Engine, Fault, Opcode
from hw.spec.config import load_config

CONFIG = load_config("tiny", {"dma.bus_bits": 512, "command.prefetch": 2})
JOB_RING, LOG2_ENTRIES = 0x1_0000, 2
PROGRAM = {engine: 0x2_0000 + 0x1_0000 * engine for engine in Engine}
NAMES = {engine: engine.name.lower() for engine in Engine}


def seed() -> int:
    value = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={value}")
    return value


def before(a: int, b: int) -> bool:
    return bool((a - b) >> 15 & 1)


class Model:
    """The page. ``step`` takes one cycle's inputs and returns the outputs of that cycle."""

    def __init__(self) -> None:
        self.head = self.newest = 0
        self.record: tuple[int, int, int, int] | None = None  # job index, engine, code, command
        self.running = dict.fromkeys(Engine, False)
        self.job_index = dict.fromkeys(Engine, 0)
        self.own_fault = dict.fromkeys(Engine, False)
        self.job: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.finished: dict[int, int] = {}
        self.state, self.was_quiet = "run", False

    def step(self, i: dict) -> dict:
        record = self.record
        stop = {
            e: self.own_fault[e] or (record is not None and not before(self.job_index[e], record[0])) for e in Engine
        }
        ended = self.newest != self.head and all(self.job_index[e] != self.head for e in Engine)
        valid = ended if self.state == "run" else self.state == "fail"
        clear = self.state == "stopped" and i["resume"]
        completion = None
        if valid:
            completion = {
                "job": self.job[self.head], "started": self.started[self.head], "finished": self.finished[self.head],
                "status": 0, "engine": 0, "command": 0,
            }  # fmt: skip
            if self.state == "fail":
                assert record is not None
                completion |= {"status": record[2], "engine": record[1], "command": record[3]}
        out = {
            "job_head": self.head, "running": self.newest != self.head, "stopped": self.state == "stopped",
            "clear": clear, "completion": completion,
            "fault": record or (0, 0, 0, 0),
            "engines": {
                e: (
                    self.running[e],
                    self.job_index[e],
                    stop[e],
                    stop[e] or (not self.running[e] and self.job_index[e] == self.newest),
                )
                for e in Engine
            },
        }  # fmt: skip

        quiet = (
            record is not None and record[0] == self.head and not i["faults"]
            and all(not before(self.job_index[e], self.head) for e in Engine)
            and all(i["idle"][e] or not self.running[e] for e in Engine)
        )  # fmt: skip
        may_begin = i["enable"] and self.newest != i["doorbell"] and (self.newest - self.head) % 65536 < 2
        starts = [
            e for e in Engine
            if not self.running[e] and i["ready"][e] and (record is None or before(self.job_index[e], record[0]))
            and (self.job_index[e] != self.newest or may_begin)
        ]  # fmt: skip
        if any(self.job_index[e] == self.newest for e in starts):
            self.started[self.newest], self.job[self.newest] = i["cycle"], 0
            self.newest = (self.newest + 1) % 65536
        for e in starts:
            self.running[e] = True
        for e, (code, command) in i["faults"].items():
            self.own_fault[e] = True
            if self.record is None or before(self.job_index[e], self.record[0]):
                self.record = (self.job_index[e], int(e), code, command)
        for e in Engine:
            if i["entry"][e] is not None:
                self.job[self.job_index[e]] = i["entry"][e]
            if i["job_done"][e]:
                self.finished[self.job_index[e]] = i["cycle"]
                self.running[e], self.job_index[e] = False, (self.job_index[e] + 1) % 65536
        if valid and i["completion_ready"]:
            self.head = (self.head + 1) % 65536
        if self.state == "run":
            if quiet and self.was_quiet:
                self.state, self.finished[self.head] = "fail", i["cycle"]
            self.was_quiet = quiet and self.state == "run"
        elif self.state == "fail":
            self.state = "stopped" if i["completion_ready"] else "fail"
        elif clear:
            self.state, self.record, self.newest = "run", None, self.head
            for e in Engine:
                self.running[e], self.job_index[e], self.own_fault[e] = False, self.head, False
        return out


class FetchMemory:
    """Read side of one fetch port."""

    def __init__(self, world: "World", engine: Engine, latency: int):
        self.world, self.engine, self.latency = world, engine, latency

    async def run(self, dut: FrontEnd, ctx) -> None:
        port, width, cycle = getattr(dut, f"fetch_{NAMES[self.engine]}"), CONFIG.bus_bytes, 0
        beats: list[tuple[int, int, bool, bool]] = []
        ctx.set(port.request.ready, 1)
        while True:
            arrives = bool(beats) and beats[0][0] <= cycle
            ctx.set(port.data.valid, int(arrives))
            if arrives:
                _, address, last, error = beats.pop(0)
                block = self.world.memory.get(address & ~127, bytes(128))
                word = int.from_bytes(block[address & 127 :][:width], "little")
                ctx.set(port.data.p, {"data": word, "last": int(last), "error": int(error), "client": 0})
            _, _, valid, p = await ctx.tick().sample(port.request.valid, port.request.p)
            if valid:
                error = self.world.fetch_error(self.engine, p.address)
                for i in range(p.beats):
                    beats.append((cycle + self.latency, p.address + i * width, i == p.beats - 1, error))
            cycle += 1


class FakeEngine:
    """Issue unit and engine: one command at a time, waits (may be stopped), then works (goes on to its end)."""

    def __init__(self, world: "World", engine: Engine):
        self.world, self.engine = world, engine

    async def run(self, dut: FrontEnd, ctx) -> None:
        name, world, rng = NAMES[self.engine], self.world, self.world.rng
        commands, retire = getattr(dut, f"commands_{name}"), getattr(dut, f"retire_{name}")
        fault, idle = getattr(dut, f"fault_{name}"), getattr(dut, f"idle_{name}")
        job_done, stop = getattr(dut, f"job_done_{name}"), getattr(dut, f"stop_{name}")
        job_index = getattr(dut, f"job_index_{name}")
        held = None  # index, is it END
        wait = work = 0
        while True:
            ctx.set(retire.valid, 0)
            ctx.set(job_done, 0)
            ctx.set(fault.valid, 0)
            ctx.set(idle, int(held is None))
            ctx.set(commands.ready, int(held is None and rng.random() < 0.8))
            if held is not None and wait == 0 and work == 0:
                index, end = held
                code = world.faults.get((self.engine, ctx.get(job_index), index))
                if code:
                    ctx.set(fault.valid, 1)
                    ctx.set(fault.report, {"code": code, "command": index})
                else:
                    ctx.set(retire.valid, 1)
                    ctx.set(retire.index, index)
                    ctx.set(job_done, int(end))
                held = None
            _, _, taken, p, stopped, j = await ctx.tick().sample(
                commands.valid & commands.ready, commands.p, stop, job_index
            )
            if held is not None and stopped and wait:
                held = None  # dropped: it has not begun
            elif held is not None:
                wait, work = max(wait - 1, 0), work - 1 if wait == 0 else work
            if taken:
                assert held is None
                block = p.command.to_bytes(COMMAND_BYTES, "little")
                world.received.append((self.engine, j, p.index, block))
                held = p.index, block[0] == Opcode.END
                wait, work = rng.randrange(world.pace[self.engine]), rng.randrange(1, world.pace[self.engine] + 1)
                if stopped:
                    held = None


@dataclasses.dataclass
class World:
    """One simulation: what is in memory, what goes wrong, what came out."""

    rng: random.Random
    pace: dict[Engine, int]
    programs: dict[Engine, list[bytes]]
    faults: dict[tuple[Engine, int, int], int] = dataclasses.field(default_factory=dict)
    """Code by engine, job index and command index."""
    bad_fetch: float = 0.0
    bad_entries: set[tuple[Engine, int]] = dataclasses.field(default_factory=set)
    """Job ring entries whose fetch fails, once for each engine."""
    memory: dict[int, bytes] = dataclasses.field(default_factory=dict)
    received: list[tuple[Engine, int, int, bytes]] = dataclasses.field(default_factory=list)
    completions: list[dict[str, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        for engine, program in self.programs.items():
            for i, block in enumerate(program):
                self.memory[PROGRAM[engine] + COMMAND_BYTES * i] = block

    def fetch_error(self, engine: Engine, address: int) -> bool:
        entry = (address - JOB_RING) // JOB_BYTES
        if (engine, entry) in self.bad_entries:
            self.bad_entries.discard((engine, entry))
            return True
        return self.rng.random() < self.bad_fetch

    def entry(self, job_index: int) -> bytes:
        block = (1000 + job_index).to_bytes(4, "little") + self.rng.randbytes(JOB_BYTES // 2 - 4)
        for _ in range(8):  # addresses and sizes that the NPU has
            block += self.rng.getrandbits(CONFIG.address_bits).to_bytes(8, "little")
        self.memory[JOB_RING + job_index % (1 << LOG2_ENTRIES) * JOB_BYTES] = block
        return block


def program(rng: random.Random, commands: int) -> list[bytes]:
    opcodes = [Opcode.LOAD] * (commands - 1) + [Opcode.END]
    return [bytes([opcode]) + rng.randbytes(COMMAND_BYTES - 1) for opcode in opcodes]


def run(
    world: World, jobs: int, cycles: int, *, completion_ready: float = 1.0, enable: float = 1.0, resume: float = 0.1
) -> None:
    """Run ``jobs`` jobs to their completions, comparing every cycle with the model."""
    rng = world.rng
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rtlil.convert(FrontEnd(CONFIG))
        dut = FrontEnd(CONFIG)
        simulator = Simulator(dut)

    async def main(ctx) -> None:
        model, tail = Model(), 0
        entries: dict[int, bytes] = {}
        ctx.set(dut.job_ring_address, JOB_RING)
        ctx.set(dut.job_ring_log2_entries, LOG2_ENTRIES)
        for engine, name in NAMES.items():
            ctx.set(getattr(dut, f"program_address_{name}"), PROGRAM[engine])
            ctx.set(getattr(dut, f"program_commands_{name}"), len(world.programs[engine]))
        for cycle in range(cycles):
            while tail < jobs and tail - model.head < 1 << LOG2_ENTRIES:
                entries[tail] = world.entry(tail)
                tail += 1
            inputs = {
                "cycle": cycle, "doorbell": tail, "enable": int(rng.random() < enable),
                "resume": int(rng.random() < resume), "completion_ready": int(rng.random() < completion_ready),
            }  # fmt: skip
            for name in ("cycle", "doorbell", "enable", "resume"):
                ctx.set(getattr(dut, name), inputs[name])
            ctx.set(dut.completion.ready, inputs["completion_ready"])
            faults: dict[Engine, tuple[int, int]] = {}
            for e, name in NAMES.items():
                fault = next(
                    (f for f in (getattr(dut, f"fault_{name}"), dut.fetchers[e].fault) if ctx.get(f.valid)), None
                )
                if fault:
                    faults[e] = ctx.get(fault.report.code), ctx.get(fault.report.command)
            inputs |= {
                "ready": {e: ctx.get(dut.fetchers[e].ready) for e in Engine},
                "entry": {
                    e: ctx.get(dut.fetchers[e].entry.job) if ctx.get(dut.fetchers[e].entry_valid) else None
                    for e in Engine
                },
                "job_done": {e: ctx.get(getattr(dut, f"job_done_{NAMES[e]}")) for e in Engine},
                "idle": {e: ctx.get(getattr(dut, f"idle_{NAMES[e]}")) for e in Engine},
                "faults": faults,
            }
            expected = model.step(inputs)
            names = ("fault_job_index", "fault_engine", "fault_code", "fault_command")
            seen = {name: ctx.get(getattr(dut, name)) for name in ("job_head", "running", "stopped", "clear")}
            seen |= {"fault": tuple(ctx.get(getattr(dut, name)) for name in names), "completion": None}
            if ctx.get(dut.completion.valid):
                p = ctx.get(dut.completion.p)
                seen["completion"] = {
                    name: getattr(p, name) for name in ("job", "started", "finished", "status", "engine", "command")
                }
            seen["engines"] = {
                e: tuple(ctx.get(getattr(dut, f"{n}_{NAMES[e]}")) for n in ("running", "job_index", "stop", "parked"))
                for e in Engine
            }
            assert seen == expected, cycle
            for name in NAMES.values():
                if ctx.get(getattr(dut, f"commands_{name}").valid):  # base registers hold this job's entry
                    entry = entries[ctx.get(getattr(dut, f"job_index_{name}"))]
                    for i, base in enumerate(ctx.get(getattr(dut, f"base_{name}"))):
                        assert base.address == int.from_bytes(entry[64 + 16 * i :][:8], "little")
                        assert base.bytes == int.from_bytes(entry[72 + 16 * i :][:8], "little")
            if seen["completion"] and inputs["completion_ready"]:
                world.completions.append(seen["completion"])
                if len(world.completions) == jobs:
                    return
            await ctx.tick()
        raise TimeoutError(f"{len(world.completions)} of {jobs} jobs after {cycles} cycles")

    def bound(function):
        async def process(ctx) -> None:
            await function(dut, ctx)

        return process

    simulator.add_clock(1e-6)
    for engine in Engine:
        latency = rng.randrange(1, 12)
        simulator.add_testbench(bound(FetchMemory(world, engine, latency).run), background=True)
        simulator.add_testbench(bound(FakeEngine(world, engine).run), background=True)
    simulator.add_testbench(main)
    simulator.run()


def check_received(world: World, jobs: int) -> None:
    """Every engine saw, of every job, its program from the start; all of it if the job succeeded."""
    for job_index in range(jobs):
        for engine in Engine:
            seen = [(index, block) for e, j, index, block in world.received if (e, j) == (engine, job_index)]
            runs: list[list[tuple[int, bytes]]] = []  # a job may be begun again after a fault in the one before
            for index, block in seen:
                if index == 0:
                    runs.append([])
                runs[-1].append((index, block))
            for commands in runs:
                assert commands == list(enumerate(world.programs[engine]))[: len(commands)]
            if not world.completions[job_index]["status"]:
                assert runs
                assert len(runs[-1]) == len(world.programs[engine])


def test_jobs_end_in_order() -> None:
    rng = random.Random(seed())
    pace = {engine: rng.randrange(1, 12) for engine in Engine}
    world = World(rng, pace, {engine: program(rng, rng.randrange(1, 6)) for engine in Engine})
    run(world, 12, 6000, completion_ready=rng.choice([0.05, 1.0]), enable=rng.choice([0.2, 1.0]))
    assert [completion["job"] for completion in world.completions] == [1000 + i for i in range(12)]
    assert all(completion["status"] == 0 for completion in world.completions)
    assert all(completion["started"] < completion["finished"] for completion in world.completions)
    check_received(world, 12)


@pytest.mark.parametrize("bad_fetch", [0.0, 0.03])
def test_random_faults(bad_fetch: float) -> None:
    rng = random.Random(seed())
    pace = {engine: rng.randrange(1, 12) for engine in Engine}
    world = World(rng, pace, {engine: program(rng, 5) for engine in Engine}, bad_fetch=bad_fetch)
    jobs = 20
    for job_index in range(jobs):
        for engine in Engine:
            if rng.random() < 0.2:
                world.faults[engine, job_index, rng.randrange(5)] = rng.choice([Fault.OPCODE, Fault.RING, Fault.BUS])
    run(world, jobs, 20000)
    for job_index, completion in enumerate(world.completions):
        planned = {(int(e), i, code) for (e, j, i), code in world.faults.items() if j == job_index}
        report = completion["engine"], completion["command"], completion["status"]
        if completion["status"] == Fault.FETCH:
            assert bad_fetch
        elif planned:
            assert report in planned
        else:
            assert report == (0, 0, 0)
    check_received(world, jobs)


def test_a_fault_stops_the_task_before_the_next_job_until_resumed() -> None:
    rng = random.Random(seed())
    world = World(rng, dict.fromkeys(Engine, 3), {engine: program(rng, 3) for engine in Engine})
    world.faults[Engine.STORE, 1, 2] = Fault.ADDRESS
    with pytest.raises(TimeoutError, match="2 of 4 jobs"):
        run(world, 4, 1500, resume=0.0)
    assert [completion["status"] for completion in world.completions] == [0, Fault.ADDRESS]
    assert world.completions[1]["job"] == 1001
    assert all(job_index <= 1 for engine, job_index, _, _ in world.received if engine is Engine.STORE)
    assert all(job_index <= 2 for _, job_index, _, _ in world.received)  # two jobs were in flight


def test_the_lowest_job_wins_though_a_later_one_faulted_first() -> None:
    rng = random.Random(seed())
    pace = {Engine.LOAD: 1, Engine.COMPUTE: 1, Engine.STORE: 60}
    world = World(rng, pace, {engine: program(rng, 2) for engine in Engine})
    world.faults[Engine.LOAD, 1, 0] = Fault.RING  # long before store gets to the end of job 0
    world.faults[Engine.STORE, 0, 1] = Fault.BUS
    run(world, 3, 4000)
    assert [(c["status"], c["engine"], c["command"]) for c in world.completions] == [
        (Fault.BUS, Engine.STORE, 1),
        (Fault.RING, Engine.LOAD, 0),
        (0, 0, 0),
    ]


def test_an_entry_that_cannot_be_read_fails_the_job() -> None:
    rng = random.Random(seed())
    world = World(rng, dict.fromkeys(Engine, 1), {engine: program(rng, 2) for engine in Engine})
    world.bad_entries = {(engine, 1) for engine in Engine}
    run(world, 3, 2000)
    statuses = [(c["job"], c["status"], c["command"]) for c in world.completions]
    assert statuses == [(1000, 0, 0), (0, Fault.FETCH, 0), (1002, 0, 0)]
