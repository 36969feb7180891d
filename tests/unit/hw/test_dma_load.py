"""DMA load: bytes against the definition of a transfer, cycles against the recurrences of docs/timing/dma_load.md."""

import os
import random
from collections.abc import Sequence

import pytest

from hw.dma_load import DmaLoad
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
    check_elaborates(DmaLoad(config))
    return DmaBench(
        config,
        DmaLoad,
        memory=bytearray(rng.randbytes(MEMORY_BYTES)),
        scratchpad=bytearray(rng.randbytes(config.scratchpad.bytes)),
        behaviour=behaviour,
        rng=rng,
        base=[(0, 0), buffer, (0, 0), (0, 0)],
        grant=grant,
        offer=offer,
    )


def apply(transfers: Sequence[Transfer], memory: bytes, scratchpad: bytearray) -> None:
    """What the scratchpad must hold afterwards."""
    for transfer in transfers:
        for dram, place in transfer.moves():
            scratchpad[place] = transfer.fill if transfer.opcode == Opcode.FILL else memory[BUFFER[0] + dram]


def in_buffer(transfers: list[Transfer]) -> list[Transfer]:
    for transfer in transfers:
        transfer.base = 1
    return transfers


@pytest.mark.parametrize("bus_bits", [32, 256])
@pytest.mark.parametrize("shape", range(3))
def test_random_transfers(bus_bits: int, shape: int) -> None:
    print(f"seed {SEED}")
    rng = random.Random(f"{SEED} {bus_bits} {shape}")
    settings = (
        {"dma.outstanding": 8},
        {"dma.outstanding": 1, "dma.burst_beats": 1, "dma.buffer_beats": 1, "array.n": 16, "accumulator.lines": 64},
        {"dma.outstanding": 16, "dma.burst_beats": 4, "dma.buffer_beats": 8, "array.n": 8},
    )[shape]
    config = small(bus_bits, **settings)
    behaviour = (
        AxiBehaviour(latency=(1, 1)),
        AxiBehaviour(latency=(1, 30), ready=0.4, valid=0.6),
        AxiBehaviour(latency=(5, 50), ready=0.8, valid=0.9),
    )[shape]
    unit = bench(config, rng, behaviour, grant=(1.0, 0.7, 0.5)[shape], offer=(1.0, 0.3, 1.0)[shape])
    transfers = in_buffer(
        random_transfers(
            config, rng, [Opcode.LOAD, Opcode.LOAD, Opcode.FILL], 15, BUFFER[1], longest=(700, 60, 300)[shape]
        )
    )
    expected = bytearray(unit.scratchpad)
    apply(transfers, unit.memory.data, expected)
    unit.run(transfers, deadline=60000)
    assert unit.scratchpad == expected
    assert unit.commits() == [commit for transfer in transfers for commit in passed(transfer)]
    assert [index for _, index in unit.retired()] == [transfer.index for transfer in transfers]
    assert not unit.faults()
    moved = sum(t.run_bytes * t.count[0] * t.count[1] * t.count[2] for t in transfers if t.opcode == Opcode.LOAD)
    assert sum(cycle.bytes_moved for cycle in unit.cycles) == moved


def test_every_alignment_and_length() -> None:
    config = small(64, **{"dma.burst_beats": 4})
    rng = random.Random(SEED)
    transfers = []
    for lane in range(8):
        for size in (*range(1, 18), 32, 33, 40):
            place = rng.randrange(64)
            transfers.append(
                Transfer(
                    opcode=Opcode.LOAD, index=len(transfers), run_bytes=size, dram_offset=4096 - 24 + lane, base=1,
                    ring_base=len(transfers) * 64 % 16384, ring_bytes=64, start=place,
                )
            )  # fmt: skip
    unit = bench(config, rng, AxiBehaviour(latency=(1, 3)))
    expected = bytearray(unit.scratchpad)
    apply(transfers, unit.memory.data, expected)
    unit.run(transfers)
    assert unit.scratchpad == expected


