"""DMA store: bytes against the definition of a transfer, cycles against the recurrences of docs/timing/dma_store.md."""

import os
import random
from collections.abc import Sequence

import pytest

from hw.dma_store import BEATS_AHEAD, PIECES_AHEAD, DmaStore
from hw.interfaces import CAUSE_FLAGS
from hw.spec.commands import Fault, Opcode
from hw.spec.config import NpuConfig, load_config
from sim.testing.axi_memory import AxiBehaviour
from sim.testing.dma_bench import DmaBench, Transfer, check_elaborates, passed, pieces, random_transfers

SEED = int(os.environ.get("RONDO_SEED", "1"))
BUFFER = (0x1_0123, 0x3000)
"""A buffer at an odd address."""
MEMORY_BYTES = 0x1_8000


def small(bus_bits: int = 32, **settings: object) -> NpuConfig:
    return load_config("tiny", {"dma.bus_bits": bus_bits, "scratchpad.bytes": 16384} | settings)


def bench(
    config: NpuConfig,
    rng: random.Random,
    behaviour: AxiBehaviour,
    *,
    grant: float = 1.0,
    offer: float = 1.0,
    buffer: tuple[int, int] = BUFFER,
) -> DmaBench:
    check_elaborates(DmaStore(config))
    return DmaBench(
        config,
        DmaStore,
        memory=bytearray(rng.randbytes(MEMORY_BYTES)),
        scratchpad=bytearray(rng.randbytes(config.scratchpad.bytes)),
        behaviour=behaviour,
        rng=rng,
        base=[(0, 0), (0, 0), buffer, (0, 0)],
        grant=grant,
        offer=offer,
    )


def apply(transfers: Sequence[Transfer], memory: bytearray, scratchpad: bytes) -> None:
    """What the memory must hold afterwards."""
    for transfer in transfers:
        for dram, place in transfer.moves():
            memory[BUFFER[0] + dram] = scratchpad[place]


def in_buffer(transfers: list[Transfer]) -> list[Transfer]:
    for transfer in transfers:
        transfer.base = 2
    return transfers


@pytest.mark.parametrize("bus_bits", [32, 256])
@pytest.mark.parametrize("shape", range(3))
def test_random_transfers(bus_bits: int, shape: int) -> None:
    print(f"seed {SEED}")
    rng = random.Random(f"{SEED} {bus_bits} {shape}")
    settings = (
        {"dma.outstanding": 8},
        {"dma.outstanding": 1, "dma.burst_beats": 1, "dma.buffer_beats": 1, "array.n": 16, "accumulator.lines": 64},
        {"dma.outstanding": 16, "dma.burst_beats": 4, "array.n": 8},
    )[shape]
    config = small(bus_bits, **settings)
    behaviour = (
        AxiBehaviour(latency=(1, 1)),
        AxiBehaviour(latency=(1, 10), ready=0.4, valid=0.6),
        AxiBehaviour(latency=(5, 50), ready=0.8, valid=0.9),
    )[shape]
    unit = bench(config, rng, behaviour, grant=(1.0, 0.7, 0.5)[shape], offer=(1.0, 0.3, 1.0)[shape])
    transfers = in_buffer(random_transfers(config, rng, [Opcode.STORE], 15, BUFFER[1], longest=(500, 60, 200)[shape]))
    expected = bytearray(unit.memory.data)
    apply(transfers, expected, unit.scratchpad)
    unit.run(transfers, deadline=60000)
    assert unit.memory.data == expected
    assert unit.commits() == [commit for transfer in transfers for commit in passed(transfer)]
    assert [index for _, index in unit.retired()] == [transfer.index for transfer in transfers]
    assert not unit.faults()
    moved = sum(t.run_bytes * t.count[0] * t.count[1] * t.count[2] for t in transfers)
    assert sum(cycle.bytes_moved for cycle in unit.cycles) == moved


def test_every_alignment_and_length() -> None:
    config = small(64, **{"dma.burst_beats": 4})
    rng = random.Random(SEED)
    transfers = []
    for lane in range(8):
        for size in (*range(1, 18), 32, 33, 40):
            transfers.append(
                Transfer(
                    opcode=Opcode.STORE, index=len(transfers), run_bytes=size, base=2,
                    dram_offset=4096 * (len(transfers) % 3) + 4096 - 24 + lane - BUFFER[0] % 4096,
                    ring_base=len(transfers) * 64 % 16384, ring_bytes=64, start=rng.randrange(64),
                )
            )  # fmt: skip
    unit = bench(config, rng, AxiBehaviour(latency=(1, 3)))
    expected = bytearray(unit.memory.data)
    apply(transfers, expected, unit.scratchpad)
    unit.run(transfers)
    assert unit.memory.data == expected


