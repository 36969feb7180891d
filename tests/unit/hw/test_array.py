"""The array against a matrix product, with swaps as close as its timing page allows."""

import os
import random

import numpy as np
import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.array import LATENCY, Array
from hw.spec.config import load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("density", [1.0, 0.6])
def test_sums(n, density):
    config = load_config("tiny", {"array.n": str(n)})
    dut = Array(config)
    rtlil.convert(dut)
    r = random.Random(f"{SEED} {n} {density}")
    extremes = (-128, 127, 0)

    def line() -> np.ndarray:
        return np.array([r.choice(extremes) if r.random() < 0.3 else r.randint(-128, 127) for _ in range(n)])

    def number(values: np.ndarray) -> int:
        return int.from_bytes(values.astype(np.int8).tobytes(), "little")

    expected: dict[int, tuple[int, list[int]]] = {}
    early: dict[int, int] = {}
    seen: dict[int, tuple[int, list[int]]] = {}

    async def bench(ctx):
        shadow = np.zeros((n, n), np.int64)
        active = shadow
        row = 0
        wait = 0  # cycles until the next shadow line may be written
        swap_next = swap_before = False
        for cycle in range(600):
            if swap_before:  # swapped a cycle ago: counts from this cycle's line on
                active = shadow.copy()
            swap_before = False
            # Weights, line by line; the swap may come in the cycle before the last line is written.
            writes = row < n and wait == 0 and r.random() < density
            ctx.set(dut.weights.valid, writes)
            if writes:
                values = line()
                diagonal = row == 0 and r.random() < 0.4
                ctx.set(dut.weights.diagonal, diagonal)
                ctx.set(dut.weights.row, row)
                ctx.set(dut.weights.line, number(values))
                if diagonal:
                    shadow = np.diag(values)
                    row = n
                else:
                    shadow[row] = values
                    row += 1
            wait = max(0, wait - 1)
            swaps = swap_next or (row == n and wait == 0)
            ctx.set(dut.feed.swap, swaps)
            swap_next = False
            if swaps:
                swap_before, row, wait = True, 0, 1
            valid = cycle > n + 4 and r.random() < density
            ctx.set(dut.feed.valid, valid)
            if valid:
                values, maximum, index = line(), int(r.random() < 0.2), r.randrange(16)
                ctx.set(dut.feed.line, number(values))
                ctx.set(dut.feed.tag, {"index": index, "maximum": maximum, "half": 0, "clear": 0, "complete": 0})
                sums = values if maximum else values @ active
                expected[cycle + LATENCY] = (index, [int(value) for value in sums])
                early[cycle + LATENCY - 1] = index
            else:
                ctx.set(dut.feed.line, r.getrandbits(8 * n))
            if ctx.get(dut.o.valid):
                sums = ctx.get(dut.o.sums).to_bytes(4 * n, "little")
                seen[cycle] = (ctx.get(dut.o.tag.index), np.frombuffer(sums, "<i4").tolist())
            assert bool(ctx.get(dut.o.early)) == (cycle in early)
            if cycle in early:
                assert ctx.get(dut.o.early_tag.index) == early[cycle]
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen == {cycle: sums for cycle, sums in expected.items() if cycle < 600}, f"seed {SEED}"
