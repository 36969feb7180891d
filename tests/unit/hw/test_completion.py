"""The completion unit against a ring in a Python memory, and against docs/timing/completion.md to the cycle."""

import os
import random
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Signal, Value
from amaranth.sim import Simulator

from hw.completion import CompletionUnit
from hw.interfaces import CLIENT_COMPLETION
from hw.spec.commands import COMPLETION, COMPLETION_BYTES, pack
from hw.spec.config import load_config


def seed() -> int:
    value = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={value}")
    return value


def convert(dut: CompletionUnit) -> None:
    """Raise on a combinational loop. (Ports that are constants, such as ``done.ready``, cannot be converted.)"""
    values = (Value.cast(value) for _, _, value in dut.signature.flatten(dut))
    rtlil.convert(dut, ports=[value for value in values if isinstance(value, Signal)])


def simulate(config, bench, cycles: int, *background) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(CompletionUnit(config))
        dut = CompletionUnit(config)
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
    simulator.add_testbench(bound(bench))
    for function in background:
        simulator.add_testbench(bound(function), background=True)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def random_record(rng: random.Random) -> dict[str, int]:
    return {
        name: rng.getrandbits(width)
        for name, width in {
            "job": 31, "status": 7, "engine": 2, "command": 24, "started": 63, "finished": 63,
        }.items()
    }  # fmt: skip


class Memory:
    """Write side of a memory port: takes bursts with random patience, answers after a random time."""

    def __init__(self, config, rng: random.Random, patience: float, delay: int, errors: float = 0.0):
        self.config, self.rng, self.patience, self.delay, self.errors = config, rng, patience, delay, errors
        self.bytes: dict[int, int] = {}
        self.failed: list[bool] = []
        """For each burst answered."""

    async def run(self, dut: CompletionUnit, ctx) -> None:
        port, width = dut.memory, self.config.bus_bytes
        bursts: list[list[int]] = []  # address of the next beat, beats left
        answers: list[int] = []
        cycle = 0
        while True:
            ctx.set(port.request.ready, int(self.rng.random() < self.patience))
            ctx.set(port.data.ready, int(bool(bursts) and self.rng.random() < self.patience))
            answer = bool(answers) and answers[0] <= cycle
            ctx.set(port.done.valid, int(answer))
            if answer:
                answers.pop(0)
                self.failed.append(self.rng.random() < self.errors)
                ctx.set(port.done.p, {"error": self.failed[-1], "client": CLIENT_COMPLETION})
            _, _, request, request_taken, beat, beat_taken = await ctx.tick().sample(
                port.request.p, port.request.valid & port.request.ready, port.data.p, port.data.valid & port.data.ready
            )
            if beat_taken:
                for i in range(width):
                    if beat.strobe >> i & 1:
                        self.bytes[bursts[0][0] + i] = beat.data >> 8 * i & 0xFF
                bursts[0][0] += width
                bursts[0][1] -= 1
                assert beat.last == (bursts[0][1] == 0)
                if beat.last:
                    bursts.pop(0)
                    answers.append(cycle + 1 + self.rng.randrange(self.delay + 1))
            if request_taken:
                assert request.client == CLIENT_COMPLETION
                assert request.address % width == 0
                assert 1 <= request.beats <= self.config.dma.burst_beats
                assert request.address // 4096 == (request.address + request.beats * width - 1) // 4096
                bursts.append([request.address, request.beats])
            cycle += 1


