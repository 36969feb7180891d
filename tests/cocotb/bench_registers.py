"""cocotb side: the register port seen by a bus model that nobody here wrote, with pauses on all five channels."""

import itertools
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

from hw.registers import CONFIG_HASH_PORT, PORTS
from hw.spec.register_map import REGISTERS, Access

PATIENCE = float(os.environ["RONDO_PATIENCE"])
MAPPED = {register.offset for register in REGISTERS.values()}
SETTINGS = [r for r in REGISTERS.values() if all(f.access is Access.READ_WRITE for f in r.fields.values())]


class Bench:
    """Clock, reset, bus master; pauses come from the seed."""

    def __init__(self, dut):
        self.dut = dut
        self.rng = random.Random(int(os.environ["RONDO_SEED"]))
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        self.bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "bus_"), dut.clk, dut.rst)
        write, read = self.bus.write_if, self.bus.read_if
        for channel in (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel):
            channel.set_pause_generator(self._pauses(random.Random(self.rng.random())))
        for port in PORTS.values():
            if port.input and port.name != CONFIG_HASH_PORT:
                getattr(dut, port.name).value = 0

    @staticmethod
    def _pauses(rng: random.Random):
        return (rng.random() > PATIENCE for _ in itertools.count())

    async def reset(self) -> None:
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 2)

    async def read(self, name: str) -> int:
        response = await self.bus.read(REGISTERS[name].offset, 4)
        assert response.resp is AxiResp.OKAY, name
        return int.from_bytes(response.data, "little")

    async def write(self, name: str, value: int) -> AxiResp:
        return (await self.bus.write(REGISTERS[name].offset, value.to_bytes(4, "little"))).resp


async def started(dut) -> Bench:
    bench = Bench(dut)
    await bench.reset()
    return bench


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reset_values(dut):
    bench = await started(dut)
    for register in REGISTERS.values():
        expected = int(os.environ["RONDO_HASH"]) if register.name == "CONFIG_HASH" else register.reset
        assert await bench.read(register.name) == expected, register.name
    assert (await bench.read("IDENTITY")).to_bytes(4, "little") == b"RNDO"


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def random_bytes(dut):
    """Writes of any bytes of any settings, several under way at once, then all read back."""
    bench = await started(dut)
    rng = bench.rng
    model = {register.offset: register.reset for register in SETTINGS}
    for _ in range(20):
        writes = []
        for register in rng.sample(SETTINGS, 6):
            start = rng.randrange(4)
            data = rng.randbytes(rng.randrange(1, 5 - start))
            writes.append(cocotb.start_soon(bench.bus.write(register.offset + start, data)))
            old = model[register.offset].to_bytes(4, "little")
            new = int.from_bytes(old[:start] + data + old[start + len(data) :], "little")
            mask = sum(field.mask for field in register.fields.values())
            model[register.offset] = new & mask
        for write in writes:
            assert (await with_timeout(write, 100, "us")).resp is AxiResp.OKAY
        chosen = rng.sample(SETTINGS, 8)
        reads = [cocotb.start_soon(bench.bus.read(register.offset, 4)) for register in chosen]
        for register, read in zip(chosen, reads, strict=True):
            response = await with_timeout(read, 100, "us")
            assert int.from_bytes(response.data, "little") == model[register.offset], register.name
    assert int(dut.program_store_address.value) == (
        model[REGISTERS["PROGRAM_STORE_ADDRESS_HIGH"].offset] << 32
        | model[REGISTERS["PROGRAM_STORE_ADDRESS_LOW"].offset]
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def errors(dut):
    bench = await started(dut)
    for offset in [0x00C, 0xFFC, *bench.rng.sample(sorted(set(range(0, 4096, 4)) - MAPPED), 10)]:
        read = await bench.bus.read(offset, 4)
        assert read.resp is AxiResp.SLVERR
        assert read.data == bytes(4)
        assert (await bench.bus.write(offset, bytes(4))).resp is AxiResp.SLVERR
    for name in ("IDENTITY", "STATUS", "JOB_HEAD", "COUNTER_CYCLES_LOW"):
        assert await bench.write(name, 0xFFFF_FFFF) is AxiResp.SLVERR
    assert (await bench.read("IDENTITY")).to_bytes(4, "little") == b"RNDO"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def hardware_side(dut):
    """Values from the hardware, pulses to it, and the interrupt."""
    bench = await started(dut)
    pulses = 0

    async def count() -> None:
        nonlocal pulses
        while True:
            await RisingEdge(dut.clk)
            pulses += int(dut.counter_control_snapshot.value)

    cocotb.start_soon(count())
    dut.counter_load_busy.value = 0x1234_8765_4321
    assert await bench.read("COUNTER_LOAD_BUSY_LOW") == 0x8765_4321
    assert await bench.read("COUNTER_LOAD_BUSY_HIGH") == 0x1234
    for _ in range(5):
        assert await bench.write("COUNTER_CONTROL", 1) is AxiResp.OKAY
    await ClockCycles(dut.clk, 2)
    assert pulses == 5

    status, enable = REGISTERS["INTERRUPT_STATUS"].fields, REGISTERS["INTERRUPT_ENABLE"].fields
    error = status["COMPLETION_ERROR"].mask
    await bench.write("INTERRUPT_ENABLE", enable["COMPLETION_ERROR"].mask)
    dut.interrupt_status_completion.value = 1  # not enabled
    await ClockCycles(dut.clk, 3)
    assert not int(dut.interrupt.value)
    dut.interrupt_status_completion_error.value = 1
    await ClockCycles(dut.clk, 1)
    dut.interrupt_status_completion_error.value = 0
    await ClockCycles(dut.clk, 3)
    assert int(dut.interrupt.value)
    assert await bench.read("INTERRUPT_STATUS") == error | status["COMPLETION"].mask
    await bench.write("INTERRUPT_STATUS", error)
    await ClockCycles(dut.clk, 3)
    assert not int(dut.interrupt.value)
    await bench.write("INTERRUPT_ENABLE", enable["COMPLETION"].mask)
    await ClockCycles(dut.clk, 3)
    assert int(dut.interrupt.value)