def predict(config: NpuConfig, transfers: Sequence[Transfer], latency: int) -> dict[str, list[int]]:
    """Cycles on a memory of fixed latency and a scratchpad that always grants; docs/timing/dma_load.md line by line."""
    accepted: list[int] = []
    requests: list[int] = []
    writes: list[int] = []
    retired: list[int] = []
    issued: list[int] = []  # o of each piece
    ended: list[int] = []  # f of each piece's last byte
    reserved: list[tuple[int, int]] = []  # (cycle, beats)
    left: list[int] = []  # f with which each beat leaves the buffer
    run_left = cut = arrived = loaded = fired = -1
    for c, transfer in enumerate(transfers):
        a = max(run_left + 1, accepted[-1] + 1 if accepted else 0, retired[c - 4] + 1 if c >= 4 else 0)
        accepted.append(a)
        begins_run = True
        for piece in pieces(config, transfer, [(0, 0), BUFFER]):
            if begins_run:
                run_left = max(a + 1, run_left + 1, cut)
            s = max(run_left + 1, cut + 1, issued[-1] if issued else 0)
            cut = s
            begins_run = piece.ends_run
            fill = transfer.opcode == Opcode.FILL
            o = s + 1
            while sum(cycle >= o for cycle in ended) + (len(issued) - len(ended)) >= config.dma.outstanding or (
                not fill
                and sum(beats for _, beats in reserved) - sum(cycle < o for cycle in left) + piece.beats
                > config.dma.buffer_beats
            ):
                o += 1
            issued.append(o)
            # The data side.
            loaded = max(o + 1, ended[-1] if ended else 0)
            f = max(loaded + 1, fired + 1)
            place, bytes_left, lane = piece.place, piece.bytes, piece.lane
            if not fill:
                requests.append(o)
                reserved.append((o, piece.beats))
            beat_in = False
            while bytes_left:
                if not fill and not beat_in:
                    arrived = max(arrived + 1, o + latency)
                    f = max(f, arrived + 2)
                    beat_in = True
                space = config.word_bytes if fill else config.bus_bytes - lane
                step = min(bytes_left, space, transfer.ring_bytes - place)
                fired = f
                writes.append(f + 1)
                place = (place + step) % transfer.ring_bytes
                bytes_left -= step
                if not fill:
                    lane += step
                    if lane == config.bus_bytes or not bytes_left:
                        lane, beat_in = 0, False
                        left.append(f)
                f += 1
            ended.append(fired)
        first = max(writes[-1] + 1, retired[-1] + 1 if retired else 0)
        retired.append(first + max(1, len(passed(transfer))) - 1)
    return {"accepted": accepted, "requests": requests, "writes": writes, "retired": retired}


@pytest.mark.parametrize(
    ("bus_bits", "latency", "settings"),
    [
        (32, 1, {}),
        (32, 20, {}),
        (256, 40, {"dma.outstanding": 16, "dma.buffer_beats": 32}),
        (64, 7, {"dma.outstanding": 2, "dma.burst_beats": 4, "dma.buffer_beats": 4}),
        (
            64,
            3,
            {"dma.outstanding": 1, "dma.burst_beats": 1, "dma.buffer_beats": 1, "array.n": 16, "accumulator.lines": 64},
        ),
    ],
)
def test_timing(bus_bits: int, latency: int, settings: dict[str, object]) -> None:
    print(f"seed {SEED}")
    config = small(bus_bits, **settings)
    rng = random.Random(f"{SEED} {bus_bits} {latency}")
    unit = bench(config, rng, AxiBehaviour(latency=(latency, latency)))
    transfers = in_buffer(
        random_transfers(config, rng, [Opcode.LOAD, Opcode.LOAD, Opcode.FILL], 20, BUFFER[1], longest=400)
    )
    expected = predict(config, transfers, latency)
    unit.run(transfers, deadline=100000)
    assert unit.accepted() == expected["accepted"]
    assert [burst.cycle for burst in unit.memory.reads] == expected["requests"]
    assert unit.granted() == expected["writes"]
    assert [cycle for cycle, _ in unit.retired()] == expected["retired"]


def test_first_byte() -> None:
    """The figures that the timing page gives in words."""
    config = small()
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(10, 10)))
    unit.run(
        [Transfer(opcode=Opcode.LOAD, index=7, run_bytes=4, base=1, dram_offset=1, operands=((3, 4, 1), (2, 0, 9)))]
    )
    assert unit.accepted() == [0]
    assert [burst.cycle for burst in unit.memory.reads] == [3]
    assert unit.memory.beats_read == [13]
    assert unit.granted() == [16]
    assert unit.cycles[17].commit == (3, 4, 1)
    assert unit.cycles[18].commit == (2, 0, 9)
    assert unit.retired() == [(18, 7)]
    assert [t for t, cycle in enumerate(unit.cycles) if not cycle.idle] == list(range(1, 19))


