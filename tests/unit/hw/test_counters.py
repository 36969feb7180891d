"""Counters against a plain count of random events, with snapshots and clears at random times."""

import os
import random
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.counters import COUNTERS, EVENTS, Counters
from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import load_config
from hw.spec.register_map import REGISTERS


def seed() -> int:
    value = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={value}")
    return value


def simulate(config, bench, cycles: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rtlil.convert(Counters(config))
        dut = Counters(config)
        simulator = Simulator(dut)

    async def main(ctx) -> None:
        await bench(dut, ctx)

    async def watchdog(ctx) -> None:
        for _ in range(cycles):
            await ctx.tick()
        raise TimeoutError(f"not ended after {cycles} cycles")

    simulator.add_clock(1e-6)
    simulator.add_testbench(main)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


@pytest.mark.parametrize("bus_bits", [32, 256])
def test_random_events(bus_bits: int) -> None:
    config = load_config("tiny", {"dma.bus_bits": bus_bits, "dma.buffer_beats": 64})
    rng = random.Random(seed())

    async def bench(dut: Counters, ctx) -> None:
        counts, copies = dict.fromkeys(COUNTERS, 0), dict.fromkeys(COUNTERS, 0)
        for cycle in range(800):
            for name in COUNTERS:
                assert ctx.get(getattr(dut, name)) == copies[name], name
            assert ctx.get(dut.cycle) == cycle
            clear, snapshot = int(rng.random() < 0.02), int(rng.random() < 0.1)
            happened = dict.fromkeys(COUNTERS, 0)
            happened["counter_cycles"] = 1
            for engine in Engine:
                raised = [cause for cause in Cause if rng.random() < rng.choice([0.0, 0.2])]
                flags = {cause.name.lower(): int(cause in raised) for cause in Cause}
                ctx.set(getattr(dut, f"flags_{engine.name.lower()}"), flags)
                cause = min(raised, default=Cause.IDLE)
                happened[f"counter_{engine.name}_{cause.name}".lower()] = 1
                assert ctx.get(getattr(dut, f"cause_{engine.name.lower()}")) == cause
            for name, event in EVENTS.items():
                pulse = rng.getrandbits(1)
                ctx.set(getattr(dut, event), pulse)
                happened[name] = pulse * (config.bus_bytes if "_bytes_" in name else 1)
            ctx.set(dut.clear, clear)
            ctx.set(dut.snapshot, snapshot)
            if snapshot:
                copies = dict(counts)
                for engine in Engine:
                    causes = (f"counter_{engine.name}_{cause.name}".lower() for cause in Cause)
                    assert sum(copies[name] for name in causes) == copies["counter_cycles"]
            counts = {name: (0 if clear else counts[name]) + happened[name] for name in COUNTERS}
            await ctx.tick()

    simulate(config, bench, 900)


def test_snapshot_with_clear_loses_no_cycle() -> None:
    async def bench(dut: Counters, ctx) -> None:
        total = 0
        for length in (1, 2, 7, 30):
            for _ in range(length):
                await ctx.tick()
            ctx.set(dut.snapshot, 1)
            ctx.set(dut.clear, 1)
            now = ctx.get(dut.cycle)
            await ctx.tick()
            ctx.set(dut.snapshot, 0)
            ctx.set(dut.clear, 0)
            total += ctx.get(dut.counter_cycles)
            assert total == now

    simulate(load_config("tiny"), bench, 100)


def test_every_counter_has_a_register_and_an_event() -> None:
    for name in COUNTERS:
        assert f"{name.upper()}_LOW" in REGISTERS
        assert f"{name.upper()}_HIGH" in REGISTERS
    assert sorted(EVENTS.values()) == sorted(
        [f"conflict_{port}" for port in ("pixels", "residual", "weights", "store", "epilogue", "load")]
        + [f"retired_{engine.name.lower()}" for engine in Engine]
        + ["read_bytes_load", "read_bytes_fetch", "write_bytes_store", "write_bytes_completion"]
    )