@pytest.mark.parametrize(
    ("bus_bits", "burst_beats", "patience"), [(32, 16, 0.5), (32, 2, 1.0), (64, 1, 0.7), (256, 16, 0.5), (512, 4, 0.6)]
)
def test_random_records_reach_the_ring(bus_bits: int, burst_beats: int, patience: float) -> None:
    config = load_config("tiny", {"dma.bus_bits": bus_bits, "dma.burst_beats": burst_beats})
    rng = random.Random(seed())
    log2, base = 2, 0x0_1234_5FC0
    memory = Memory(config, rng, patience, 5, errors=0.1)
    records = [random_record(rng) for _ in range(30)]
    errors = []

    async def produce(dut: CompletionUnit, ctx) -> None:
        for record in records:
            for _ in range(rng.randrange(4)):
                await ctx.tick()
            ctx.set(dut.completion.p, record | {"reserved": 0, "reserved2": 0})
            ctx.set(dut.completion.valid, 1)
            await ctx.tick().until(dut.completion.ready)
            ctx.set(dut.completion.valid, 0)

    async def watch_errors(dut: CompletionUnit, ctx) -> None:
        while True:
            _, _, error = await ctx.tick().sample(dut.error)
            errors.append(error)

    async def host(dut: CompletionUnit, ctx) -> None:
        ctx.set(dut.ring_address, base | 0x13)  # low bits are ignored
        ctx.set(dut.ring_log2_entries, log2)
        for tail, record in enumerate(records):
            for _ in range(rng.choice([0, 0, 100])):
                await ctx.tick()
                assert ctx.get(dut.head) - tail <= 1 << log2
            while not ctx.get(dut.pending):
                await ctx.tick()
            assert ctx.get(dut.head) > tail
            place = base + (tail % (1 << log2)) * COMPLETION_BYTES
            found = bytes(memory.bytes.pop(place + i) for i in range(COMPLETION_BYTES))
            assert int.from_bytes(found, "little") == pack(COMPLETION, record)
            ctx.set(dut.tail, tail + 1)
        await ctx.tick()
        assert not ctx.get(dut.pending)
        assert not ctx.get(dut.busy)
        assert not memory.bytes

    simulate(config, host, 20000, produce, memory.run, watch_errors)
    bursts = max(1, 256 // bus_bits // burst_beats)
    by_record = [any(memory.failed[i : i + bursts]) for i in range(0, len(memory.failed), bursts)]
    assert len(by_record) == len(records)
    assert sum(errors) == sum(by_record)


@pytest.mark.parametrize(("bus_bits", "burst_beats"), [(32, 16), (32, 4), (256, 16), (512, 8)])
def test_timing_is_the_pages(bus_bits: int, burst_beats: int) -> None:
    config = load_config("tiny", {"dma.bus_bits": bus_bits, "dma.burst_beats": burst_beats})
    beats = max(1, 256 // bus_bits)
    burst = min(beats, burst_beats)
    bursts = beats // burst
    request_delay, answer_delay = 3, 4

    async def bench(dut: CompletionUnit, ctx) -> None:
        port = dut.memory

        def state() -> tuple[int, ...]:
            signals = (dut.completion.ready, port.request.valid, port.data.valid, dut.head, dut.error)
            return tuple(ctx.get(signal) for signal in signals)

        ctx.set(dut.completion.valid, 1)
        ctx.set(port.data.ready, 1)
        for head in range(2):  # a ring of one entry: full after each record
            assert state() == (1, 0, 0, head, 0)
            await ctx.tick()
            for _ in range(bursts):
                for _ in range(request_delay):
                    assert state() == (0, 1, 0, head, 0)
                    await ctx.tick()
                ctx.set(port.request.ready, 1)
                assert state() == (0, 1, 0, head, 0)
                await ctx.tick()
                ctx.set(port.request.ready, 0)
                for _ in range(burst):
                    assert state() == (0, 0, 1, head, 0)
                    await ctx.tick()
            for i in range(bursts):
                for _ in range(answer_delay):
                    assert state() == (0, 0, 0, head, 0)
                    await ctx.tick()
                ctx.set(port.done.valid, 1)
                ctx.set(port.done.p.error, head)
                assert state() == (0, 0, 0, head, int(i == bursts - 1 and head == 1))
                await ctx.tick()
                ctx.set(port.done.valid, 0)
            for _ in range(5):
                assert state() == (0, 0, 0, head + 1, 0)  # full
                await ctx.tick()
            ctx.set(dut.tail, head + 1)

    simulate(config, bench, 500)


@pytest.mark.parametrize("place", [1 << 36, 1 << 40, 1 << 47, (1 << 36) - 2 * COMPLETION_BYTES])
def test_a_record_beyond_the_address_space_is_not_written(place: int) -> None:
    """It is an error as a bus error is: a pulse, and the head moves on. The last ring straddles the end."""
    config = load_config("tiny")
    inside = [i for i in range(4) if place + i * COMPLETION_BYTES < 1 << config.address_bits]
    memory = Memory(config, random.Random(seed()), 1.0, 3)
    errors = []

    async def bench(dut: CompletionUnit, ctx) -> None:
        ctx.set(dut.ring_address, place)
        ctx.set(dut.ring_log2_entries, 2)
        ctx.set(dut.completion.valid, 1)
        for head in range(4):
            await ctx.tick().until(dut.completion.ready)
            assert ctx.get(dut.busy)
            if head not in inside:
                assert not ctx.get(dut.memory.request.valid)
                assert ctx.get(dut.error)
                errors.append(head)
                await ctx.tick()
            while ctx.get(dut.busy):
                assert not ctx.get(dut.error)
                await ctx.tick()
            assert ctx.get(dut.head) == head + 1
        assert not ctx.get(dut.completion.ready)

    simulate(config, bench, 1000, memory.run)
    assert sorted({address // COMPLETION_BYTES * COMPLETION_BYTES for address in memory.bytes}) == [
        place + i * COMPLETION_BYTES for i in inside
    ]
    assert errors == [i for i in range(4) if i not in inside]
