"""The epilogue against ``hw.spec.numerics`` directly, and its timing page; the accumulator is played by the test."""

import os
import random

import numpy as np
import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.epilogue import QUEUE, Epilogue
from hw.spec import numerics
from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES
from hw.spec.config import load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 6000
CONFIG = load_config("tiny")
N = CONFIG.array.n


class Job:
    """One command of the epilogue with random numbers as a quantiser would choose them."""

    def __init__(self, r: random.Random, residual: int, load_table: int, base: int):
        random_numbers = np.random.default_rng(r.randrange(1 << 30))
        self.width, self.rows = r.randint(1, 8), r.randint(1, 6)
        self.lines = self.width * self.rows
        self.sums = random_numbers.integers(-60000, 60000, (self.lines, N))
        self.bias = random_numbers.integers(-20000, 20000, N)
        self.multiplier = random_numbers.integers(1 << 30, 1 << 31, N)
        self.shift = random_numbers.integers(-10, -6, N)
        self.zero_point = r.randint(-40, 40)
        self.low, self.high = r.choice(((-128, 127), (-100, 90), (self.zero_point, 127)))
        self.table = random_numbers.integers(-128, 128, TABLE_BYTES).astype(np.int8)
        self.other = random_numbers.integers(-128, 128, (self.lines, N)).astype(np.int8)
        self.add = numerics.AddParameters.from_scales(
            r.uniform(0.01, 0.1),
            r.randint(-30, 30),
            r.uniform(0.01, 0.1),
            r.randint(-30, 30),
            r.uniform(0.05, 0.2),
            r.randint(-30, 30),
            *r.choice(((-128, 127), (-60, 50), (-128, 20))),
        )
        self.residual, self.load_table, self.single = residual, load_table, r.randrange(2)
        stride = self.width * N + N * r.randrange(3)
        ring_bytes = self.rows * stride

        def place(where: int) -> dict[str, int]:
            return {"base": where, "start": N * r.randrange(ring_bytes // N), "ring_bytes": ring_bytes}

        self.output, self.source = place(base), place(base + 4096)
        self.stride = stride

    def address(self, place: dict[str, int], line: int) -> int:
        row, column = divmod(line, self.width)
        return place["base"] + (place["start"] + row * self.stride + column * N) % place["ring_bytes"]

    @property
    def context(self) -> dict:
        def factor(name: str) -> dict[str, int]:
            return {part: getattr(self.add, f"{part}_{name}") for part in ("zero_point", "multiplier", "shift")}

        return {
            "out_width": self.width, "out_rows": self.rows, "out_row_stride": self.stride,
            "residual_row_stride": self.stride, "residual": self.residual, "load_table": self.load_table,
            "single_rounding": self.single,
            "output_zero_point": self.zero_point, "clamp_low": self.low, "clamp_high": self.high,
            "add_clamp_low": self.add.lo, "add_clamp_high": self.add.hi,
            "add_a": factor("a"), "add_b": factor("b"), "add_out": factor("out"),
            "residual_place": self.source, "output_place": self.output,
        }  # fmt: skip

    @property
    def block(self) -> list[bytes]:
        words = [self.bias.astype("<i4").tobytes(), self.multiplier.astype("<i4").tobytes()]
        lines = [word[byte::4] for word in words for byte in range(4)]
        return [*lines, self.shift.astype(np.int8).tobytes()]

    @property
    def result(self) -> np.ndarray:
        values = numerics.requantise(
            self.sums + self.bias, self.multiplier, self.shift, self.zero_point, self.low, self.high,
            single_rounding=bool(self.single),
        )  # fmt: skip
        if self.load_table:
            values = numerics.apply_table(self.table, values)
        return numerics.add(values, self.other, self.add) if self.residual else values


def run(jobs: list[Job], *, busy: float = 0.0, refuse_writes: range = range(0)):
    dut = Epilogue(CONFIG)
    rtlil.convert(dut)
    r = random.Random(SEED)
    begins, writes, reads = [], [], []

    async def bench(ctx):
        for number, job in enumerate(jobs):  # parameters and table between commands, as the loader does
            for word in range(TABLE_BYTES // 4):
                ctx.set(dut.table.valid, 1)
                ctx.set(dut.table.word, word)
                ctx.set(dut.table.data, int.from_bytes(job.table[4 * word : 4 * word + 4].tobytes(), "little"))
                await ctx.tick()
            ctx.set(dut.table.valid, 0)
            for row in range(PARAMETER_LINES):
                ctx.set(dut.parameters.valid, 1)
                ctx.set(dut.parameters.row, row)
                ctx.set(dut.parameters.line, int.from_bytes(job.block[row], "little"))
                await ctx.tick()
            ctx.set(dut.parameters.valid, 0)
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.payload, job.context)
            ctx.set(dut.completed, 1)
            await ctx.tick()
            ctx.set(dut.completed, 0)
            ctx.set(dut.parameters_full, 1)
            assert ctx.get(dut.begin)
            begins.append(0)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            ctx.set(dut.parameters_full, 0)
            drained = None
            other = None
            written = {}
            for cycle in range(1, LIMIT):
                if drained is not None:
                    line = job.sums[drained].astype("<i4").tobytes()
                    ctx.set(dut.drain.data, int.from_bytes(line, "little"))
                ctx.set(dut.residual.data, int.from_bytes(other or r.randbytes(N), "little"))
                drained = other = None
                ctx.set(dut.residual.ready, r.random() >= busy)
                ctx.set(dut.output.ready, r.random() >= busy and cycle not in refuse_writes)
                if ctx.get(dut.drain.valid):
                    drained = ctx.get(dut.drain.index)
                    assert ctx.get(dut.drain.half) == number % 2
                    reads.append(cycle)
                    assert bool(ctx.get(dut.drained)) == (drained == job.lines - 1)
                if ctx.get(dut.residual.valid) and ctx.get(dut.residual.ready):
                    assert ctx.get(dut.residual.address) == job.address(job.source, drained)
                    other = job.other[drained].tobytes()
                if ctx.get(dut.output.valid) and ctx.get(dut.output.ready):
                    written[ctx.get(dut.output.address)] = ctx.get(dut.output.data).to_bytes(N, "little")
                    writes.append(cycle)
                finished = ctx.get(dut.finished)
                await ctx.tick()
                if finished:
                    break
            else:
                raise AssertionError("the simulation hangs")
            assert ctx.get(dut.idle)
            expected = {job.address(job.output, line): job.result[line].tobytes() for line in range(job.lines)}
            assert written == expected, f"job {number}, seed {SEED}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return reads, writes


@pytest.mark.parametrize("busy", [0.0, 0.4])
@pytest.mark.parametrize(("residual", "load_table"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_results(residual, load_table, busy):
    r = random.Random(f"{SEED} {residual} {load_table}")
    run([Job(r, residual, load_table, 8192 * i) for i in range(4)], busy=busy)


def test_results_are_not_all_clamped():
    """The random numbers of these tests exercise the arithmetic."""
    r = random.Random(SEED)
    assert len(np.unique(np.concatenate([Job(r, 1, 0, 0).result.ravel() for _ in range(4)]))) > 50


def test_time_of_a_plain_command():
    job = Job(random.Random(SEED), 0, 1, 0)
    reads, writes = run([job])
    assert reads == list(range(1, 1 + job.lines))
    assert writes == list(range(8, 8 + job.lines))


def test_time_of_a_command_with_residual():
    job = Job(random.Random(SEED), 1, 1, 0)
    reads, writes = run([job])
    assert reads == [1 + 4 * i for i in range(job.lines)]
    assert writes == [23 + 4 * i for i in range(job.lines)]


def test_refused_writes_stop_issue_when_the_queue_is_spoken_for():
    r = random.Random(SEED)
    job = next(job for job in (Job(r, 0, 0, 0) for _ in range(1000)) if job.lines >= 24)
    reads, writes = run([job], refuse_writes=range(1, 40))
    assert reads[:QUEUE] == list(range(1, 1 + QUEUE))
    assert writes == list(range(40, 40 + job.lines))
    assert reads[QUEUE] == 41
