"""The walker against a plain list of bursts, with and without back-pressure, and to the cycle."""

import dataclasses
import os
import random

import pytest
from amaranth.sim import Simulator, SimulatorContext

from hw.spec.commands import Opcode
from hw.spec.config import NpuConfig, load_config
from hw.transfer_walker import TransferWalker, transfer_walk
from sim.testing.dma_bench import Piece, Transfer, check_elaborates, pieces, random_transfers

SEED = int(os.environ.get("RONDO_SEED", "1"))
BASE_ADDRESS = 0x1_0000
DRAM_BYTES = 0x3000


def small(bus_bits: int = 32, **dma: int) -> NpuConfig:
    settings = {f"dma.{key}": value for key, value in dma.items()}
    return load_config("tiny", {"dma.bus_bits": bus_bits, "scratchpad.bytes": 16384} | settings)


def walk_payload(config: NpuConfig, transfer: Transfer, base: tuple[int, int]):
    return transfer_walk(config).const(
        {
            "fill": transfer.opcode == Opcode.FILL,
            "run_bytes": transfer.run_bytes,
            "count": transfer.count,
            "dram_offset": transfer.dram_offset & (1 << 64) - 1,
            "dram_stride": [stride & 0xFFFFFFFF for stride in transfer.dram_stride],
            "base_address": base[0],
            "base_bytes": base[1],
            "start": transfer.start,
            "place_stride": transfer.scratchpad_stride,
            "ring_bytes": transfer.ring_bytes,
        }
    )


def walk(
    config: NpuConfig, transfers: list[Transfer], base: tuple[int, int], *, ready: float = 1.0
) -> tuple[list[int], list[tuple[int, Piece]]]:
    """Cycles of acceptance, and the pieces with their cycles. The piece's ``ends_run`` is not known outside."""
    dut = TransferWalker(config)
    check_elaborates(TransferWalker(config))
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    rng = random.Random(SEED)
    expected = sum(len(list(pieces(config, transfer, [base]))) for transfer in transfers)
    accepted: list[int] = []
    seen: list[tuple[int, Piece]] = []

    async def feed(ctx: SimulatorContext) -> None:
        for transfer in transfers:
            ctx.set(dut.i.payload, walk_payload(config, transfer, base))
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def take(ctx: SimulatorContext) -> None:
        places = {}
        cycle = 0
        while len(seen) < expected:
            taken = rng.random() < ready
            ctx.set(dut.o.ready, taken)
            _, _, iv, ir, valid, o = await ctx.tick().sample(dut.i.valid, dut.i.ready, dut.o.valid, dut.o.payload)
            if iv and ir:
                places[len(accepted)] = transfers[len(accepted)].ring_bytes
                accepted.append(cycle)
            if valid and taken:
                done = sum(piece.last or piece.outside for _, piece in seen)
                seen.append(
                    (
                        cycle,
                        Piece(
                            address=o.address,
                            beats=o.beats,
                            lane=o.lane,
                            bytes=o.bytes,
                            place=transfers[done].ring_bytes - o.to_end,
                            ends_run=False,
                            last=bool(o.last),
                            outside=bool(o.outside),
                        ),
                    )
                )
            cycle += 1
        ctx.set(dut.o.ready, 1)
        await ctx.tick().repeat(5)

    async def watchdog(ctx: SimulatorContext) -> None:
        await ctx.delay(20000e-6)
        raise AssertionError("not finished")

    simulator.add_testbench(feed, background=True)
    simulator.add_testbench(take)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()
    return accepted, seen


def expected_pieces(config: NpuConfig, transfers: list[Transfer], base: tuple[int, int]) -> list[Piece]:
    return [
        dataclasses.replace(piece, ends_run=False)
        for transfer in transfers
        for piece in pieces(config, transfer, [base])
    ]


def same(config: NpuConfig, expected: list[Piece], seen: list[tuple[int, Piece]]) -> None:
    """Compare; the address of a piece outside means nothing."""

    def known(piece: Piece) -> Piece:
        return dataclasses.replace(piece, address=0, beats=0, lane=0) if piece.outside else piece

    assert [known(piece) for _, piece in seen] == [known(piece) for piece in expected]


@pytest.mark.parametrize("bus_bits", [32, 256])
@pytest.mark.parametrize("ready", [1.0, 0.5])
def test_random_walks(bus_bits: int, ready: float) -> None:
    print(f"seed {SEED}")
    config = small(bus_bits)
    rng = random.Random(f"{SEED} {bus_bits}")
    transfers = random_transfers(config, rng, [Opcode.LOAD, Opcode.FILL], 40, DRAM_BYTES, longest=1500)
    base = (BASE_ADDRESS + rng.randrange(4096), DRAM_BYTES)
    _, seen = walk(config, transfers, base, ready=ready)
    same(config, expected_pieces(config, transfers, base), seen)


