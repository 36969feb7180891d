"""The compute engine against the NumPy model of CONVOLVE, and against its timing page to the cycle."""

import dataclasses
import functools
import itertools
import os
import random
import typing

import numpy as np
import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.compute import Compute
from hw.interfaces import issued_command
from hw.spec.commands import COMMAND, CONVOLVE, PARAMETER_LINES, TABLE_BYTES, ComputeOperand, Cursor, pack
from hw.spec.config import NpuConfig, load_config
from sim.command_model import convolve

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 60000  # cycles after which a simulation has hung
CONFIG = load_config("tiny", {"scratchpad.bytes": "131072"})
N = CONFIG.array.n
HALF = CONFIG.accumulator_half
PORTS = ("pixels", "residual", "weights")


@dataclasses.dataclass
class Command:
    """A CONVOLVE with its operands placed."""

    fields: dict[str, int]
    places: list[dict[str, int]]
    index: int

    @property
    def tiles(self) -> int:
        return self.fields["in_blocks"] * self.fields["kernel_width"] * self.fields["kernel_height"]

    @property
    def pixels(self) -> int:
        return self.fields["out_width"] * self.fields["out_rows"]

    def issued(self, config: NpuConfig) -> typing.Any:
        return {
            "command": pack(CONVOLVE, self.fields) << COMMAND["body"].offset,
            "index": self.index,
            "operand": self.places,
        }


