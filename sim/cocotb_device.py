"""The system in a simulator that cocotb drives: registers through cocotbext-axi, memory in this process."""

import itertools
import random
import typing
from collections.abc import Iterator

import cocotb
from cocotb.clock import Clock
from cocotb.task import resume
from cocotb.triggers import ClockCycles, RisingEdge, SimTimeoutError, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from hw.spec.config import NpuConfig
from sim.engines import REGISTER_CYCLES_MAX, check_register, check_response
from sim.memory import MemoryArray
from sim.system import PROBES
from sw.device import Activity, Bytes, Retirement

CLOCK_PERIOD_NS = 10
RESET_CYCLES = 4


class CocotbDevice:
    """``sw.device.Device`` on a ``sim.system.System`` with the NPU; ``dut`` is cocotb's handle of it.

    Made, and reset, in a cocotb test. Calls of ``Device`` block, so what uses it runs in a thread::

        device = CocotbDevice(dut, config)
        await device.reset()
        await cocotb.task.bridge(use)(device)

    Time stands still between calls, except that bus channels keep their pauses. Each call ends after a bounded
    number of cycles, also when the design hangs, so that the thread never outlives the test.

    Parameters
    ----------
    patience
        Probability that a channel of the register port does not pause in a cycle.
    rng
        Source of the pauses.
    """

    def __init__(self, dut: typing.Any, config: NpuConfig, *, patience: float = 1.0, rng: random.Random | None = None):
        self._dut = dut
        self._width = config.bus_bytes
        self._memory = MemoryArray(config.dram.bytes)
        self._cycle = 0
        self._retirements: list[Retirement] = []
        dut.memory_read_data.value = 0
        self._bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "registers"), dut.clk, dut.rst)
        rng = rng or random.Random(0)
        write, read = self._bus.write_if, self._bus.read_if
        for channel in (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel):
            channel.set_pause_generator(_pauses(patience, random.Random(rng.random())))
        cocotb.start_soon(Clock(dut.clk, CLOCK_PERIOD_NS, unit="ns").start())
        cocotb.start_soon(self._serve())

    async def reset(self) -> None:
        """Reset the NPU and the controller of its memory, whatever they do; bytes in memory stay."""
        self._dut.rst.value = 1
        await ClockCycles(self._dut.clk, RESET_CYCLES)
        self._dut.rst.value = 0
        await ClockCycles(self._dut.clk, 1)
        self._retirements.clear()

    async def _serve(self) -> None:
        """In each cycle: what the memory port asks, and which commands retire.

        cocotb runs this at the edge, before registers change; what it writes is seen after they have.
        """
        dut, memory, width = self._dut, self._memory, self._width
        retire = [
            (engine, *(getattr(dut, f"retire_{engine}_{field}") for field in ("valid", "job_index", "index")))
            for engine in range(PROBES)
        ]
        edge = RisingEdge(dut.clk)
        while True:
            await edge
            if int(dut.rst.value):
                self._cycle = 0
                continue
            if int(dut.memory_read_enable.value):
                word = memory.read(int(dut.memory_read_address.value) * width, width)
                dut.memory_read_data.value = int.from_bytes(word, "little")
            if int(dut.memory_write_enable.value):
                address, data = int(dut.memory_write_address.value) * width, int(dut.memory_write_data.value)
                memory.write_strobed(address, data, int(dut.memory_write_strobe.value), width)
            for engine, valid, job_index, index in retire:
                if int(valid.value):
                    self._retirements.append(Retirement(self._cycle, engine, int(job_index.value), int(index.value)))
            self._cycle += 1

    # --- Device

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    def read_register(self, offset: int) -> int:
        check_register(offset)
        response, value = resume(self._read)(offset)
        check_response("read", offset, response)
        return value

    async def _read(self, offset: int) -> tuple[int, int]:
        try:
            answer = await with_timeout(self._bus.read(offset, 4), REGISTER_CYCLES_MAX * CLOCK_PERIOD_NS, "ns")
        except SimTimeoutError:
            return -1, 0
        return int(answer.resp), int.from_bytes(answer.data, "little")

    def write_register(self, offset: int, value: int) -> None:
        check_register(offset, value)
        check_response("write", offset, resume(self._write)(offset, value))

    async def _write(self, offset: int, value: int) -> int:
        access = self._bus.write(offset, value.to_bytes(4, "little"))
        try:
            return int((await with_timeout(access, REGISTER_CYCLES_MAX * CLOCK_PERIOD_NS, "ns")).resp)
        except SimTimeoutError:
            return -1

    def read_memory(self, address: int, length: int) -> bytes:
        return self._memory.read(address, length)

    def write_memory(self, address: int, data: Bytes) -> None:
        self._memory.write(address, data)

    def wait_for_interrupt(self, timeout_cycles: int) -> bool:
        return resume(self._wait)(timeout_cycles)

    async def _wait(self, timeout_cycles: int) -> bool:
        interrupt = self._dut.interrupt_request
        if not int(interrupt.value) and timeout_cycles > 0:
            try:
                await with_timeout(RisingEdge(interrupt), timeout_cycles * CLOCK_PERIOD_NS, "ns")
            except SimTimeoutError:
                return False
        return bool(int(interrupt.value))

    def close(self) -> None:
        """Nothing to release: cocotb ends with the test what was started in it."""

    # --- as in SimulatedDevice

    @property
    def cycle(self) -> int:
        return self._cycle

    def retirements(self) -> list[Retirement]:
        result, self._retirements = self._retirements, []
        return result

    def activity(self) -> Activity | None:
        """None: reading the probes in each cycle would take longer than the simulation."""
        return None


def _pauses(patience: float, rng: random.Random) -> Iterator[bool]:
    return (rng.random() >= patience for _ in itertools.count())