@pytest.mark.parametrize("burst_beats", [1, 4, 64])
def test_bursts_of_every_length_at_a_4_kib_edge(burst_beats: int) -> None:
    config = small(64, burst_beats=burst_beats)
    transfers = [
        Transfer(opcode=Opcode.LOAD, index=0, run_bytes=size, dram_offset=4096 - before, ring_bytes=2048)
        for before in range(12)
        for size in (1, 7, 8, 9, 24, 600)
    ]
    base = (BASE_ADDRESS, DRAM_BYTES)
    _, seen = walk(config, transfers, base)
    same(config, expected_pieces(config, transfers, base), seen)
    for _, piece in seen:
        assert piece.beats <= burst_beats
        assert piece.address % 4096 + piece.beats * config.bus_bytes <= 4096


def test_fill_is_not_shorter_than_a_word() -> None:
    config = load_config("tiny", {"array.n": 16, "accumulator.lines": 64, "dma.burst_beats": 1})
    transfers = [Transfer(opcode=Opcode.FILL, index=0, run_bytes=size, start=5) for size in (1, 15, 16, 17, 100)]
    _, seen = walk(config, transfers, (0, 0))
    expected = expected_pieces(config, transfers, (0, 0))
    assert [(p.bytes, p.place, p.last) for _, p in seen] == [(p.bytes, p.place, p.last) for p in expected]
    assert max(piece.bytes for _, piece in seen) == 16


@pytest.mark.parametrize(
    ("offset", "size", "outside"),
    [
        (0, 0x3000, False),
        (-1, 4, True),
        (0x2FFF, 1, False),
        (0x2FFF, 2, True),
        (0x3000, 1, True),
        (1 << 36, 1, True),
        ((1 << 63) + 8, 8, True),
        (1 << 63, 8, True),
        (-(1 << 63), 8, True),
    ],
)
def test_the_buffer_is_a_limit(offset: int, size: int, outside: bool) -> None:
    config = small()
    transfers = [Transfer(opcode=Opcode.LOAD, index=0, run_bytes=size, dram_offset=offset, ring_bytes=0x3000)]
    _, seen = walk(config, transfers, (BASE_ADDRESS, 0x3000))
    assert seen[-1][1].outside == outside


def test_the_address_space_is_a_limit() -> None:
    config = small()
    top = 1 << config.address_bits
    transfers = [Transfer(opcode=Opcode.LOAD, index=0, run_bytes=64, dram_offset=offset) for offset in (192, 193)]
    _, seen = walk(config, transfers, (top - 256, 1024))
    same(config, expected_pieces(config, transfers, (top - 256, 1024)), seen)
    assert [piece.outside for _, piece in seen] == [False, False, True]


@pytest.mark.parametrize(("stride", "outside_at"), [(-100, 3), (100, 2), (-(1 << 31), 1), ((1 << 31) - 1, 1)])
def test_strides_out_of_the_buffer(stride: int, outside_at: int) -> None:
    config = small()
    transfer = Transfer(
        opcode=Opcode.LOAD, index=0, run_bytes=4, dram_offset=200, count=(8, 1, 1), dram_stride=(stride, 0, 0)
    )
    _, seen = walk(config, [transfer], (BASE_ADDRESS, 400))
    assert [piece.outside for _, piece in seen] == [False] * outside_at + [True]


@pytest.mark.parametrize("bus_bits", [32, 256])
def test_one_piece_a_cycle(bus_bits: int) -> None:
    """First piece three cycles after acceptance, then one a cycle; one cycle lost from transfer to transfer."""
    config = small(bus_bits)
    transfers = [
        Transfer(opcode=Opcode.LOAD, index=0, run_bytes=4, count=(3, 4, 2), dram_stride=(8, 64, 512)) for _ in range(3)
    ]
    accepted, seen = walk(config, transfers, (BASE_ADDRESS, DRAM_BYTES))
    assert accepted == [0, 25, 50]
    assert [cycle for cycle, _ in seen] == [start + 3 + k for start in accepted for k in range(24)]


def test_a_buffer_may_be_the_whole_address_space() -> None:
    config = small()
    top = 1 << config.address_bits
    transfers = [Transfer(opcode=Opcode.LOAD, index=0, run_bytes=64, dram_offset=top - below) for below in (64, 63)]
    _, seen = walk(config, transfers, (0, top))
    assert [piece.outside for _, piece in seen] == [False, False, True]  # 64 bytes, 63 bytes, the byte after


def test_a_buffer_of_no_bytes_has_no_inside() -> None:
    config = small()
    transfers = [Transfer(opcode=Opcode.LOAD, index=0, run_bytes=1)]
    _, seen = walk(config, transfers, (BASE_ADDRESS, 0))
    assert [piece.outside for _, piece in seen] == [True]