class Builder:
    """Makes random commands whose operands lie side by side in the scratchpad."""

    def __init__(self, generator: random.Random, config: NpuConfig = CONFIG):
        self.random = generator
        self.config = config
        self.free = 0
        self.memory = bytearray(generator.randbytes(config.scratchpad.bytes))
        self.commands: list[Command] = []

    def ring(self, least: int) -> dict[str, int]:
        """A ring of at least so many bytes, and a slot anywhere in it."""
        ring_bytes = least + self.random.choice((0, self.random.randrange(64)))
        base = self.free + self.random.randrange(8)
        self.free = base + ring_bytes + self.config.array.n
        assert self.free <= len(self.memory), "the test's commands do not fit the scratchpad"
        start = self.random.choice((0, self.random.randrange(ring_bytes)))
        return {"base": base, "start": start, "ring_bytes": ring_bytes}

    def write(self, place: dict[str, int], offset: int, line: bytes) -> None:
        first = place["base"] + (place["start"] + offset) % place["ring_bytes"]
        self.memory[first : first + len(line)] = line

    def add(self, **fields: int) -> Command:
        """A command; fields that are not given are random."""
        r, n = self.random, self.config.array.n
        width = r.randint(1, 8)
        f = {
            "accumulate_first": 1,
            "accumulate_last": 1,
            "maximum": int(r.random() < 0.2),
            "upsample": int(r.random() < 0.3),
            "out_width": width,
            "out_rows": r.randint(1, min(6, self.config.accumulator_half // width)),
            "kernel_width": r.randint(1, 3),
            "kernel_height": r.randint(1, 3),
            "in_blocks": r.randint(1, 3),
            "stride_x": r.randint(1, 3),
            "stride_y": r.randint(1, 3),
            "dilation_x": r.randint(1, 2),
            "dilation_y": r.randint(1, 2),
            "x_origin": r.randint(-3, 3),
            "y_origin": r.randint(-3, 3),
            "in_width": r.randint(1, 12),
            "in_rows": r.randint(1, 10),
            "in_pixel_stride": r.choice((n, n, r.randint(1, n))),
            "pad_value": r.randint(-128, 127),
            "output_zero_point": r.randint(-128, 127),
            "table_tag": r.randrange(3),
            "diagonal": int(r.random() < 0.3),
            "single_rounding": r.randrange(2),
        } | fields
        f["diagonal"] &= 1 - f["maximum"]
        if f["accumulate_last"]:
            f.setdefault("residual", int(r.random() < 0.4))
            f.setdefault("load_table", int(r.random() < 0.4))
        for clamp in ("clamp", "add_clamp"):
            low, high = r.randint(-128, 127), r.randint(-128, 127)
            if r.random() < 0.8:  # otherwise they may cross
                low, high = min(low, high), max(low, high)
            if r.random() < 0.6:
                low, high = -128, 127
            f = {f"{clamp}_low": low, f"{clamp}_high": high} | f
        for name in ("a", "b", "out"):
            extreme = r.random() < 0.15
            f[f"add_zero_point_{name}"] = r.randint(-128, 127)
            f[f"add_multiplier_{name}"] = r.getrandbits(32) if extreme else r.randint(1 << 30, (1 << 31) - 1)
            f[f"add_shift_{name}"] = (
                r.randint(-31, 30) if extreme else (r.randint(-18, -14) if name == "out" else r.randint(-3, 0))
            )
        command = Command(f, [], len(self.commands) * 3 + 5)
        unused = {"ring": 0, "cursor": Cursor.NONE.value, "advance": 0, "base": 0, "start": 0, "ring_bytes": 0}
        places = command.places
        places += [dict(unused) for _ in ComputeOperand]

        def operand(which: ComputeOperand, least: int) -> dict[str, int]:
            cursor = Cursor.PRODUCER.value if which is ComputeOperand.OUTPUT else r.choice((0, 1, 2, 3, 7))
            places[which] = self.ring(least) | {
                "ring": r.randrange(16),
                "cursor": cursor,
                "advance": r.randrange(1 << 14),
            }
            return places[which]

        block_bytes = f["in_width"] * f["in_pixel_stride"]
        f.setdefault("in_block_stride", block_bytes)
        f.setdefault("in_row_stride", f["in_blocks"] * block_bytes + r.choice((0, r.randrange(9))))
        operand(ComputeOperand.INPUT, f["in_rows"] * f["in_row_stride"])
        if not f["maximum"] or f["accumulate_last"]:
            tiles = 0 if f["maximum"] else command.tiles
            place = operand(ComputeOperand.WEIGHTS, PARAMETER_LINES * n + tiles * n * n)
            if f["accumulate_last"]:
                self.parameters(place)
        if f["accumulate_last"]:
            row = f["out_width"] * n
            f.setdefault("out_row_stride", row + r.choice((0, r.randrange(3) * n)))
            f.setdefault("residual_row_stride", row + r.choice((0, r.randrange(3) * n)))
            operand(ComputeOperand.OUTPUT, f["out_rows"] * f["out_row_stride"])
            if f["residual"]:
                operand(ComputeOperand.RESIDUAL, f["out_rows"] * f["residual_row_stride"])
            if f["load_table"]:
                place = operand(ComputeOperand.TABLE, TABLE_BYTES)
                contents = random.Random(f["table_tag"]).randbytes(TABLE_BYTES)
                for offset in range(0, TABLE_BYTES, n):
                    self.write(place, offset, contents[offset : offset + n])
        self.commands.append(command)
        return command

    def parameters(self, place: dict[str, int]) -> None:
        r, n = self.random, self.config.array.n
        extreme = r.random() < 0.2
        columns = []
        for _ in range(n):
            bias = (
                r.choice((-1 << 31, (1 << 31) - 1, r.randint(-1 << 31, (1 << 31) - 1)))
                if extreme
                else r.randint(-20000, 20000)
            )
            multiplier = r.choice((-1 << 31, (1 << 31) - 1, 0)) if extreme else r.randint(1 << 30, (1 << 31) - 1)
            shift = r.randint(-31, 30) if extreme else r.randint(-9, -5)
            columns.append(
                (bias & 0xFFFFFFFF).to_bytes(4, "little")
                + (multiplier & 0xFFFFFFFF).to_bytes(4, "little")
                + (shift & 0xFF).to_bytes(1, "little")
            )
        for line in range(PARAMETER_LINES):
            self.write(place, line * n, bytes(column[line] for column in columns))

    def expected(self) -> bytearray:
        """The scratchpad when all is done."""
        memory = bytearray(self.memory)
        sums = np.zeros((self.config.accumulator_half, self.config.array.n), np.int32)
        for command in self.commands:
            convolve(self.config, command.fields, command.places, memory, sums)
        return memory


@dataclasses.dataclass
class Record:
    """What a run did, by cycle. Cycle 0 is the one in which the first command is accepted."""

    accepted: list[int] = dataclasses.field(default_factory=list)
    streamed: list[int] = dataclasses.field(default_factory=list)
    reads: dict[str, list[int]] = dataclasses.field(default_factory=lambda: {port: [] for port in PORTS})
    writes: list[int] = dataclasses.field(default_factory=list)
    commits: list[tuple[int, tuple[int, int, int]]] = dataclasses.field(default_factory=list)
    retired: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    flags: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)


@functools.cache
def convert_once(config: NpuConfig) -> None:
    """Conversion finds a combinational loop, on which the simulator would hang."""
    rtlil.convert(Compute(config))


def run(
    builder: Builder,
    *,
    busy: float = 0.0,
    pause: float = 0.0,
    refuse: typing.Callable[[str, int], bool] | None = None,
    clear: bool = False,
) -> Record:
    """Run the builder's commands and compare the scratchpad with the model.

    ``busy``: how often a port is not granted. ``pause``: how often no command is offered. ``refuse(port, cycle)``
    refuses more. ``clear``: waits for idle between commands and clears.
    """
    config = builder.config
    convert_once(config)
    dut = Compute(config)
    memory = bytearray(builder.memory)
    record = Record()
    r = random.Random(SEED + 1)
    n = config.array.n

    async def bench(ctx):
        pending = list(builder.commands)
        offered = cleared = False
        data: dict[str, bytes | None] = dict.fromkeys(PORTS)
        cycle = None
        after = 0
        while len(record.retired) < len(builder.commands) or after < 8:
            now = 0 if cycle is None else cycle
            after = after + 1 if len(record.retired) == len(builder.commands) else 0
            ready = {port: r.random() >= busy and not (refuse and refuse(port, now)) for port in (*PORTS, "output")}
            for port in PORTS:
                member = getattr(dut, port)
                ctx.set(member.ready, ready[port])
                # Data hold for one cycle only.
                ctx.set(member.data, int.from_bytes(data[port] or r.randbytes(n), "little"))
                data[port] = None
            ctx.set(dut.output.ready, ready["output"])
            clears = clear and not offered and not cleared and ctx.get(dut.idle)
            if not offered and pending and r.random() >= pause and (not clear or cleared):
                ctx.set(dut.i.payload, pending[0].issued(config))
                offered = True
            ctx.set(dut.i.valid, offered)
            ctx.set(dut.clear, clears)
            cleared = clears
            if offered and ctx.get(dut.i.ready):
                cycle = 0 if cycle is None else cycle
                record.accepted.append(cycle)
                pending.pop(0)
                offered = False
            refused = False
            for port in PORTS:
                member = getattr(dut, port)
                if ctx.get(member.valid):
                    address = ctx.get(member.address)
                    if ready[port]:
                        data[port] = bytes(memory[(address + i) % len(memory)] for i in range(n))
                        record.reads[port].append(cycle)
                    refused |= not ready[port]
            if ctx.get(dut.output.valid):
                if ready["output"]:
                    assert ctx.get(dut.output.strobe) == (1 << n) - 1
                    address = ctx.get(dut.output.address)
                    line = ctx.get(dut.output.data).to_bytes(n, "little")
                    for i in range(n):
                        memory[(address + i) % len(memory)] = line[i]
                    record.writes.append(cycle)
                refused |= not ready["output"]
            streamed = ctx.get(dut.lines_streamed)
            if streamed:
                record.streamed.append(cycle)
            if ctx.get(dut.commit.valid):
                what = tuple(ctx.get(getattr(dut.commit, name)) for name in ("ring", "cursor", "advance"))
                record.commits.append((cycle, what))
            if ctx.get(dut.retire.valid):
                record.retired.append((cycle, ctx.get(dut.retire.index)))
            flags = ctx.get(dut.flags)
            busy_now = bool(streamed) or bool(record.writes and record.writes[-1] == cycle)
            assert flags.busy == busy_now
            assert flags.bank_conflict == refused
            assert flags.pipeline == (not ctx.get(dut.idle))
            if len(record.retired) < len(record.accepted) and record.accepted[-1] != cycle:
                assert not ctx.get(dut.idle)
            await ctx.tick()
            if cycle is not None:
                cycle += 1
        assert ctx.get(dut.idle)

    async def watchdog(ctx):
        for _ in range(LIMIT):
            await ctx.tick()
        raise AssertionError(f"the simulation hangs; retired {record.retired}")

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()

    expected = builder.expected()
    different = [address for address in range(len(memory)) if memory[address] != expected[address]]
    assert not different, f"bytes differ from {different[0]} on ({len(different)}); seed {SEED}"
    assert [index for _, index in record.retired] == [command.index for command in builder.commands]
    check_commits(builder, record)
    return record


def check_commits(builder: Builder, record: Record) -> None:
    """Each operand that has a cursor is committed once, before its command retires."""
    remaining = list(record.commits)
    for command, (retired, _) in zip(builder.commands, record.retired, strict=True):
        for place in command.places:
            if place["cursor"] != Cursor.NONE.value:
                what = (place["ring"], place["cursor"], place["advance"])
                match = next(i for i, (cycle, passed) in enumerate(remaining) if passed == what and cycle < retired)
                remaining.pop(match)
    assert not remaining


def simple(builder: Builder, **fields: int) -> Command:
    """A command of known size: one tile a tap, no options."""
    settings = {
        "maximum": 0, "diagonal": 0, "upsample": 0, "residual": 0, "load_table": 0, "kernel_width": 1,
        "kernel_height": 1,
        "in_blocks": 1, "out_width": 8, "out_rows": 2, "x_origin": 0, "y_origin": 0, "stride_x": 1, "stride_y": 1,
        "in_width": 8, "in_rows": 2,
    } | fields  # fmt: skip
    if not settings.get("accumulate_last", 1):
        del settings["residual"], settings["load_table"]
    return builder.add(**settings)


# --- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize(("busy", "pause"), [(0.0, 0.0), (0.4, 0.0), (0.1, 0.9)])
def test_random_commands(case, busy, pause):
    builder = Builder(random.Random(f"{SEED} {case} {busy}"))
    for _ in range(10):
        builder.add()
    run(builder, busy=busy, pause=pause)


@pytest.mark.parametrize("maximum", [0, 1])
def test_chains(maximum):
    builder = Builder(random.Random(f"{SEED} {maximum}"))
    for length in (1, 2, 3, 1, 4):
        shape = {"out_width": builder.random.randint(1, 8), "out_rows": builder.random.randint(1, 5)}
        for link in range(length):
            builder.add(
                accumulate_first=int(link == 0), accumulate_last=int(link == length - 1), maximum=maximum, **shape
            )
    run(builder, busy=0.2)


def test_one_pixel():
    """Tiles of one pixel: the accumulator is read again as early as can be."""
    builder = Builder(random.Random(SEED))
    for maximum in (1, 0, 1, 1, 0):
        shape = {"out_width": 1, "out_rows": 1, "maximum": maximum, "residual": 0, "load_table": 0}
        builder.add(kernel_width=3, kernel_height=3, in_width=12, in_rows=10, x_origin=0, y_origin=0, **shape)
    builder.add(out_width=2, out_rows=1, maximum=1, kernel_width=3, in_width=12, in_rows=10)
    shape = {"out_width": 1, "out_rows": 1, "maximum": 0, "residual": 0, "load_table": 0}
    builder.add(diagonal=1, kernel_width=3, kernel_height=3, in_width=12, in_rows=10, x_origin=0, y_origin=0, **shape)
    run(builder)


def test_maximum_then_convolution_in_one_chain():
    builder = Builder(random.Random(SEED))
    shape = {"out_width": 1, "out_rows": 1, "in_width": 9, "in_rows": 9, "x_origin": 0, "y_origin": 0}
    builder.add(accumulate_last=0, maximum=1, **shape)
    builder.add(accumulate_first=0, accumulate_last=0, maximum=0, **shape)
    builder.add(accumulate_first=0, accumulate_last=0, maximum=1, **shape)
    builder.add(accumulate_first=0, maximum=0, **shape)
    run(builder)


def test_full_half():
    builder = Builder(random.Random(SEED))
    for _ in range(3):
        builder.add(out_width=HALF // 4, out_rows=4, residual=0, maximum=0, kernel_width=2, kernel_height=1)
    builder.add(out_width=1, out_rows=HALF)
    builder.add(out_width=HALF, out_rows=1)
    run(builder)


def test_extreme_coordinates():
    builder = Builder(random.Random(SEED))
    builder.add(x_origin=-32768, stride_x=255, dilation_x=255, out_width=HALF, out_rows=1, kernel_width=3)
    builder.add(y_origin=32767, stride_y=255, dilation_y=255, out_width=1, out_rows=HALF, kernel_height=3)
    builder.add(x_origin=-500, stride_x=255, dilation_x=5, out_width=8, in_width=12, kernel_width=3, upsample=0)
    run(builder)


def test_tables_are_cached_until_cleared():
    for clear in (False, True):
        builder = Builder(random.Random(SEED))
        for tag in (1, 1, 2, 1, 1):
            simple(builder, load_table=1, table_tag=tag)
        record = run(builder, clear=clear)
        tables = 5 if clear else 3
        reads = len(builder.commands) * (N + PARAMETER_LINES) + tables * TABLE_BYTES // N
        assert len(record.reads["weights"]) == reads


def test_another_array_size():
    config = load_config("tiny", {"array.n": "8", "accumulator.lines": "64"})
    builder = Builder(random.Random(SEED), config)
    for _ in range(4):
        builder.add(load_table=1)
    run(builder, busy=0.2)


# --- time ---------------------------------------------------------------------------------------------------------


def test_first_line_and_first_write():
    """Latencies of a command that finds everything idle."""
    builder = Builder(random.Random(SEED))
    command = simple(builder)
    command.places[ComputeOperand.OUTPUT]["advance"] = 77
    record = run(builder)
    pixels = command.pixels
    assert record.reads["weights"][:N] == list(range(2, N + 2))
    first = N + 2
    assert record.streamed == list(range(first, first + pixels))
    begin = first + pixels - 1 + 5
    assert record.writes == list(range(begin + 8, begin + 8 + pixels))
    committed = [cycle for cycle, what in record.commits if what[2] == 77]
    assert committed[0] - record.writes[-1] in (1, 2)  # the residual's commit goes first, if it has one
    assert record.retired[0][0] == committed[0] + 1


@pytest.mark.parametrize("pixels", [N + 1, N + 4])
def test_streaming_is_continuous_within_a_chain(pixels):
    """No bubble between tiles, nor between commands, from N + 1 pixels on."""
    builder = Builder(random.Random(SEED))
    for link in range(3):
        simple(
            builder, out_width=pixels, out_rows=1, kernel_width=2, kernel_height=2, in_blocks=2,
            accumulate_first=int(link == 0), accumulate_last=0,
        )  # fmt: skip
    record = run(builder)
    lines = sum(command.pixels * command.tiles for command in builder.commands)
    assert record.streamed == list(range(record.streamed[0], record.streamed[0] + lines))


@pytest.mark.parametrize("pixels", [N + 13, N + 14, N + 15])
def test_streaming_is_continuous_over_epilogues(pixels):
    """The second tile waits for the parameters before it: from N + 14 pixels on that is hidden."""
    builder = Builder(random.Random(SEED))
    for _ in range(4):
        simple(builder, out_width=pixels, out_rows=1, kernel_width=3)
    record = run(builder)
    first = record.streamed[::pixels]
    distances = [b - a for a, b in itertools.pairwise(first)]
    # The first command finds the parameters free; in those that follow only the second tile is late.
    assert distances == ([pixels] * 3 + [max(pixels, N + 14), pixels, pixels] * 3)[: len(distances)]


@pytest.mark.parametrize("pixels", range(1, N + 3))
def test_small_tiles_take_their_weights_time(pixels):
    builder = Builder(random.Random(SEED))
    simple(builder, out_width=pixels, out_rows=1, kernel_width=3, in_width=8, accumulate_last=0)
    record = run(builder)
    first = record.streamed[::pixels]
    assert {b - a for a, b in itertools.pairwise(first)} == {max(pixels, N + 1)}


@pytest.mark.parametrize("pixels", [1, 2, 5])
def test_diagonal_tiles_take_two_cycles_at_least_and_one_read(pixels):
    builder = Builder(random.Random(SEED))
    simple(
        builder, out_width=pixels, out_rows=1, kernel_width=3, kernel_height=2, in_width=8, diagonal=1,
        accumulate_last=0,
    )  # fmt: skip
    record = run(builder)
    first = record.streamed[::pixels]
    assert {b - a for a, b in itertools.pairwise(first)} == {max(pixels, 2)}
    assert len(record.reads["weights"]) == 6
    assert record.streamed[0] == 5  # the window's latency: the weights are there before


def test_diagonal_and_dense_tiles_in_one_chain():
    builder = Builder(random.Random(SEED))
    shape = {"out_width": 5, "out_rows": 2, "maximum": 0}
    for link, diagonal in enumerate((1, 0, 1, 1, 0)):
        builder.add(accumulate_first=int(link == 0), accumulate_last=int(link == 4), diagonal=diagonal, **shape)
    run(builder, busy=0.2)


@pytest.mark.parametrize("pixels", [1, 2, 5])
def test_maximum_takes_two_cycles_a_tile_at_least(pixels):
    builder = Builder(random.Random(SEED))
    simple(builder, out_width=pixels, out_rows=1, kernel_width=3, in_width=8, maximum=1)
    record = run(builder)
    first = record.streamed[::pixels]
    assert {b - a for a, b in itertools.pairwise(first)} == {max(pixels, 2)}


def test_a_refused_pixel_costs_one_cycle():
    builder = Builder(random.Random(SEED))
    simple(builder)
    first = N + 2
    record = run(builder, refuse=lambda port, cycle: port == "pixels" and cycle in (first + 3, first + 4, first + 9))
    expected = [cycle for cycle in range(first, first + 16 + 3) if cycle not in (first + 3, first + 4, first + 9)]
    assert record.streamed == expected


def test_the_epilogue_takes_four_cycles_a_line_with_a_residual():
    builder = Builder(random.Random(SEED))
    command = simple(builder, residual=1)
    record = run(builder)
    begin = record.streamed[-1] + 5
    assert record.reads["residual"] == [begin + 1 + 4 * i for i in range(command.pixels)]
    assert record.writes == [begin + 23 + 4 * i for i in range(command.pixels)]


def test_a_refused_residual_costs_its_slot():
    builder = Builder(random.Random(SEED))
    simple(builder, residual=1)
    begin = N + 2 + 15 + 5
    record = run(builder, refuse=lambda port, cycle: port == "residual" and cycle in (begin + 9, begin + 10))
    assert record.reads["residual"] == [begin + 1 + 4 * i for i in range(17) if i != 2]


def test_refused_writes_hold_up_issue_by_the_queue():
    """Eight lines may be between issue and write: short refusals cost nothing but themselves."""
    builder = Builder(random.Random(SEED))
    command = simple(builder, out_width=8, out_rows=4, in_rows=4)
    first = N + 2 + 31 + 5 + 8
    record = run(builder, refuse=lambda port, cycle: port == "output" and cycle in (first + 5, first + 12))
    expected = [cycle for cycle in range(first, first + command.pixels + 2) if cycle not in (first + 5, first + 12)]
    assert record.writes == expected


def test_epilogues_follow_each_other_with_eight_cycles_between():
    """Commands of one tile: the epilogue's period is pixels + 8, and the array keeps up."""
    builder = Builder(random.Random(SEED))
    pixels = 32
    for _ in range(4):
        simple(builder, out_width=8, out_rows=4, in_rows=4)
    record = run(builder)
    first = record.writes[::pixels]
    assert {b - a for a, b in itertools.pairwise(first)} == {pixels + 8}


def test_an_epilogue_overlaps_the_streaming_of_the_next_command():
    builder = Builder(random.Random(SEED))
    for _ in range(3):
        simple(builder, out_width=8, out_rows=4, in_rows=4, kernel_width=2)
    record = run(builder)
    assert record.streamed == list(range(record.streamed[0], record.streamed[0] + 3 * 64))
    assert record.writes[31] < record.streamed[127]


def test_a_table_load():
    """Tile, parameters, table and next tile follow each other without a gap when nothing is in their way."""
    builder = Builder(random.Random(SEED))
    simple(builder, load_table=1, kernel_width=2)
    record = run(builder)
    assert record.reads["weights"] == list(range(2, 2 + 2 * N + PARAMETER_LINES + TABLE_BYTES // N))
    assert record.streamed[16] == 2 + 2 * N + PARAMETER_LINES + TABLE_BYTES // N


def test_a_table_waits_for_the_epilogue():
    builder = Builder(random.Random(SEED))
    simple(builder)
    simple(builder, load_table=1)
    record = run(builder)
    table = record.reads["weights"][-TABLE_BYTES // N :]
    assert table[0] == record.writes[15] + 1
    # The last line arrives, its word is written, the parameters are full, the command begins.
    assert record.writes[16] == table[-1] + 4 + 8


def test_a_third_command_waits_for_the_first_to_drain():
    builder = Builder(random.Random(SEED))
    for _ in range(3):
        simple(builder, residual=1)
    record = run(builder)
    assert record.streamed[:32] == list(range(N + 2, N + 2 + 32))
    assert record.streamed[32] == record.reads["residual"][15] + 1


def test_commands_retire_in_order():
    """A long epilogue before short commands without one: they retire in order all the same."""
    builder = Builder(random.Random(SEED))
    simple(builder, residual=1, out_width=8, out_rows=8, in_rows=8)
    for link in range(3):
        simple(builder, accumulate_first=int(link == 0), accumulate_last=0)
    simple(builder, accumulate_first=0)
    record = run(builder)
    assert record.retired[1][0] == record.retired[0][0] + 1


def test_issued_command_is_what_the_test_fills():
    """The harness names every field of an issued command."""
    builder = Builder(random.Random(SEED))
    command = builder.add()
    layout = issued_command(CONFIG)
    assert layout.const(command.issued(CONFIG)).as_bits() >> (COMMAND.size + 24)