@pytest.mark.parametrize(("bus_bits", "run_bytes"), [(32, 64), (256, 64), (256, 32), (256, 4096)])
def test_utilisation(bus_bits: int, run_bytes: int) -> None:
    """At least 95 % of the bus with enough bursts outstanding; runs of one command and across commands."""
    config = small(bus_bits, **{"dma.outstanding": 32, "dma.buffer_beats": 64})
    commands = 4
    runs = max(1, 8192 // run_bytes)
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(20, 20)), buffer=(0x8000, 0x8000))
    transfers = [
        Transfer(
            opcode=Opcode.LOAD, index=k, run_bytes=run_bytes, base=1, count=(runs, 1, 1), dram_stride=(run_bytes, 0, 0),
            scratchpad_stride=(run_bytes, 0, 0), ring_bytes=8192, operands=((1, 4, 1), (2, 0, 1)),
        )
        for k in range(commands)
    ]  # fmt: skip
    unit.run(transfers)
    beats = unit.memory.beats_read
    assert len(beats) == commands * runs * run_bytes // config.bus_bytes
    utilisation = len(beats) / (beats[-1] - beats[0] + 1)
    print(f"{bus_bits} bits, runs of {run_bytes}: {utilisation:.1%}")
    assert utilisation >= 0.95


def test_fault_outside() -> None:
    """What lies before the fault is done, commands before it commit, nothing after it is read."""
    config = small()
    rng = random.Random(SEED)
    good = Transfer(opcode=Opcode.LOAD, index=5, run_bytes=40, base=1, ring_base=0, operands=((1, 4, 1), (2, 4, 3)))
    bad = Transfer(
        opcode=Opcode.LOAD, index=6, run_bytes=16, base=1, dram_offset=BUFFER[1] - 32, count=(4, 1, 1),
        dram_stride=(16, 0, 0), scratchpad_stride=(16, 0, 0), ring_base=1024, operands=((1, 4, 1),),
    )  # fmt: skip
    later = [Transfer(opcode=Opcode.LOAD, index=7 + k, run_bytes=4, base=1, ring_base=2048) for k in range(8)]
    unit = bench(config, rng, AxiBehaviour(latency=(9, 9)))
    expected = bytearray(unit.scratchpad)
    apply([good], unit.memory.data, expected)
    for k in range(32):
        expected[1024 + k] = unit.memory.data[BUFFER[0] + BUFFER[1] - 32 + k]
    again = Transfer(opcode=Opcode.LOAD, index=90, run_bytes=99, base=1, ring_base=4096, operands=((9, 4, 1),))
    apply([again], unit.memory.data, expected)
    unit.run([good, bad, *later], more=[again])
    assert unit.faults() == [(Fault.ADDRESS, 6)]
    assert unit.commits() == [(1, 4, 1), (2, 4, 3), (9, 4, 1)]
    assert [index for _, index in unit.retired()] == [5, 90]
    assert unit.scratchpad == expected
    end = BUFFER[0] + BUFFER[1]
    assert all(burst.address + 4 * burst.beats <= end + 3 for burst in unit.memory.reads)


@pytest.mark.parametrize("grant", [1.0, 0.3])
@pytest.mark.parametrize("opcode", [Opcode.LOAD, Opcode.FILL])
def test_fault_waits_for_older_commits(opcode: Opcode, grant: float) -> None:
    config = small()
    operands = tuple((ring, 4, ring) for ring in range(1, 6))
    good = [Transfer(opcode=opcode, index=k, run_bytes=4, base=1, operands=operands) for k in range(3)]
    bad = Transfer(opcode=Opcode.LOAD, index=3, run_bytes=4, base=1, dram_offset=BUFFER[1], operands=operands)
    unit = bench(config, random.Random(SEED), AxiBehaviour(latency=(2, 2)), grant=grant)
    unit.run([*good, bad, bad], more=good)
    assert unit.faults() == [(Fault.ADDRESS, 3)]
    assert unit.commits() == list(operands) * 6
    assert [index for _, index in unit.retired()] == [0, 1, 2] * 2


