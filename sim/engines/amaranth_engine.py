"""The gateware in Amaranth's simulator."""

import typing

import numpy as np
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.dram import COUNTERS
from sim.engines import REGISTER_CYCLES_MAX, EngineError, check_register, check_response, join_activity
from sim.memory import MemoryArray
from sim.system import ACTIVITY_FIELDS, System
from sw.device import Activity, Bytes, Retirement

CLOCK_PERIOD = 1e-6
PROGRESS_CYCLES = 1000


class AmaranthDevice:
    """``SimulatedDevice`` on Amaranth's simulator; ``initiator`` replaces the NPU.

    The simulation stands still between calls: a testbench runs one request at a time, from one point in a cycle to
    the same point in another.
    """

    progress: typing.Callable[[int], None] | None = None

    def __init__(
        self,
        config: NpuConfig,
        initiator: wiring.Component | None = None,
        *,
        vcd: str | None = None,
    ):
        if initiator is None:
            from hw.npu import Npu

            initiator = Npu(config)
        self._config = config
        self._system = System(config, initiator)
        self._memory = MemoryArray(config.dram.bytes)
        self._cycle = 0
        self._retirements: list[Retirement] = []
        self._activity: list[dict[int, list[int]]] = [{} for _ in Engine]
        """Of each engine: command + 1 (0 for no job) to cycles by cause."""
        self._request: typing.Callable[[typing.Any], typing.Awaitable[None]] | None = None
        self._broken = False
        self._simulator = Simulator(self._system)
        self._simulator.add_clock(CLOCK_PERIOD)
        self._simulator.add_process(self._serve_memory)
        self._simulator.add_testbench(self._host)
        self._vcd = self._simulator.write_vcd(vcd) if vcd else None
        if self._vcd:
            self._vcd.__enter__()

    # --- inside the simulation ---

    async def _serve_memory(self, ctx: typing.Any) -> None:
        port = self._system.memory
        width = self._config.bus_bytes
        memory = self._memory
        ticks = ctx.tick().sample(
            port.read_enable, port.read_address, port.write_enable, port.write_address, port.write_data,
            port.write_strobe,
        )  # fmt: skip
        async for _, _, reads, read_address, writes, write_address, data, strobe in ticks:
            if reads:
                ctx.set(port.read_data, int.from_bytes(memory.read(read_address * width, width), "little"))
            if writes:
                memory.write_strobed(write_address * width, data, strobe, width)

    async def _tick(self, ctx: typing.Any) -> None:
        for engine in self._system.retire_ports:
            if ctx.get(getattr(self._system, f"retire_{engine}_valid")):
                job_index = ctx.get(getattr(self._system, f"retire_{engine}_job_index"))
                index = ctx.get(getattr(self._system, f"retire_{engine}_index"))
                self._retirements.append(Retirement(self._cycle, engine, job_index, index))
        for engine in self._system.activity_ports:
            cause, running, command = (
                ctx.get(getattr(self._system, f"activity_{engine}_{field}")) for field in ACTIVITY_FIELDS
            )
            self._activity[engine].setdefault(command + 1 if running else 0, [0] * len(Cause))[cause] += 1
        await ctx.tick()
        self._cycle += 1
        if self.progress and self._cycle % PROGRESS_CYCLES == 0:
            self.progress(self._cycle)

    async def _host(self, ctx: typing.Any) -> None:
        while True:
            if self._request is not None:
                await self._request(ctx)
                self._request = None
            await ctx.delay(1e-15)

    def _run(self, request: typing.Callable[[typing.Any], typing.Awaitable[None]]) -> None:
        if self._broken:
            raise EngineError("the simulation was broken off; open the device again")
        self._request = request
        self._broken = True  # an exception leaves the simulator in the middle of a step
        while self._request is not None:
            self._simulator.advance()
        self._broken = False

    # --- Device ---

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    def read_register(self, offset: int) -> int:
        check_register(offset)
        result, response = 0, -1

        async def request(ctx: typing.Any) -> None:
            nonlocal result, response
            port = self._system.registers
            ctx.set(port.araddr, offset)
            ctx.set(port.arvalid, 1)
            ctx.set(port.rready, 1)
            for _ in range(REGISTER_CYCLES_MAX):
                taken = ctx.get(port.arvalid) and ctx.get(port.arready)
                if ctx.get(port.rvalid):
                    result, response = ctx.get(port.rdata), ctx.get(port.rresp)
                await self._tick(ctx)
                if taken:
                    ctx.set(port.arvalid, 0)
                if response >= 0:
                    break
            ctx.set(port.arvalid, 0)
            ctx.set(port.rready, 0)

        if self._system.has_registers:
            self._run(request)
        check_response("read", offset, response)
        return result

    def write_register(self, offset: int, value: int) -> None:
        check_register(offset, value)
        response = -1

        async def request(ctx: typing.Any) -> None:
            nonlocal response
            port = self._system.registers
            ctx.set(port.awaddr, offset)
            ctx.set(port.awvalid, 1)
            ctx.set(port.wdata, value)
            ctx.set(port.wstrb, 15)
            ctx.set(port.wvalid, 1)
            ctx.set(port.bready, 1)
            for _ in range(REGISTER_CYCLES_MAX):
                address_taken = ctx.get(port.awvalid) and ctx.get(port.awready)
                data_taken = ctx.get(port.wvalid) and ctx.get(port.wready)
                if ctx.get(port.bvalid):
                    response = ctx.get(port.bresp)
                await self._tick(ctx)
                if address_taken:
                    ctx.set(port.awvalid, 0)
                if data_taken:
                    ctx.set(port.wvalid, 0)
                if response >= 0:
                    break
            ctx.set(port.awvalid, 0)
            ctx.set(port.wvalid, 0)
            ctx.set(port.bready, 0)

        if self._system.has_registers:
            self._run(request)
        check_response("write", offset, response)

    def read_memory(self, address: int, length: int) -> bytes:
        return self._memory.read(address, length)

    def write_memory(self, address: int, data: Bytes) -> None:
        self._memory.write(address, data)

    def wait_for_interrupt(self, timeout_cycles: int) -> bool:
        high = False

        async def request(ctx: typing.Any) -> None:
            nonlocal high
            interrupt = self._system.interrupt_request if self._system.has_interrupt else None
            for left in range(timeout_cycles, -1, -1):
                high = interrupt is not None and bool(ctx.get(interrupt))
                if high or not left:
                    break
                await self._tick(ctx)

        self._run(request)
        return high

    def close(self) -> None:
        if self._vcd:
            self._vcd.__exit__(None, None, None)
            self._vcd = None

    # --- SimulatedDevice ---

    @property
    def cycle(self) -> int:
        return self._cycle

    def step(self, cycles: int) -> None:
        async def request(ctx: typing.Any) -> None:
            for _ in range(cycles):
                await self._tick(ctx)

        self._run(request)

    def retirements(self) -> list[Retirement]:
        result, self._retirements = self._retirements, []
        return result

    def activity(self) -> Activity | None:
        found = []
        for rows in self._activity:
            cycles = np.zeros((max(rows, default=-1) + 1, len(Cause)), np.uint64)
            for row, counts in rows.items():
                cycles[row] = counts
            found.append(cycles)
            rows.clear()
        return join_activity(found)

    def counters(self) -> dict[str, int]:
        values: dict[str, int] = {}

        async def request(ctx: typing.Any) -> None:
            values.update((name, ctx.get(getattr(self._system, name))) for name in COUNTERS)

        self._run(request)
        return values

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *exception: typing.Any) -> None:
        self.close()
