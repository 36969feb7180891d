"""The fetcher against a Python memory: data, order, faults, flushes, and docs/timing/fetcher.md to the cycle."""

import os
import random
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.fetcher import Fetcher
from hw.interfaces import CLIENT_FETCH_COMPUTE
from hw.spec.commands import COMMAND_BYTES, JOB_BYTES, Fault, Opcode
from hw.spec.config import load_config

JOB_RING, PROGRAM = 0x1_0000_0000, 0x2_0000_1000


def seed() -> int:
    value = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={value}")
    return value


def simulate(config, cycles: int, bench, *background) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rtlil.convert(Fetcher(config, CLIENT_FETCH_COMPUTE))
        dut = Fetcher(config, CLIENT_FETCH_COMPUTE)
        simulator = Simulator(dut)

    async def watchdog(ctx) -> None:
        for _ in range(cycles):
            await ctx.tick()
        raise TimeoutError(f"not ended after {cycles} cycles")

    def bound(function):
        async def run(ctx) -> None:
            await function(dut, ctx)

        return run

    simulator.add_clock(1e-6)
    for function in background:  # first, so that in each cycle they come first
        simulator.add_testbench(bound(function), background=True)
    simulator.add_testbench(bound(bench))
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def random_command(rng: random.Random, opcode: int) -> bytes:
    return bytes([opcode]) + rng.randbytes(COMMAND_BYTES - 1)


def random_program(rng: random.Random, commands: int, end: int | None) -> list[bytes]:
    opcodes = [rng.choice([0, *(opcode for opcode in Opcode if opcode != Opcode.END), 255]) for _ in range(commands)]
    if end is not None:
        opcodes[end] = Opcode.END
    return [random_command(rng, opcode) for opcode in opcodes]


class Memory:
    """Read side of a memory port: bursts answered in order after ``latency`` cycles, at most a beat a cycle."""

    def __init__(self, config, rng: random.Random, patience: float = 1.0, latency: int = 5):
        self.config, self.rng, self.patience, self.latency = config, rng, patience, latency
        self.bytes: dict[int, bytes] = {}
        """128-byte blocks by address."""
        self.bad: set[int] = set()
        """Addresses of beats answered with an error."""
        self.requested: list[tuple[int, int]] = []
        """Cycle in which each burst was taken, and its address."""
        self.beats: list[tuple[int, int]] = []
        """Cycle in which each beat arrived, and its address."""
        self.cycle = 0

    def fill(self, address: int, blocks: list[bytes]) -> None:
        for i, block in enumerate(blocks):
            self.bytes[address + 128 * i] = block

    async def run(self, dut: Fetcher, ctx) -> None:
        port, width = dut.memory, self.config.bus_bytes
        beats: list[tuple[int, int, bool]] = []  # not before this cycle, address, last
        held = None
        while True:
            ctx.set(port.request.ready, int(self.rng.random() < self.patience))
            beat = beats[0] if beats and beats[0][0] <= self.cycle and self.rng.random() < self.patience else None
            ctx.set(port.data.valid, int(beat is not None))
            if beat:
                _, address, last = beats.pop(0)
                block = self.bytes.get(address & ~127, bytes(128))
                data = int.from_bytes(block[address & 127 :][:width], "little")
                error = int(address in self.bad)
                ctx.set(port.data.p, {"data": data, "last": int(last), "error": error, "client": CLIENT_FETCH_COMPUTE})
                self.beats.append((self.cycle, address))
            _, _, p, valid, ready, data_ready = await ctx.tick().sample(
                port.request.p, port.request.valid, port.request.ready, port.data.ready
            )
            assert data_ready, "room must have been reserved"
            burst = (p.address, p.beats) if valid else None
            assert held is None or held == burst, "a request must stay until it is taken"
            held = burst if valid and not ready else None
            if valid and ready:
                assert p.client == CLIENT_FETCH_COMPUTE
                assert p.address % width == 0
                assert 1 <= p.beats <= self.config.dma.burst_beats
                assert p.address // 4096 == (p.address + p.beats * width - 1) // 4096
                self.requested.append((self.cycle, p.address))
                for i in range(p.beats):
                    beats.append((self.cycle + self.latency, p.address + i * width, i == p.beats - 1))
            self.cycle += 1