def predict(config: NpuConfig, transfers: Sequence[Transfer], latency: int) -> dict[str, list[int]]:
    """Cycles on a memory that takes everything and answers after a fixed latency, and a scratchpad that always grants;
    docs/timing/dma_store.md line by line."""
    accepted: list[int] = []
    retired: list[int] = []
    issued: list[int] = []  # o of each piece
    begun: list[int] = []  # each piece leaves the queue for the read side
    reads: list[int] = []
    beats: list[tuple[int, int]] = []  # (grant of its last read, handed over)
    done: list[int] = []
    run_left = cut = -1
    for c, transfer in enumerate(transfers):
        a = max(run_left + 1, accepted[-1] + 1 if accepted else 0, retired[c - 4] + 1 if c >= 4 else 0)
        accepted.append(a)
        begins_run = True
        for piece in pieces(config, transfer, [(0, 0), (0, 0), BUFFER]):
            if begins_run:
                run_left = max(a + 1, run_left + 1, cut)
            cut = max(run_left + 1, cut + 1, issued[-1] if issued else 0)
            begins_run = piece.ends_run
            o = cut + 1
            while (
                len(issued) - sum(cycle < o for cycle in done) >= config.dma.outstanding
                or len(issued) - sum(cycle < o for cycle in begun) >= PIECES_AHEAD
            ):
                o += 1
            issued.append(o)
            begun.append(max(o + 1, reads[-1] if reads else 0))
            q = begun[-1] + 1
            place, bytes_left, lane = piece.place, piece.bytes, piece.lane
            while bytes_left:
                while len(beats) - sum(handed < q for _, handed in beats) >= BEATS_AHEAD:
                    q += 1
                reads.append(q)
                step = min(bytes_left, config.bus_bytes - lane, transfer.ring_bytes - place)
                place = (place + step) % transfer.ring_bytes
                bytes_left -= step
                lane += step
                if lane == config.bus_bytes or not bytes_left:
                    lane = 0
                    beats.append((q, max(q + 2, beats[-1][1] + 1 if beats else 0)))
                q += 1
            done.append(max(beats[-1][1] + latency, done[-1] + 1 if done else 0))
        first = max(done[-1] + 1, retired[-1] + 1 if retired else 0)
        retired.append(first + max(1, len(passed(transfer))) - 1)
    return {
        "accepted": accepted,
        "requests": issued,
        "reads": reads,
        "beats": [handed for _, handed in beats],
        "retired": retired,
    }


@pytest.mark.parametrize(
    ("bus_bits", "latency", "settings"),
    [
        (32, 1, {}),
        (32, 20, {}),
        (256, 40, {"dma.outstanding": 16}),
        (64, 7, {"dma.outstanding": 2, "dma.burst_beats": 4}),
        (64, 3, {"dma.outstanding": 1, "dma.burst_beats": 1, "array.n": 16, "accumulator.lines": 64}),
    ],
)
def test_timing(bus_bits: int, latency: int, settings: dict[str, object]) -> None:
    print(f"seed {SEED}")
    config = small(bus_bits, **settings)
    rng = random.Random(f"{SEED} {bus_bits} {latency}")
    unit = bench(config, rng, AxiBehaviour(latency=(latency, latency)))
    transfers = in_buffer(random_transfers(config, rng, [Opcode.STORE], 20, BUFFER[1], longest=400))
    expected = predict(config, transfers, latency)
    unit.run(transfers, deadline=100000)
    assert unit.accepted() == expected["accepted"]
    assert [burst.cycle for burst in unit.memory.writes] == expected["requests"]
    assert unit.granted() == expected["reads"]
    assert unit.memory.beats_written == expected["beats"]
    assert [cycle for cycle, _ in unit.retired()] == expected["retired"]


def test_first_byte() -> None:
    """The figures that the timing page gives in words."""
    config = small()
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(10, 10)))
    unit.run(
        [Transfer(opcode=Opcode.STORE, index=7, run_bytes=4, base=2, dram_offset=1, operands=((3, 0, 1), (2, 4, 9)))]
    )
    assert unit.accepted() == [0]
    assert [burst.cycle for burst in unit.memory.writes] == [3]
    assert unit.granted() == [5]
    assert unit.memory.beats_written == [7]
    assert unit.cycles[18].commit == (3, 0, 1)
    assert unit.cycles[19].commit == (2, 4, 9)
    assert unit.retired() == [(19, 7)]
    assert [t for t, cycle in enumerate(unit.cycles) if not cycle.idle] == list(range(1, 20))


