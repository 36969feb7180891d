"""Both engines on a small initiator: same bytes, same cycles, same retirements; and the build cache."""

import pathlib
import threading

import numpy as np
import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

import sim.verilator
from hw.interfaces import Axi4LiteSignature, Axi4Signature
from hw.spec.config import NpuConfig, load_config
from sim.engines import EngineError, open_device
from sim.engines.amaranth_engine import AmaranthDevice
from sim.engines.rtl_engine import RtlDevice
from sim.system import RETIRE_FIELDS
from sw.device import SimulatedDevice

GO, SOURCE, TARGET, COUNT, DONE, BUSY_WAIT = range(0, 24, 4)
BEATS = 8


class Copier(wiring.Component):
    """Copies COUNT bursts from SOURCE to TARGET after a write of GO; DONE holds the interrupt until it is written."""

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "axi": Out(Axi4Signature(config)),
                "registers": In(Axi4LiteSignature(12)),
                "interrupt": Out(1),
                "retire_1": Out(data.StructLayout(RETIRE_FIELDS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, bus = self.axi, self.registers
        values = [Signal(32, name=f"register_{index}") for index in range(6)]
        go = Signal()

        m.d.comb += [bus.awready.eq(bus.awvalid & bus.wvalid & ~bus.bvalid), bus.wready.eq(bus.awready)]
        with m.If(bus.awready):
            m.d.sync += bus.bvalid.eq(1)
            m.d.sync += bus.bresp.eq(Mux(bus.awaddr >= 4 * len(values), 2, 0))
            with m.Switch(bus.awaddr):
                for index, value in enumerate(values):
                    with m.Case(4 * index):
                        m.d.sync += value.eq(bus.wdata)
            with m.If(bus.awaddr == GO):
                m.d.comb += go.eq(1)
            with m.If(bus.awaddr == DONE):
                m.d.sync += self.interrupt.eq(0)
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        m.d.comb += bus.arready.eq(~bus.rvalid)
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += bus.rvalid.eq(1)
            with m.Switch(bus.araddr):
                for index, value in enumerate(values):
                    with m.Case(4 * index):
                        m.d.sync += bus.rdata.eq(value)
        with m.Elif(bus.rready):
            m.d.sync += bus.rvalid.eq(0)

        size = BEATS * self._config.bus_bytes
        burst = Signal(16)
        beat = Signal(range(BEATS))
        failed = Signal()
        store = data.ArrayLayout(self._config.dma.bus_bits, BEATS)
        held = Signal(store)
        m.d.comb += [
            axi.araddr.eq(values[SOURCE // 4] + burst * size),
            axi.awaddr.eq(values[TARGET // 4] + burst * size),
            axi.arlen.eq(BEATS - 1),
            axi.awlen.eq(BEATS - 1),
            axi.arid.eq(1),
            axi.awid.eq(2),
            axi.wstrb.eq((1 << self._config.bus_bytes) - 1),
            axi.wdata.eq(held[beat]),
            axi.wlast.eq(beat == BEATS - 1),
        ]
        with m.FSM():
            with m.State("IDLE"), m.If(go):
                m.d.sync += burst.eq(0)
                m.next = "READ"
            with m.State("READ"):
                m.d.comb += axi.arvalid.eq(1)
                with m.If(axi.arready):
                    m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += axi.rready.eq(1)
                with m.If(axi.rvalid):
                    m.d.sync += [held[beat].eq(axi.rdata), beat.eq(beat + 1), failed.eq(failed | axi.rresp.any())]
                    with m.If(axi.rlast):
                        m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += axi.awvalid.eq(1)
                with m.If(axi.awready):
                    m.next = "BEATS"
            with m.State("BEATS"):
                m.d.comb += axi.wvalid.eq(1)
                with m.If(axi.wready):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(axi.wlast):
                        m.next = "RESPONSE"
            with m.State("RESPONSE"):
                m.d.comb += axi.bready.eq(1)
                with m.If(axi.bvalid):
                    m.d.comb += [self.retire_1.valid.eq(1), self.retire_1.index.eq(burst)]
                    m.d.comb += self.retire_1.job_index.eq(values[BUSY_WAIT // 4])
                    m.d.sync += [burst.eq(burst + 1), failed.eq(failed | axi.bresp.any())]
                    m.next = "READ"
                    with m.If(burst + 1 == values[COUNT // 4]):
                        m.d.sync += self.interrupt.eq(1)
                        m.next = "IDLE"
        return m


class Mute(wiring.Component):
    """Nothing but a bus that asks for nothing."""

    def __init__(self, config: NpuConfig):
        super().__init__({"axi": Out(Axi4Signature(config))})

    def elaborate(self, platform: object) -> Module:
        return Module()


SETTINGS = [{}, {"dram.model": "banked", "dram.bytes": 1 << 21, "dma.bus_bits": 128}]
DEVICES = {"rtl": RtlDevice, "amaranth": AmaranthDevice}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def open_copier(engine: str, config: NpuConfig) -> SimulatedDevice:
    if engine == "rtl":
        return RtlDevice(config, Copier)
    return AmaranthDevice(config, Copier(config))


def run_copy(device: SimulatedDevice, width: int) -> list[object]:
    """A story of register and memory accesses; everything seen, with the cycle in which it was."""
    seen: list[object] = []
    count = 5
    length = count * BEATS * width
    content = np.random.default_rng(3).integers(0, 256, length, dtype=np.uint8)
    device.write_memory(0x1000, content)
    device.step(7)
    for offset, value in ((SOURCE, 0x1000), (TARGET, 0x8000), (COUNT, count), (BUSY_WAIT, 77)):
        device.write_register(offset, value)
        seen.append((device.cycle, device.read_register(offset), device.cycle))
    assert not device.wait_for_interrupt(11)
    seen.append(device.cycle)
    device.write_register(GO, 1)
    assert not device.wait_for_interrupt(3)
    assert device.wait_for_interrupt(100000)
    seen.append(device.cycle)
    assert device.wait_for_interrupt(100)
    seen.append(device.cycle)
    assert device.read_memory(0x8000, length) == content.tobytes()
    seen.append(device.retirements())
    assert not device.retirements()
    device.write_register(DONE, 1)
    assert not device.wait_for_interrupt(0)
    device.write_register(GO, 1)
    assert device.wait_for_interrupt(100000)
    seen += [device.cycle, device.retirements(), device.counters()]
    return seen


@pytest.mark.parametrize("settings", SETTINGS, ids=("ideal", "banked"))
def test_engines_agree(settings: dict[str, object]) -> None:
    config = load_config("tiny", settings)
    seen = []
    for engine in DEVICES:
        with open_copier(engine, config) as device:
            assert isinstance(device, SimulatedDevice)
            assert device.memory_bytes == config.dram.bytes
            seen.append(run_copy(device, config.bus_bytes))
    assert seen[0] == seen[1]
    assert [retirement.index for retirement in seen[0][-2]] == list(range(5))


@pytest.mark.parametrize("engine", DEVICES)
def test_refusals(engine: str) -> None:
    with open_copier(engine, load_config("tiny")) as device:
        with pytest.raises(EngineError, match="write of register 0x100 was answered by error 2"):
            device.write_register(0x100, 1)
        with pytest.raises(ValueError, match="multiple of 4"):
            device.read_register(2)
        with pytest.raises(ValueError, match="32 bits"):
            device.write_register(0, 1 << 32)
        with pytest.raises(ValueError, match="is not inside"):
            device.write_memory(device.memory_bytes - 1, b"ab")
        with pytest.raises(ValueError, match="is not inside"):
            device.read_memory(-1, 4)


@pytest.mark.parametrize("engine", DEVICES)
def test_progress(engine: str) -> None:
    config = load_config("tiny")
    cycles: list[int] = []
    with open_copier(engine, config) as device:
        device.progress = cycles.append
        assert not device.wait_for_interrupt(120000 if engine == "rtl" else 2500)
    assert cycles == ([50000, 100000] if engine == "rtl" else [1000, 2000])


@pytest.mark.parametrize("engine", DEVICES)
def test_broken_off(engine: str) -> None:
    """Ctrl-C in a long run: the compiled engine may go on, the other says that it cannot."""

    def interrupt(cycle: int) -> None:
        raise KeyboardInterrupt

    with open_copier(engine, load_config("tiny")) as device:
        device.progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            device.step(120000)
        device.progress = None
        if engine == "rtl":
            device.step(10)
            assert device.cycle == 50010
        else:
            with pytest.raises(EngineError, match="broken off"):
                device.step(10)


def test_bare_initiator() -> None:
    config = load_config("tiny")
    for device in (RtlDevice(config, Mute), AmaranthDevice(config, Mute(config))):
        with device:
            assert not device.wait_for_interrupt(10)
            assert device.cycle == 10
            assert device.activity() is None
            with pytest.raises(EngineError, match="no answer"):
                device.read_register(0)


def test_unknown_engine() -> None:
    with pytest.raises(EngineError, match="unknown engine 'verilog'; known: rtl, amaranth"):
        open_device("verilog", load_config("tiny"))


def test_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    sim.verilator.find_tools.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match=r"needs a C\+\+ compiler"):
        RtlDevice(load_config("tiny"), Mute)
    monkeypatch.undo()
    sim.verilator.find_tools.cache_clear()


def test_second_build_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("tiny")
    said: list[str] = []
    first = sim.verilator.build_library(config, Mute)
    again = sim.verilator.build_library(config, Mute, report=said.append)
    assert first == again
    assert not said
    for pointer in (sim.verilator.cache_directory() / "sources").iterdir():
        pointer.unlink()  # as if a comment in the sources had changed
    assert sim.verilator.build_library(config, Mute, report=said.append) == first
    assert len(said) == 1


def test_build_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = sim.verilator.cache_directory()
    sim.verilator.build_library(load_config("tiny"), Mute)
    before = sorted(cache.rglob("*"))

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.verilator, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sim.verilator.build_library(load_config("tiny", {"dma.bus_bits": 64}), Mute)
    assert sorted(cache.rglob("*")) == before


def test_builds_at_once() -> None:
    config = load_config("tiny", {"dma.bus_bits": 64})
    found: list[pathlib.Path] = []
    threads = [threading.Thread(target=lambda: found.append(sim.verilator.build_library(config, Mute))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert not list(sim.verilator.cache_directory().glob("building-*"))
