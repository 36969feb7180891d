"""The DRAM gateware against its model, to the cycle; AXI order and errors; the rates it reaches."""

import collections
import dataclasses
import itertools
import os
import random
import typing

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module
from amaranth.sim import Simulator

from hw.axi_checker import AxiChecker, AxiRule
from hw.spec.config import NpuConfig, load_config
from sim.dram import COUNTERS, Dram
from sim.dram_timing import BURSTS, AccessTiming, DramModel, DramParameters, Inputs

SEED = int(os.environ.get("RONDO_SEED", "1"))
MASK = (1 << 64) - 1

CONFIGS: dict[str, dict[str, object]] = {
    "ideal": {"dma.bus_bits": 32, "dram.model": "ideal", "dram.bytes_per_cycle": 3, "dram.latency_cycles": 20},
    "ideal_fast": {"dma.bus_bits": 64, "dram.model": "ideal", "dram.bytes_per_cycle": 64, "dram.latency_cycles": 1},
    "edge": {"dma.bus_bits": 256, "dram.model": "banked", "clock_mhz": 500.0},
    "slow_clock": {"dma.bus_bits": 32, "dram.model": "banked", "clock_mhz": 60.0},
    "small_queue": {
        "dma.bus_bits": 128, "dram.model": "banked", "clock_mhz": 800.0, "dram.queue": 4, "dram.batch": 5,
        "dram.row_bytes": 512, "dram.banks": 4, "dram.refi_ns": 1000.0, "dram.data_bits": 16,
    },
    "wide_bus": {
        "dma.bus_bits": 512, "dram.model": "banked", "clock_mhz": 300.0, "dram.access_bytes": 16, "dram.row_bytes": 32,
        "dram.batch": 1, "dram.queue": 2,
    },
}  # fmt: skip


def config_of(name: str) -> NpuConfig:
    return load_config("tiny", {"dram.bytes": 1 << 20, **CONFIGS[name]})


@dataclasses.dataclass
class Traffic:
    """How an initiator behaves: chances in a cycle that it begins a request, sends a beat, takes one."""

    read: float
    write: float
    data: float
    take: float
    span: int
    """Bytes of the addresses used; small ones hit rows."""


TRAFFIC = {
    "busy": Traffic(1.0, 1.0, 1.0, 1.0, 1 << 20),
    "mixed": Traffic(0.2, 0.2, 0.7, 0.7, 1 << 16),
    "reads": Traffic(0.9, 0.02, 0.5, 1.0, 1 << 13),
    "held": Traffic(0.6, 0.6, 0.9, 0.15, 1 << 18),
    "rare": Traffic(0.01, 0.01, 0.5, 0.9, 1 << 21),
}


