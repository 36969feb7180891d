"""The weight loader: what it writes where, in which order, when; with array and epilogue played by the test."""

import dataclasses
import itertools
import os
import random

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES
from hw.spec.config import NpuConfig, load_config
from hw.weight_loader import TABLE_WORDS, WeightLoader

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 20000


@dataclasses.dataclass
class Load:
    context: dict
    tiles: list[list[bytes]]
    parameters: list[bytes]
    table: bytes


class Bench:
    """Memory with loads in it, and a record of what the loader does."""

    def __init__(self, config: NpuConfig, seed: str):
        self.config = config
        self.n = config.array.n
        self.random = random.Random(seed)
        self.memory = bytearray(self.random.randbytes(config.scratchpad.bytes))
        self.free = 0
        self.loads: list[Load] = []
        self.reads: list[int] = []
        self.tiles: list[list[bytes]] = []
        self.blocks: list[list[bytes]] = []
        self.tables: list[bytes] = []
        self.begins: list[int] = []
        self.swaps: list[int] = []
        self.accepted: list[int] = []
        self.full: list[int] = []
        self.commits: list[tuple[str, int]] = []

    def place(self, contents: bytes) -> dict[str, int]:
        """A ring as long as its contents need, or longer, with the slot anywhere on a line."""
        n = self.n
        ring_bytes = len(contents) + n * self.random.randrange(4)
        place = {"base": self.free, "start": n * self.random.randrange(ring_bytes // n), "ring_bytes": ring_bytes}
        for offset in range(len(contents)):
            self.memory[self.free + (place["start"] + offset) % ring_bytes] = contents[offset]
        self.free += ring_bytes
        return place

    def add(self, **fields: int) -> None:
        r, n = self.random, self.n
        context = {
            "maximum": int(r.random() < 0.3), "accumulate_last": int(r.random() < 0.7), "load_table": r.randrange(2),
            "table_tag": r.randrange(2), "kernel_width": r.randint(1, 2), "kernel_height": r.randint(1, 2),
            "in_blocks": r.randint(1, 2), "diagonal": int(r.random() < 0.3),
        } | fields  # fmt: skip
        context["diagonal"] &= 1 - context["maximum"]
        context["load_table"] &= context["accumulate_last"]
        count = 0 if context["maximum"] else context["kernel_width"] * context["kernel_height"] * context["in_blocks"]
        lines = 1 if context["diagonal"] else n
        tiles = [[r.randbytes(n) for _ in range(lines)] for _ in range(count)]
        parameters = [r.randbytes(n) for _ in range(PARAMETER_LINES)] if context["accumulate_last"] else []
        table = random.Random(context["table_tag"]).randbytes(TABLE_BYTES)
        context["weights_place"] = self.place(
            b"".join(parameters + [line for tile in tiles for line in tile]) or bytes(n)
        )
        context["table_place"] = self.place(table)
        context["weights"] = {"ring": 1, "cursor": 0, "advance": len(self.loads)}
        context["table"] = {"ring": 2, "cursor": 0, "advance": len(self.loads)}
        self.loads.append(Load(context, tiles, parameters, table))

    def run(self, *, busy: float = 0.0, hurry: float = 1.0, epilogue_cycles: int = 0) -> None:
        """``hurry``: how soon tiles are swapped and parameters begun; then the epilogue is busy for some cycles."""
        dut = WeightLoader(self.config)
        rtlil.convert(dut)
        r, n = self.random, self.n

        async def bench(ctx):
            pending = list(self.loads)
            data = None
            shadow: dict[int, bytes] = {}
            block: dict[int, bytes] = {}
            words: dict[int, bytes] = {}
            swapped = False
            working = 0
            left_tiles = sum(len(load.tiles) for load in self.loads)
            left_blocks = sum(1 for load in self.loads if load.parameters)
            cycle = 0
            while left_tiles or left_blocks or len(self.commits) < 2 * len(self.loads):
                assert cycle < LIMIT, "the simulation hangs"
                ready = r.random() >= busy
                ctx.set(dut.port.ready, ready)
                ctx.set(dut.port.data, int.from_bytes(data or r.randbytes(n), "little"))
                data = None
                ctx.set(dut.i.valid, bool(pending))
                if pending:
                    ctx.set(dut.i.payload, pending[0].context)
                    if ctx.get(dut.i.ready):
                        pending.pop(0)
                        self.accepted.append(cycle)
                ctx.set(dut.epilogue_idle, working == 0)
                if ctx.get(dut.shadow_full):
                    self.full.append(cycle)
                swaps = ctx.get(dut.shadow_full) and r.random() < hurry
                begins = ctx.get(dut.parameters_full) and working == 0 and r.random() < hurry
                ctx.set(dut.swap, swaps)
                ctx.set(dut.begin, begins)
                if ctx.get(dut.port.valid) and ready:
                    address = ctx.get(dut.port.address)
                    data = bytes(self.memory[address : address + n])
                    self.reads.append(cycle)
                if ctx.get(dut.weights.valid):
                    row = ctx.get(dut.weights.row)
                    assert not (swapped and row == 0), "the next tile overtakes the swap"
                    if ctx.get(dut.weights.diagonal):
                        assert row == 0
                        shadow.clear()
                    shadow[row] = ctx.get(dut.weights.line).to_bytes(n, "little")
                if swapped:  # the array copies at the end of the cycle after a swap, with what arrives in it
                    self.tiles.append([shadow[row] for row in sorted(shadow)])
                swapped = bool(swaps)
                if begins:  # copies at the end of this cycle
                    self.blocks.append([block[row] for row in range(PARAMETER_LINES)])
                    if len(words) == TABLE_WORDS:
                        self.tables.append(b"".join(words[word] for word in range(TABLE_WORDS)))
                        words.clear()
                    assert not words, "a table begun is not complete"
                    left_blocks -= 1
                    self.begins.append(cycle)
                if swaps:
                    left_tiles -= 1
                    self.swaps.append(cycle)
                if ctx.get(dut.parameters.valid):
                    assert not begins
                    block[ctx.get(dut.parameters.row)] = ctx.get(dut.parameters.line).to_bytes(n, "little")
                if ctx.get(dut.table.valid):
                    assert working == 0
                    words[ctx.get(dut.table.word)] = ctx.get(dut.table.data).to_bytes(4, "little")
                for name in ("weights", "table"):
                    if ctx.get(getattr(dut, f"commit_{name}")):
                        self.commits.append((name, ctx.get(getattr(dut, f"{name}_pass").advance)))
                working = epilogue_cycles if begins else max(0, working - 1)
                await ctx.tick()
                cycle += 1
            if swapped:
                self.tiles.append([shadow[row] for row in sorted(shadow)])

        simulator = Simulator(dut)
        simulator.add_clock(1e-6)
        simulator.add_testbench(bench)
        simulator.run()


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize(("busy", "hurry", "epilogue"), [(0.0, 1.0, 0), (0.3, 0.3, 20), (0.0, 0.1, 60)])
def test_contents_and_order(n, busy, hurry, epilogue):
    config = load_config("tiny", {"array.n": str(n)})
    bench = Bench(config, f"{SEED} {n} {busy} {hurry}")
    for _ in range(12):
        bench.add()
    bench.run(busy=busy, hurry=hurry, epilogue_cycles=epilogue)
    assert bench.tiles == [tile for load in bench.loads for tile in load.tiles], f"seed {SEED}"
    assert bench.blocks == [load.parameters for load in bench.loads if load.parameters], f"seed {SEED}"
    cached = None
    tables = []
    for load in bench.loads:
        if load.context["load_table"] and load.context["table_tag"] != cached:
            cached = load.context["table_tag"]
            tables.append(load.table)
    assert bench.tables == tables, f"seed {SEED}"
    for name in ("weights", "table"):
        assert [index for which, index in bench.commits if which == name] == list(range(len(bench.loads)))


def test_time_of_tiles():
    """The next tile is full N + 1 cycles after the swap, within a command and across commands."""
    config = load_config("tiny")
    bench = Bench(config, str(SEED))
    for _ in range(3):
        bench.add(maximum=0, diagonal=0, accumulate_last=0, kernel_width=2)
    bench.run()
    n = config.array.n
    assert bench.reads[:n] == list(range(bench.accepted[0] + 1, bench.accepted[0] + 1 + n))
    distances = {b - a for a, b in itertools.pairwise(bench.swaps)}
    assert distances == {n + 1}


def test_time_of_diagonal_tiles():
    """One read a tile, two cycles from swap to swap."""
    bench = Bench(load_config("tiny"), str(SEED))
    bench.add(maximum=0, diagonal=1, accumulate_last=0, kernel_width=2, kernel_height=2, in_blocks=2)
    bench.run()
    first = bench.accepted[0] + 1
    assert bench.reads == list(range(first, first + 16, 2))
    assert bench.swaps == [read + 1 for read in bench.reads]


def test_time_of_parameters_and_table():
    for n in (4, 8, 16):
        config = load_config("tiny", {"array.n": str(n)})
        bench = Bench(config, str(SEED))
        bench.add(maximum=1, accumulate_last=1, load_table=0)
        bench.add(maximum=1, accumulate_last=1, load_table=1)
        bench.run()
        assert bench.reads[:PARAMETER_LINES] == list(range(1, 1 + PARAMETER_LINES))
        assert bench.begins[0] == bench.reads[PARAMETER_LINES - 1] + 2
        assert bench.reads[PARAMETER_LINES] == bench.begins[0] + 1
        table = bench.reads[2 * PARAMETER_LINES :]
        assert table[0] == bench.reads[2 * PARAMETER_LINES - 1] + 1
        period = 1 if n == 4 else n // 4 + 1
        assert table == list(range(table[0], table[0] + period * (TABLE_BYTES // n), period))
        assert bench.begins[1] == table[-1] + n // 4 + 3
