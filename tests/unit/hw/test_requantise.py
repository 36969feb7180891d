"""Requantisation against ``hw.spec.numerics``, at random and at every corner."""

import itertools
import os
import random

import numpy as np
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.requantise import LATENCY, Requantise
from hw.spec import numerics

SEED = int(os.environ.get("RONDO_SEED", "1"))
LANES = 4
EXTREMES = (
    -(1 << 31),
    -(1 << 31) + 1,
    -(1 << 30),
    -2,
    -1,
    0,
    1,
    2,
    (1 << 30) - 1,
    1 << 30,
    (1 << 31) - 2,
    (1 << 31) - 1,
)


def cases() -> list[tuple[int, int, int]]:
    """(value, multiplier, shift)"""
    r = random.Random(SEED)
    result: list[tuple[int, int, int]] = list(itertools.product(EXTREMES, EXTREMES, (-31, -30, -1, 0, 1, 30)))
    for _ in range(6000):
        value = r.choice((r.choice(EXTREMES), r.randint(-(1 << 31), (1 << 31) - 1), r.randint(-5000, 5000)))
        multiplier = r.choice(
            (r.choice(EXTREMES), r.randint(1 << 30, (1 << 31) - 1), r.randint(-(1 << 31), (1 << 31) - 1))
        )
        result.append((value, multiplier, r.randint(-31, 30)))
    # Halves: products whose rounding falls exactly between two results.
    for shift in range(0, -32, -1):
        for value in (1, -1, 3, -3, 1 << 29, -(1 << 29), 3 << 29, -(3 << 29)):
            result.append((value, 1 << 30, shift))
    while len(result) % LANES:
        result.append((0, 0, 0))
    return result


def expected(value: int, multiplier: int, shift: int, single: bool) -> int:
    raised = int(np.int64(value << max(shift, 0)).astype(np.int32)) if shift <= 30 else 0
    if not single:
        return int(numerics.multiply_by_quantized_multiplier(raised, multiplier, min(shift, 0)))
    # In whole numbers of any size; only the product of both least values saturates.
    right = 31 + max(-shift, 0)
    return min((raised * multiplier + (1 << (right - 1))) >> right, (1 << 31) - 1)


def test_against_numerics():
    dut = Requantise(LANES)
    rtlil.convert(dut)
    every = cases()
    lines = [every[start : start + LANES] for start in range(0, len(every), LANES)]
    single = [random.Random(f"{SEED} {index}").random() < 0.5 for index in range(len(lines))]
    wanted = [[expected(*case, once) for case in line] for line, once in zip(lines, single, strict=True)]

    def lanes(values: list[int], bits: int) -> int:
        return sum((value & ((1 << bits) - 1)) << (bits * lane) for lane, value in enumerate(values))

    async def bench(ctx):
        r = random.Random(SEED)
        flight: dict[int, int] = {}  # cycle of entry -> line
        entered = checked = 0
        cycle = 0
        while checked < len(lines):
            enters = entered < len(lines) and r.random() < 0.9
            ctx.set(dut.valid, enters)
            ctx.set(dut.value, r.getrandbits(32 * LANES))
            if enters:
                line = lines[entered]
                ctx.set(dut.value, lanes([case[0] for case in line], 32))
                ctx.set(dut.left, lanes([max(case[2], 0) for case in line], 5))
                flight[cycle] = entered
                entered += 1
            if cycle - 1 in flight:
                ctx.set(dut.multiplier, lanes([case[1] for case in lines[flight[cycle - 1]]], 32))
            if cycle - 2 in flight:
                index = flight[cycle - 2]
                ctx.set(dut.first_rounds, lanes([not single[index] or case[2] >= 0 for case in lines[index]], 1))
            if cycle - 3 in flight:
                ctx.set(dut.away, not single[flight[cycle - 3]])
                ctx.set(dut.right, lanes([max(-case[2], 0) for case in lines[flight[cycle - 3]]], 5))
            if cycle - LATENCY in flight:
                index = flight.pop(cycle - LATENCY)
                result = np.frombuffer(ctx.get(dut.result).to_bytes(4 * LANES, "little"), "<i4").tolist()
                assert result == wanted[index], f"{lines[index]}, seed {SEED}"
                checked += 1
            await ctx.tick()
            cycle += 1

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_the_model_itself_at_the_corner():
    for single in (False, True):
        assert expected(-(1 << 31), -(1 << 31), 0, single) == (1 << 31) - 1
        assert expected(-(1 << 31), -(1 << 31), -31, single) == 1