@pytest.mark.parametrize(("bus_bits", "run_bytes"), [(32, 64), (256, 64), (256, 32), (256, 4096)])
def test_utilisation(bus_bits: int, run_bytes: int) -> None:
    """At least 95 % of the bus with enough bursts outstanding; runs of one command and across commands."""
    config = small(bus_bits, **{"dma.outstanding": 32})
    commands = 4
    runs = max(1, 8192 // run_bytes)
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(20, 20)), buffer=(0x8000, 0x8000))
    transfers = [
        Transfer(
            opcode=Opcode.STORE, index=k, run_bytes=run_bytes, base=2, count=(runs, 1, 1), ring_bytes=8192,
            dram_stride=(run_bytes, 0, 0), scratchpad_stride=(run_bytes, 0, 0), operands=((1, 0, 1), (2, 4, 1)),
        )
        for k in range(commands)
    ]  # fmt: skip
    unit.run(transfers)
    beats = unit.memory.beats_written
    assert len(beats) == commands * runs * run_bytes // config.bus_bytes
    utilisation = len(beats) / (beats[-1] - beats[0] + 1)
    print(f"{bus_bits} bits, runs of {run_bytes}: {utilisation:.1%}")
    assert utilisation >= 0.95


def test_fault_outside() -> None:
    """Commands before the fault commit, nothing outside the buffer is written, and nothing later."""
    config = small()
    rng = random.Random(SEED)
    good = Transfer(opcode=Opcode.STORE, index=5, run_bytes=40, base=2, operands=((1, 0, 1), (2, 4, 3)))
    bad = Transfer(
        opcode=Opcode.STORE, index=6, run_bytes=16, base=2, dram_offset=BUFFER[1] - 32, count=(4, 1, 1),
        dram_stride=(16, 0, 0), scratchpad_stride=(16, 0, 0), ring_base=1024, operands=((1, 0, 1),),
    )  # fmt: skip
    later = [Transfer(opcode=Opcode.STORE, index=7 + k, run_bytes=4, base=2, dram_offset=100) for k in range(8)]
    again = Transfer(opcode=Opcode.STORE, index=90, run_bytes=99, base=2, dram_offset=400, operands=((9, 0, 1),))
    unit = bench(config, rng, AxiBehaviour(latency=(9, 9)))
    expected = bytearray(unit.memory.data)
    apply([good, again], expected, unit.scratchpad)
    for k in range(32):
        expected[BUFFER[0] + BUFFER[1] - 32 + k] = unit.scratchpad[1024 + k]
    unit.run([good, bad, *later], more=[again])
    assert unit.faults() == [(Fault.ADDRESS, 6)]
    assert unit.commits() == [(1, 0, 1), (2, 4, 3), (9, 0, 1)]
    assert [index for _, index in unit.retired()] == [5, 90]
    assert unit.memory.data == expected


def test_older_error_wins() -> None:
    """An error response of an older command, known after the address of a younger one is found outside."""
    config = small()
    unit = bench(
        config,
        random.Random(SEED),
        AxiBehaviour(latency=(60, 60), write_error=lambda address: address // 64 == (BUFFER[0] + 128) // 64),
    )
    good = Transfer(opcode=Opcode.STORE, index=1, run_bytes=4, base=2, operands=((1, 0, 1),))
    first = Transfer(opcode=Opcode.STORE, index=2, run_bytes=4, base=2, dram_offset=128)
    outside = Transfer(opcode=Opcode.STORE, index=3, run_bytes=4, base=2, dram_offset=1 << 40)
    unit.run([good, first, outside], more=[good])
    assert unit.faults() == [(Fault.BUS, 2)]
    assert [index for _, index in unit.retired()] == [1, 1]


@pytest.mark.parametrize("grant", [1.0, 0.3])
def test_fault_waits_for_older_commits(grant: float) -> None:
    config = small()
    operands = tuple((ring, 0, ring) for ring in range(1, 6))
    good = [Transfer(opcode=Opcode.STORE, index=k, run_bytes=4, base=2, operands=operands) for k in range(3)]
    bad = Transfer(opcode=Opcode.STORE, index=3, run_bytes=4, base=2, dram_offset=BUFFER[1], operands=operands)
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(2, 2)), grant=grant)
    unit.run([*good, bad, bad], more=good)
    assert unit.faults() == [(Fault.ADDRESS, 3)]
    assert unit.commits() == list(operands) * 6
    assert [index for _, index in unit.retired()] == [0, 1, 2] * 2