def test_error_stops_requests() -> None:
    """No request from the cycle in which the bad beat is at the head of the buffer, two after it arrived."""
    config = small(**{"dma.outstanding": 64, "dma.buffer_beats": 1024})
    bad = BUFFER[0] + 128
    behaviour = AxiBehaviour(latency=(9, 9), read_error=lambda address: bad <= address < bad + 4)
    unit = bench(config, random.Random(SEED), behaviour)
    unit.run([Transfer(opcode=Opcode.LOAD, index=3, run_bytes=8192, base=1, ring_bytes=8192)])
    assert unit.faults() == [(Fault.BUS, 3)]
    (arrival,) = unit.memory.read_errors
    requests = [burst.cycle for burst in unit.memory.reads]
    assert requests == list(range(3, arrival + 2))


def test_request_refused_at_a_fault_is_still_made() -> None:
    """Its beats are swallowed, the unit is not idle before, and what follows is not disturbed."""
    config = small(**{"dma.burst_beats": 4})
    behaviour = AxiBehaviour(
        latency=(9, 9), stalled=lambda cycle: 4 <= cycle < 60, read_error=lambda address: address < BUFFER[0] + 8
    )
    unit = bench(config, random.Random(SEED), behaviour)
    bad = Transfer(opcode=Opcode.LOAD, index=3, run_bytes=64, base=1)
    good = Transfer(opcode=Opcode.LOAD, index=4, run_bytes=64, base=1, dram_offset=100, ring_base=1024)
    expected = bytearray(unit.scratchpad)
    apply([good], unit.memory.data, expected)
    unit.run([bad], more=[good])
    assert unit.faults() == [(Fault.BUS, 3)]
    assert [burst.cycle for burst in unit.memory.reads[:2]] == [3, 60]
    assert not any(cycle.idle for cycle in unit.cycles[1:70])
    assert unit.scratchpad == expected


@pytest.mark.parametrize("round", range(10))
def test_bus_errors(round: int) -> None:
    """A bad range anywhere: the commands before it commit, it is reported, the unit comes to rest and works again."""
    print(f"seed {SEED}")
    config = small([32, 256][round % 2])
    rng = random.Random(f"{SEED} {round}")
    bad = BUFFER[0] + rng.randrange(BUFFER[1]) & ~63
    behaviour = AxiBehaviour(
        latency=(1, 40), ready=(0.7, 0.04)[round > 5], valid=0.8, read_error=lambda address: bad <= address < bad + 64
    )
    unit = bench(config, rng, behaviour, grant=0.7)
    transfers = in_buffer(random_transfers(config, rng, [Opcode.LOAD, Opcode.FILL], 20, BUFFER[1]))
    transfers.append(
        Transfer(opcode=Opcode.LOAD, index=1, run_bytes=500, base=1, dram_offset=max(0, bad - BUFFER[0] - 99))
    )

    def hit(transfer: Transfer) -> bool:
        bus = config.bus_bytes
        return transfer.opcode == Opcode.LOAD and any(
            bad <= address < bad + 64
            for piece in pieces(config, transfer, [(0, 0), BUFFER])
            for address in range(piece.address, piece.address + piece.beats * bus, bus)
        )

    first = next(k for k, transfer in enumerate(transfers) if hit(transfer))
    again = Transfer(opcode=Opcode.FILL, index=90, run_bytes=99, fill=1, operands=((9, 4, 1),))
    unit.run(transfers, more=[again], deadline=60000)
    assert unit.faults() == [(Fault.BUS, transfers[first].index)]
    done = [*transfers[:first], again]
    assert [index for _, index in unit.retired()] == [transfer.index for transfer in done]
    assert unit.commits() == [commit for transfer in done for commit in passed(transfer)]


def test_causes() -> None:
    """One flag a cycle, except that busy or a conflict may hide a wait; none when idle."""
    config = small()
    rng = random.Random(SEED)
    unit = bench(config, rng, AxiBehaviour(latency=(8, 8), ready=0.6), grant=0.6)
    unit.run(in_buffer(random_transfers(config, rng, [Opcode.LOAD, Opcode.FILL], 10, BUFFER[1])))
    bit = {name: 1 << field.offset for name, field in CAUSE_FLAGS}
    for cycle in unit.cycles:
        assert bool(cycle.flags) == (not cycle.idle)
        assert bool(cycle.flags & bit["busy"]) == cycle.granted
        assert not cycle.bytes_moved or cycle.granted
    every = {name for name in bit for cycle in unit.cycles if cycle.flags & bit[name]}
    assert every == {"busy", "bank_conflict", "memory", "pipeline"}