def random_burst(rng: random.Random, config: NpuConfig, traffic: Traffic) -> tuple[int, int, int]:
    beats = rng.choice((1, 2, 4, rng.randint(1, 16), 16))
    width = config.bus_bytes
    address = rng.randrange(traffic.span // width) * width
    beats = min(beats, (4096 - address % 4096) // width)
    return rng.randrange(6), address, beats


def pattern(word: int, width: int) -> int:
    """Data that tells which word they are."""
    value = (word + 1) * 0x9E3779B97F4A7C15 & MASK
    return int.from_bytes((value.to_bytes(8, "little") * 8)[:width], "little")


def strobe_of(word: int, width: int) -> int:
    return hash((word, width)) & ((1 << width) - 1)


def words_of(burst: tuple[int, int, int], config: NpuConfig) -> list[int]:
    _, address, beats = burst
    return [address // config.bus_bytes + beat for beat in range(beats)]


@pytest.mark.parametrize("traffic_name", TRAFFIC)
@pytest.mark.parametrize("name", CONFIGS)
def test_gateware_is_the_model(name: str, traffic_name: str) -> None:
    config = config_of(name)
    traffic = TRAFFIC[traffic_name]
    rng = random.Random(f"{SEED} {name} {traffic_name}")
    print(f"RONDO_SEED={SEED}")
    cycles = 4000 if traffic_name == "rare" else 1200
    dut = Dram(config)
    rtlil.convert(dut)
    top = Module()
    top.submodules.dut = dut = Dram(config)
    top.submodules.checker = checker = AxiChecker(config)
    checker.watch(top, dut.axi)
    model = DramModel(config)
    width = config.bus_bytes
    finished = False

    async def serve(ctx: typing.Any) -> None:
        port = dut.memory
        async for _, _, enable, address in ctx.tick().sample(port.read_enable, port.read_address):
            if enable:
                ctx.set(port.read_data, pattern(address, width))

    async def bench(ctx: typing.Any) -> None:
        nonlocal finished
        axi = dut.axi
        for size, burst in ((axi.arsize, axi.arburst), (axi.awsize, axi.awburst)):
            ctx.set(size, width.bit_length() - 1)
            ctx.set(burst, 1)
        read: tuple[int, int, int] | None = None
        write: tuple[int, int, int] | None = None
        to_write: collections.deque[tuple[int, bool, bool]] = collections.deque()
        sending = False
        for cycle in range(cycles):
            if read is None and rng.random() < traffic.read:
                read = random_burst(rng, config, traffic)
            if write is None and rng.random() < traffic.write:
                write = random_burst(rng, config, traffic)
                words = words_of(write, config)
                error = write[1] >= config.dram.bytes
                to_write.extend((word, error, word == words[-1]) for word in words)
            sending = bool(to_write) and (sending or rng.random() < traffic.data)
            inputs = Inputs(
                read=read,
                write=write,
                write_data=sending,
                read_ready=rng.random() < traffic.take,
                response_ready=rng.random() < traffic.take,
            )
            ctx.set(axi.arvalid, read is not None)
            if read:
                ctx.set(axi.arid, read[0])
                ctx.set(axi.araddr, read[1])
                ctx.set(axi.arlen, read[2] - 1)
            ctx.set(axi.awvalid, write is not None)
            if write:
                ctx.set(axi.awid, write[0])
                ctx.set(axi.awaddr, write[1])
                ctx.set(axi.awlen, write[2] - 1)
            ctx.set(axi.wvalid, sending)
            strobe = 0
            if sending:
                ctx.set(axi.wdata, pattern(to_write[0][0], width))
                strobe = strobe_of(to_write[0][0], width)  # stays while the beat is held
                ctx.set(axi.wstrb, strobe)
                ctx.set(axi.wlast, to_write[0][2])
            ctx.set(axi.rready, inputs.read_ready)
            ctx.set(axi.bready, inputs.response_ready)

            outputs = model.outputs()
            at = f"cycle {cycle}"
            assert ctx.get(axi.arready) == outputs.read_ready, at
            assert ctx.get(axi.awready) == outputs.write_ready, at
            assert ctx.get(axi.wready) == outputs.write_data_ready, at
            assert ctx.get(axi.rvalid) == (outputs.beat is not None), at
            if outputs.beat:
                identifier, word, last, error = outputs.beat
                assert (ctx.get(axi.rid), ctx.get(axi.rlast)) == (identifier, last), at
                assert ctx.get(axi.rresp) == (2 if error else 0), at
                assert error or ctx.get(axi.rdata) == pattern(word, width), at
            assert ctx.get(axi.bvalid) == (outputs.response is not None), at
            if outputs.response:
                assert ctx.get(axi.bid) == outputs.response[0], at
                assert ctx.get(axi.bresp) == (2 if outputs.response[1] else 0), at
            writes = sending and outputs.write_data_ready and not to_write[0][1]
            assert ctx.get(dut.memory.write_enable) == writes, at
            if writes:
                assert ctx.get(dut.memory.write_address) == to_write[0][0], at
                assert ctx.get(dut.memory.write_data) == pattern(to_write[0][0], width), at
                assert ctx.get(dut.memory.write_strobe) == strobe, at

            if sending and outputs.write_data_ready:
                to_write.popleft()
                sending = False
            if outputs.read_ready:
                read = None
            if outputs.write_ready:
                write = None
            model.step(inputs)
            await ctx.tick()
        assert {counter: ctx.get(getattr(dut, counter)) for counter in COUNTERS} == counters_of(model)
        assert ctx.get(checker.broken) & ~(1 << AxiRule.TOO_MANY) == 0
        finished = True

    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_process(serve)
    simulator.add_testbench(bench)
    simulator.run()
    assert finished


def counters_of(model: DramModel) -> dict[str, int]:
    timing = model.timing
    return {
        "row_hits": timing.row_hits,
        "row_misses": timing.row_misses,
        "refreshes": timing.refreshes,
        "bytes_read": model.bytes_read,
        "bytes_written": model.bytes_written,
    }


# --- the model as a memory: order, latency, rates -----------------------------------------------------------------


class Initiator:
    """Drives a model with as many requests as may be outstanding; sources give bursts one after the other."""

    def __init__(
        self,
        config: NpuConfig,
        reads: typing.Iterator[tuple[int, int, int]] | None = None,
        writes: typing.Iterator[tuple[int, int, int]] | None = None,
        *,
        outstanding: int = 16,
    ):
        self.model = DramModel(config)
        self.reads, self.writes = reads or iter(()), writes or iter(())
        self.read = next(self.reads, None)
        self.write = next(self.writes, None)
        self.left = [outstanding, outstanding]
        self.to_send = 0
        self.beats = 0
        self.responses = 0
        self.read_log: list[tuple[int, int, bool, bool]] = []
        self.first_beat: int | None = None

    def run(self, cycles: int) -> None:
        for cycle in range(cycles):
            outputs = self.model.outputs()
            inputs = Inputs(
                read=self.read if self.left[0] else None,
                write=self.write if self.left[1] else None,
                write_data=self.to_send > 0,
            )
            if outputs.beat:
                self.beats += 1
                self.read_log.append(outputs.beat)
                self.left[0] += outputs.beat[2]
                if self.first_beat is None:
                    self.first_beat = cycle
            if outputs.response:
                self.responses += 1
                self.left[1] += 1
            self.to_send -= inputs.write_data and outputs.write_data_ready
            if inputs.read and outputs.read_ready:
                self.read = next(self.reads, None)
                self.left[0] -= 1
            if inputs.write and outputs.write_ready:
                self.to_send += inputs.write[2]
                self.write = next(self.writes, None)
                self.left[1] -= 1
            self.model.step(inputs)


def stream(config: NpuConfig, start: int, beats: int = 16) -> typing.Iterator[tuple[int, int, int]]:
    address = start
    while True:
        yield 0, address % config.dram.bytes, beats
        address += beats * config.bus_bytes


def rates(config: NpuConfig) -> tuple[float, float]:
    """Beats a cycle that the DRAM's data wires could carry, and what refresh leaves of time."""
    p = DramParameters.of(config)
    return p.beats * 1024 / p.duration, 1 - (p.rfc + p.rp) / p.refi


def test_long_reads_reach_the_rate() -> None:
    config = load_config("edge")
    raw, left = rates(config)
    reader = Initiator(config, stream(config, 0))
    reader.run(40000)
    reached = reader.beats / 40000
    print(f"sequential reads: {reached:.4f} beats a cycle, {reached / (min(1, raw * left)):.4f} of what is possible")
    assert reached > 0.95 * min(1, raw * left)


@pytest.mark.parametrize("apart", [1 << 16, (1 << 16) + 3 * 4096, (1 << 20) + 512], ids=("same", "other", "odd"))
def test_mix_of_reads_and_writes(apart: int) -> None:
    config = load_config("edge")
    raw, left = rates(config)
    both = Initiator(config, stream(config, 0), stream(config, apart))
    both.run(40000)
    beats = both.beats + 16 * both.responses
    reached = beats / 40000
    print(f"reads and writes: {reached:.4f} beats a cycle, {reached / (raw * left):.4f} of what is possible")
    assert reached > 0.8 * raw * left


def test_ideal_latency_and_bandwidth() -> None:
    for latency in (3, 20, 100):
        config = load_config("tiny", {"dram.latency_cycles": latency})
        once = Initiator(config, iter([(0, 0, 4)]))
        once.run(latency + 10)
        assert once.first_beat == latency
        assert once.beats == 4
    config = load_config("tiny")
    both = Initiator(config, stream(config, 0), stream(config, 4096))
    both.run(5000)
    assert 4950 < both.beats + 16 * both.responses <= 5000


def test_idle_read_latency() -> None:
    """Closed row: activate, read, 64 bytes, controller, and two cycles of queues."""
    config = load_config("edge")
    p = DramParameters.of(config)
    once = Initiator(config, iter([(0, 0, 2)]))
    once.run(100)
    assert once.first_beat == 1 + p.rcd + p.rl + 2 + p.latency


def test_places() -> None:
    """Every 512 bytes have their own place in a bank, and strides of a power of two do not stay in one."""
    config = load_config("edge")
    timing = AccessTiming(DramParameters.of(config))
    blocks = collections.Counter(timing.place(address) for address in range(0, 1 << 20, 512))
    assert len(blocks) == (1 << 20) // 4096
    assert set(blocks.values()) == {4096 // 512}
    for shift in range(9, 24):
        places = [timing.place(index << shift) for index in range(64)]
        conflicts = sum(a[0] == b[0] and a[1] != b[1] for a, b in itertools.pairwise(places))
        assert conflicts <= 8, shift


def test_sparse_writes_do_not_turn_the_bus_each_time() -> None:
    config = load_config("edge")
    reader = Initiator(config, stream(config, 0), stream(config, 1 << 20, 2), outstanding=32)
    while reader.model.now < 20000:
        held, reader.write = reader.write, None if reader.model.now % 40 else reader.write
        reader.run(1)
        reader.write = reader.write or held
    assert reader.responses > 450
    assert reader.beats + 2 * reader.responses > 0.85 * 20000


def test_limits() -> None:
    config = config_of("edge")
    stuck = DramModel(config)
    for _ in range(400):
        stuck.step(Inputs(read=(0, 0, 16), write=(0, 0, 1), write_data=True, read_ready=False, response_ready=False))
    assert not stuck.outputs().read_ready
    assert not stuck.outputs().write_ready
    assert len(stuck.reads) == BURSTS
    assert stuck.write_bursts == BURSTS
