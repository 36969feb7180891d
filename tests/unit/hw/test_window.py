"""The window address generator against the loop nest of the command set, and its timing page."""

import os
import random

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.spec.config import load_config
from hw.window import Window

SEED = int(os.environ.get("RONDO_SEED", "1"))
CONFIG = load_config("tiny")
SIZE = CONFIG.scratchpad.bytes


def random_context(r: random.Random) -> dict:
    width = r.randint(1, 9)
    pixel_stride = r.randint(1, CONFIG.array.n)
    in_width, in_rows, blocks = r.randint(1, 12), r.randint(1, 9), r.randint(1, 3)
    block_stride = in_width * pixel_stride
    row_stride = blocks * block_stride
    ring_bytes = in_rows * row_stride + r.choice((0, r.randrange(100)))
    return {
        "out_width": width, "out_rows": r.randint(1, 5),
        "kernel_width": r.randint(1, 3), "kernel_height": r.randint(1, 3),
        "in_blocks": blocks, "stride_x": r.randint(1, 4), "stride_y": r.randint(1, 4), "dilation_x": r.randint(1, 3),
        "dilation_y": r.randint(1, 3), "x_origin": r.randint(-5, 5), "y_origin": r.randint(-5, 5), "in_width": in_width,
        "in_rows": in_rows, "pixel_stride": pixel_stride, "row_stride": row_stride, "block_stride": block_stride,
        "upsample": r.randrange(2),
        "place": {"base": r.randrange(SIZE - ring_bytes), "start": r.randrange(ring_bytes), "ring_bytes": ring_bytes},
        "tag": {
            "accumulate_first": r.randrange(2), "accumulate_last": r.randrange(2), "maximum": r.randrange(2),
            "pad_value": r.randrange(256), "input": {"ring": r.randrange(16), "cursor": r.randrange(5), "advance": 9},
        },
    }  # fmt: skip


def lines(c: dict) -> list[tuple]:
    """(inside, address or None, index, first of tile, in first tile, last of command) of every line."""
    result = []
    taps = [
        (b, ky, kx)
        for b in range(c["in_blocks"])
        for ky in range(c["kernel_height"])
        for kx in range(c["kernel_width"])
    ]
    for tile, (block, ky, kx) in enumerate(taps):
        for index in range(c["out_rows"] * c["out_width"]):
            oy, ox = divmod(index, c["out_width"])
            x = c["x_origin"] + ox * c["stride_x"] + kx * c["dilation_x"]
            y = c["y_origin"] + oy * c["stride_y"] + ky * c["dilation_y"]
            inside = 0 <= x < c["in_width"] and 0 <= y < c["in_rows"]
            x, y = x >> c["upsample"], y >> c["upsample"]
            offset = block * c["block_stride"] + y * c["row_stride"] + x * c["pixel_stride"]
            place = c["place"]
            address = place["base"] + (place["start"] + offset) % place["ring_bytes"] if inside else None
            last = tile == len(taps) - 1 and index == c["out_rows"] * c["out_width"] - 1
            result.append((inside, address, index, index == 0, tile == 0, last))
    return result


@pytest.mark.parametrize(("give", "take"), [(1.0, 1.0), (1.0, 0.5), (0.1, 1.0)])
def test_lines_and_their_time(give, take):
    r = random.Random(f"{SEED} {give} {take}")
    contexts = [random_context(r) for _ in range(12)]
    expected = [line for context in contexts for line in lines(context)]
    tags = [context["tag"] for context in contexts for _ in lines(context)]
    dut = Window(CONFIG)
    rtlil.convert(dut)
    seen, cycles, given = [], [], []

    async def bench(ctx):
        pending = list(contexts)
        offered = False
        for cycle in range(50 * len(expected)):
            if not offered and pending and r.random() < give:
                ctx.set(dut.i.payload, pending[0])
                offered = True
            ctx.set(dut.i.valid, offered)
            ctx.set(dut.o.ready, r.random() < take)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                line = ctx.get(dut.o.payload)
                address = line.address if line.inside else None
                assert line.tag.pad_value == tags[len(seen)]["pad_value"]
                assert line.tag.input.ring == tags[len(seen)]["input"]["ring"]
                seen.append(
                    (
                        bool(line.inside),
                        address,
                        line.index,
                        bool(line.tile_first),
                        bool(line.command_tile),
                        bool(line.last),
                    )
                )
                cycles.append(cycle)
            if offered and ctx.get(dut.i.ready):
                given.append(cycle)
                pending.pop(0)
                offered = False
            if len(seen) == len(expected):
                return
            await ctx.tick()
        raise AssertionError("the simulation hangs")

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen == expected, f"seed {SEED}"
    assert cycles[0] == given[0] + 4
    if give == take == 1.0:
        assert cycles == list(range(cycles[0], cycles[0] + len(expected)))
