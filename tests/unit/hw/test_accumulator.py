"""The accumulator against an array of sums; lines return as early as they may, and drain as early as they may."""

import os
import random

import numpy as np
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.accumulator import Accumulator
from hw.spec.config import load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))
CONFIG = load_config("tiny")
N = CONFIG.array.n


def test_fill_and_drain():
    dut = Accumulator(CONFIG)
    rtlil.convert(dut)
    r = random.Random(SEED)

    async def bench(ctx):
        model = np.zeros((2, 4, N), np.int64)
        known: set[tuple[int, int]] = set()
        announced = None
        before = None  # index announced a cycle ago
        drained = None
        last = {}  # line -> cycle of its last sums
        filling = 0
        for cycle in range(1500):
            # Sums of what was announced.
            ctx.set(dut.i.valid, announced is not None)
            completes = False
            if announced is not None:
                tag = announced
                sums = np.array([r.choice((-(1 << 31), (1 << 31) - 1, r.randint(-1000, 1000))) for _ in range(N)])
                ctx.set(dut.i.tag, tag)
                ctx.set(dut.i.sums, int.from_bytes(sums.astype("<i4").tobytes(), "little"))
                old = model[tag["half"], tag["index"]]
                new = sums if tag["clear"] else np.maximum(old, sums) if tag["maximum"] else old + sums
                model[tag["half"], tag["index"]] = new.astype(np.int32)
                last[tag["half"], tag["index"]] = cycle
                known.add((tag["half"], tag["index"]))
                completes = bool(tag["complete"])
                before = tag["index"]
            else:
                before = None
            assert bool(ctx.get(dut.completed)) == completes
            if r.random() < 0.02:
                filling ^= 1
            # Announce the next: not the line whose sums are valid now.
            announced = None
            index = r.randrange(4)
            if index != before and r.random() < 0.8:
                clear = int((filling, index) not in known or r.random() < 0.1)
                announced = {
                    "index": index, "half": filling, "clear": clear,
                    "maximum": r.randrange(2), "complete": int(r.random() < 0.1),
                }  # fmt: skip
                ctx.set(dut.i.early_tag, announced)
            ctx.set(dut.i.early, announced is not None)
            # Drain the other half; a line as early as the cycle after its sums.
            if drained is not None:
                data = ctx.get(dut.drain.data).to_bytes(4 * N, "little")
                assert np.frombuffer(data, "<i4").tolist() == drained, f"cycle {cycle}, seed {SEED}"
            half = 1 - filling
            choice = [line for line in known if line[0] == half and last[line] < cycle]
            drained = None
            ctx.set(dut.drain.valid, 0)
            if choice and r.random() < 0.7:
                line = r.choice(choice)
                ctx.set(dut.drain.valid, 1)
                ctx.set(dut.drain.half, half)
                ctx.set(dut.drain.index, line[1])
                drained = model[line].tolist()
            else:
                ctx.set(dut.drain.half, r.randrange(2))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