def test_error_stops_requests() -> None:
    config = small(**{"dma.outstanding": 64})
    behaviour = AxiBehaviour(latency=(9, 9), write_error=lambda address: address < BUFFER[0] + 64)
    unit = bench(config, random.Random(SEED), behaviour)
    unit.run([Transfer(opcode=Opcode.STORE, index=3, run_bytes=8192, base=2, ring_bytes=8192)])
    assert unit.faults() == [(Fault.BUS, 3)]
    assert all(burst.cycle <= unit.memory.write_errors[0] for burst in unit.memory.writes)
    assert len(unit.memory.writes) > 2


def test_request_refused_at_a_fault_is_still_made() -> None:
    """With its own bytes; the fault is told afterwards."""
    config = small(**{"dma.burst_beats": 4})
    behaviour = AxiBehaviour(
        latency=(9, 9), stalled=lambda cycle: 4 <= cycle < 60, write_error=lambda address: address < BUFFER[0]
    )
    unit = bench(config, random.Random(SEED), behaviour)
    bad = Transfer(opcode=Opcode.STORE, index=3, run_bytes=64, base=2, ring_base=2048, start=1020, ring_bytes=1030)
    good = Transfer(opcode=Opcode.STORE, index=4, run_bytes=64, base=2, dram_offset=100, ring_base=1024)
    expected = bytearray(unit.memory.data)
    moves = list(bad.moves())
    for dram, place in moves[13:29]:
        expected[BUFFER[0] + dram] = unit.scratchpad[place]
    apply([good], expected, unit.scratchpad)
    unit.run([bad], more=[good])
    assert unit.faults() == [(Fault.BUS, 3)]
    assert [burst.cycle for burst in unit.memory.writes[:2]] == [3, 60]
    assert unit.memory.data == expected


@pytest.mark.parametrize("round", range(10))
def test_bus_errors(round: int) -> None:
    """A bad block anywhere: commands before it commit, what was requested ends, and the unit works again."""
    print(f"seed {SEED}")
    config = small([32, 256][round % 2])
    rng = random.Random(f"{SEED} {round}")
    bad = BUFFER[0] + rng.randrange(BUFFER[1]) & ~511
    behaviour = AxiBehaviour(
        latency=(1, 40), ready=(0.7, 0.04)[round > 5], valid=0.8, write_error=lambda address: bad <= address < bad + 512
    )
    unit = bench(config, rng, behaviour, grant=0.7)
    transfers = in_buffer(random_transfers(config, rng, [Opcode.STORE], 20, BUFFER[1]))
    transfers.append(
        Transfer(opcode=Opcode.STORE, index=1, run_bytes=999, base=2, dram_offset=max(0, bad - BUFFER[0] - 99))
    )
    first = next(
        k
        for k, transfer in enumerate(transfers)
        if any(bad <= piece.address < bad + 512 for piece in pieces(config, transfer, [(0, 0), (0, 0), BUFFER]))
    )
    again = Transfer(
        opcode=Opcode.STORE, index=90, run_bytes=1, base=2, dram_offset=(bad + 1024) % 2048, operands=((9, 0, 1),)
    )
    if bad <= BUFFER[0] + again.dram_offset & ~31 < bad + 512:
        again.dram_offset += 1024
    unit.run(transfers, more=[again], deadline=60000)
    assert unit.faults() == [(Fault.BUS, transfers[first].index)]
    done = [*transfers[:first], again]
    assert [index for _, index in unit.retired()] == [transfer.index for transfer in done]
    assert unit.commits() == [commit for transfer in done for commit in passed(transfer)]


def test_causes() -> None:
    """A flag in every cycle that is not idle, none in one that is."""
    config = small()
    rng = random.Random(SEED)
    unit = bench(config, rng, AxiBehaviour(latency=(8, 8), ready=0.6), grant=0.6)
    unit.run(in_buffer(random_transfers(config, rng, [Opcode.STORE], 10, BUFFER[1])))
    bit = {name: 1 << field.offset for name, field in CAUSE_FLAGS}
    for cycle in unit.cycles:
        assert bool(cycle.flags) == (not cycle.idle)
        assert bool(cycle.flags & bit["busy"]) == (cycle.bytes_moved != 0)
    every = {name for name in bit for cycle in unit.cycles if cycle.flags & bit[name]}
    assert every == {"busy", "bank_conflict", "memory", "pipeline"}