class Bench:
    """Runs jobs and records what comes out."""

    def __init__(self, config, rng: random.Random, memory: Memory, log2_entries: int = 2):
        self.config, self.rng, self.memory, self.log2_entries = config, rng, memory, log2_entries
        self.events: list[tuple[int, str, object]] = []
        """Cycle, kind, value: entry, command, fault."""

    async def monitor(self, dut: Fetcher, ctx) -> None:
        cycle = 0
        while True:
            _, _, entry_valid, entry, taken, command, fault, report, precise = await ctx.tick().sample(
                dut.entry_valid, dut.entry, dut.commands.valid & dut.commands.ready, dut.commands.p,
                dut.fault.valid, dut.fault.report, dut.engine_idle & ~dut.hold,
            )  # fmt: skip
            assert entry_valid + taken + fault <= 1
            assert precise or not fault
            if entry_valid:
                base = [(register.address, register.bytes) for register in entry.base]
                self.events.append((cycle, "entry", (entry.job, base)))
            if taken:
                value = (command.index, command.epoch, command.command.to_bytes(COMMAND_BYTES, "little"))
                self.events.append((cycle, "command", value))
            if fault:
                self.events.append((cycle, "fault", (report.code, report.command)))
            cycle += 1

    async def start(self, dut: Fetcher, ctx, job_index: int, commands: int) -> None:
        while not ctx.get(dut.ready):
            await ctx.tick()
        ctx.set(dut.job_ring_address, JOB_RING | self.rng.getrandbits(7))
        ctx.set(dut.job_ring_log2_entries, self.log2_entries)
        ctx.set(dut.program_address, PROGRAM | self.rng.getrandbits(7))
        ctx.set(dut.program_commands, commands)
        ctx.set(dut.job_index, job_index)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)

    def job(self, job_index: int) -> bytes:
        entry = self.rng.randbytes(JOB_BYTES // 2)
        for _ in range(8):  # each of any length
            entry += self.rng.getrandbits(self.rng.choice([20, 36, 37, 64])).to_bytes(8, "little")
        self.memory.bytes[JOB_RING + job_index % (1 << self.log2_entries) * JOB_BYTES] = entry
        return entry

    def entry(self, block: bytes) -> tuple[int, list[tuple[int, int]]]:
        space = 1 << self.config.address_bits

        def buffer(start: int) -> tuple[int, int]:
            address, size = (int.from_bytes(block[i : i + 8], "little") for i in (start, start + 8))
            return address % space, min(size, space) if address < space else 0

        return int.from_bytes(block[:4], "little"), [buffer(64 + 16 * i) for i in range(4)]


@pytest.mark.parametrize(
    ("bus_bits", "burst_beats", "prefetch", "patience"),
    [(32, 16, 4, 0.8), (32, 2, 2, 1.0), (64, 16, 3, 0.6), (256, 16, 4, 1.0), (512, 1, 5, 0.7)],
)
def test_random_jobs_faults_and_flushes(bus_bits: int, burst_beats: int, prefetch: int, patience: float) -> None:
    """Each job ends in its END, in a fault, or in a flush at a random time; the next begins clean."""
    config = load_config(
        "tiny", {"dma.bus_bits": bus_bits, "dma.burst_beats": burst_beats, "command.prefetch": prefetch}
    )
    rng = random.Random(seed())
    memory = Memory(config, rng, patience, rng.randrange(1, 20))
    bench = Bench(config, rng, memory)

    async def main(dut: Fetcher, ctx) -> None:
        epoch = 0
        for job_index in range(20):
            commands = rng.randrange(0, 12)
            end = rng.randrange(commands) if commands and rng.random() < 0.8 else None
            program = random_program(rng, commands, end)
            entry = bench.job(job_index)
            memory.fill(PROGRAM, program)
            memory.bad.clear()
            bad = rng.randrange(-1, commands) if rng.random() < 0.3 else None  # -1: the entry
            if bad is not None:
                place = JOB_RING + job_index % 4 * JOB_BYTES if bad < 0 else PROGRAM + bad * COMMAND_BYTES
                memory.bad.add(place + rng.randrange(0, 128, config.bus_bytes))
            stop = end if end is not None else commands
            if bad is not None and bad <= stop:  # a bad END is a fault
                delivered, fault = max(bad, 0), (Fault.FETCH, max(bad, 0))
            elif end is None:
                delivered, fault = commands, (Fault.FETCH, commands)
            else:
                delivered, fault = end + 1, None
            flush_after = rng.randrange(200) if rng.random() < 0.3 else None

            bench.events.clear()
            await bench.start(dut, ctx, job_index, commands)
            for cycle in range(4000):
                ctx.set(dut.commands.ready, rng.getrandbits(1))
                ctx.set(dut.engine_idle, rng.getrandbits(1))
                ctx.set(dut.hold, int(rng.random() < 0.1))
                ctx.set(dut.flush, int(cycle == flush_after))
                await ctx.tick()
                if cycle == flush_after:
                    epoch = (epoch + 1) % 4
                    break
                if ctx.get(dut.ready):
                    break
            ctx.set(dut.flush, 0)
            count = len(bench.events)
            for _ in range(rng.randrange(30)):  # nothing comes afterwards
                await ctx.tick()
            assert len(bench.events) == count
            expected = [] if bad == -1 else [("entry", bench.entry(entry))]
            used = (epoch - (cycle == flush_after)) % 4
            expected += [("command", (i, used, program[i])) for i in range(delivered)]
            expected += [("fault", fault)] if fault else []
            seen = [event[1:] for event in bench.events]
            if cycle == flush_after:
                assert seen == expected[: len(seen)]
            else:
                assert seen == expected

    simulate(config, 40000, main, bench.monitor, memory.run)


@pytest.mark.parametrize(("bus_bits", "burst_beats"), [(32, 16), (128, 8), (512, 16)])
def test_cycles_are_the_pages(bus_bits: int, burst_beats: int) -> None:
    """Start, head and room as the page says, with a queue that fills up and then drains a command a cycle."""
    config = load_config("tiny", {"dma.bus_bits": bus_bits, "dma.burst_beats": burst_beats})
    rng = random.Random(seed())
    memory = Memory(config, rng, latency=7)
    bench = Bench(config, rng, memory)
    rows, commands = config.command.prefetch, 11
    item_beats = 128 // config.bus_bytes
    bursts = max(1, item_beats // burst_beats)
    release = 400  # commands are taken from here on
    start = 3

    async def main(dut: Fetcher, ctx) -> None:
        memory.fill(PROGRAM, random_program(rng, commands, commands - 1))
        bench.job(0)
        for _ in range(start):
            await ctx.tick()
        await bench.start(dut, ctx, 0, commands)
        while memory.cycle < release:
            await ctx.tick()
        ctx.set(dut.commands.ready, 1)
        while not ctx.get(dut.ready):
            await ctx.tick()
        taken = [cycle for cycle, kind, _ in bench.events if kind == "command"]
        assert memory.cycle == taken[-1] + 1

    simulate(config, 2000, main, bench.monitor, memory.run)

    # the page, item by item: last beat, read from the queue, head
    last = [memory.beats[item_beats * (i + 1) - 1][0] for i in range(commands + 1)]
    reads: list[int] = []
    heads: list[int] = []
    taken: list[int] = []
    for i in range(commands + 1):
        reads.append(max(last[i] + 1, taken[-1] if taken else 0))
        heads.append(reads[i] + 1)
        taken.append(heads[i] if i == 0 else max(heads[i], release))
    assert [cycle for cycle, _, _ in bench.events] == taken
    up = start + 2  # cycle in which the next burst is requested, given room; requests are taken at once
    expected = []
    for i in range(commands + 1):
        if i >= rows:
            up = max(up, reads[i - rows] + 2)
        for _ in range(bursts):
            expected.append(up)
            up += 1
    assert [cycle for cycle, _ in memory.requested] == expected


def test_nothing_is_asked_beyond_an_end_that_has_arrived() -> None:
    config = load_config("tiny")
    rng = random.Random(seed())
    memory = Memory(config, rng, latency=1)
    bench = Bench(config, rng, memory)

    async def main(dut: Fetcher, ctx) -> None:
        memory.fill(PROGRAM, random_program(rng, 100, 0))
        bench.job(0)
        ctx.set(dut.commands.ready, 1)
        await bench.start(dut, ctx, 0, 100)
        while not ctx.get(dut.ready):
            await ctx.tick()
        assert [kind for _, kind, _ in bench.events] == ["entry", "command"]
        end = next(cycle for cycle, address in memory.beats if address == PROGRAM)
        assert max(cycle for cycle, _ in memory.requested) <= end

    simulate(config, 2000, main, bench.monitor, memory.run)


@pytest.mark.parametrize("what", ["end", "bad entry", "bad command"])
def test_an_item_that_is_asked_for_in_part_arrives_as_a_whole(what: str) -> None:
    """Its first beats come while bursts of it are still to be asked for, and stop the asking."""
    config = load_config("tiny", {"dma.bus_bits": "32", "dma.burst_beats": "2"})
    rng = random.Random(seed())
    memory = Memory(config, rng, latency=1)
    bench = Bench(config, rng, memory)

    async def main(dut: Fetcher, ctx) -> None:
        memory.fill(PROGRAM, random_program(rng, 3, 0 if what == "end" else 2))
        bench.job(0)
        memory.bad.update({"bad entry": [JOB_RING], "bad command": [PROGRAM]}.get(what, []))
        ctx.set(dut.commands.ready, 1)
        ctx.set(dut.engine_idle, 1)
        await bench.start(dut, ctx, 0, 3)
        while not ctx.get(dut.ready):
            await ctx.tick()
        kinds = {"end": ["entry", "command"], "bad entry": ["fault"], "bad command": ["entry", "fault"]}
        assert [kind for _, kind, _ in bench.events] == kinds[what]

    simulate(config, 2000, main, bench.monitor, memory.run)


@pytest.mark.parametrize("what", ["job ring", "program"])
@pytest.mark.parametrize("place", [1 << 36, 1 << 40, 1 << 47, (1 << 48) - 512, (1 << 36) - 256])
def test_nothing_is_asked_beyond_the_address_space(what: str, place: int) -> None:
    """The item there is a fault in its turn, after those before it; the last place straddles the end."""
    config = load_config("tiny")
    space = 1 << config.address_bits
    rng = random.Random(seed())
    memory = Memory(config, rng, rng.choice([0.5, 1.0]))
    bench = Bench(config, rng, memory)

    async def main(dut: Fetcher, ctx) -> None:
        ctx.set(dut.commands.ready, 1)
        ctx.set(dut.engine_idle, 1)
        for job_index in range(4):
            bench.events.clear()
            end = rng.randrange(4) if what == "program" else 0
            entry, program = bench.job(job_index), random_program(rng, 4, end)
            job_ring = place if what == "job ring" else JOB_RING
            program_address = place if what == "program" else PROGRAM
            memory.bytes.clear()
            memory.fill(program_address, program)
            memory.bytes[job_ring + job_index * JOB_BYTES] = entry
            while not ctx.get(dut.ready):
                await ctx.tick()
            ctx.set(dut.job_ring_address, job_ring)
            ctx.set(dut.job_ring_log2_entries, 2)
            ctx.set(dut.program_address, program_address)
            ctx.set(dut.program_commands, 4)
            ctx.set(dut.job_index, job_index)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            while not ctx.get(dut.ready):
                await ctx.tick()
            seen = [(kind, value[0] if kind == "command" else value) for _, kind, value in bench.events]
            inside = sum(program_address + COMMAND_BYTES * i < space for i in range(end + 1))
            if job_ring + job_index * JOB_BYTES >= space:
                assert seen == [("fault", (Fault.FETCH, 0))]
            else:
                assert seen[0] == ("entry", bench.entry(entry))
                assert seen[1 : inside + 1] == [("command", i) for i in range(inside)]
                assert seen[inside + 1 :] == ([("fault", (Fault.FETCH, inside))] if inside <= end else [])
        assert all(address < space for _, address in memory.requested)

    simulate(config, 5000, main, bench.monitor, memory.run)
