"""A bench for the DMA units: transfers as plain data, what they must do, a scratchpad, and a record of every cycle."""

import dataclasses
import random
from collections.abc import Iterator, Sequence

from amaranth.back import rtlil
from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import data, wiring
from amaranth.sim import Simulator, SimulatorContext

from hw.axi import AxiAdapter
from hw.axi_checker import AxiChecker
from hw.dma_load import DmaLoad
from hw.dma_store import DmaStore
from hw.interfaces import issued_command
from hw.spec.commands import COMMAND, OPERANDS, TRANSFER, Cursor, Opcode, pack
from hw.spec.config import NpuConfig
from sim.testing.axi_memory import AxiBehaviour, AxiMemory


@dataclasses.dataclass
class Transfer:
    """A LOAD, STORE or FILL whose operands are taken. Fields as in ``hw.spec.commands.TRANSFER``."""

    opcode: Opcode
    index: int
    run_bytes: int
    dram_offset: int = 0
    count: tuple[int, int, int] = (1, 1, 1)
    dram_stride: tuple[int, int, int] = (0, 0, 0)
    scratchpad_stride: tuple[int, int, int] = (0, 0, 0)
    base: int = 0
    fill: int = 0
    ring_base: int = 0
    ring_bytes: int = 1024
    start: int = 0
    operands: tuple[tuple[int, int, int], ...] = ()
    """Ring, cursor, advance of each."""

    def runs(self) -> Iterator[tuple[int, int]]:
        """DRAM offset and ring offset of each run, straight from the definition."""
        for i2 in range(self.count[2]):
            for i1 in range(self.count[1]):
                for i0 in range(self.count[0]):
                    steps = (i0, i1, i2)
                    dram = sum(i * stride for i, stride in zip(steps, self.dram_stride, strict=True))
                    place = sum(i * stride for i, stride in zip(steps, self.scratchpad_stride, strict=True))
                    yield self.dram_offset + dram, (self.start + place) % self.ring_bytes

    def moves(self) -> Iterator[tuple[int, int]]:
        """DRAM offset and scratchpad address of each byte, in order."""
        for dram, place in self.runs():
            for k in range(self.run_bytes):
                yield dram + k, self.ring_base + (place + k) % self.ring_bytes


@dataclasses.dataclass
class Piece:
    """One burst that a transfer needs."""

    address: int
    beats: int
    lane: int
    bytes: int
    place: int
    ends_run: bool
    last: bool
    outside: bool


def pieces(config: NpuConfig, transfer: Transfer, base: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """The bursts of a transfer: runs cut at multiples of the burst, up to the first one outside its buffer."""
    fill = transfer.opcode == Opcode.FILL
    bus = config.bus_bytes
    block = config.dma.burst_beats * bus
    if fill:
        block = max(block, config.word_bytes)
    base_address, base_bytes = base[transfer.base]
    runs = list(transfer.runs())
    for r, (dram, place) in enumerate(runs):
        done = 0
        while done < transfer.run_bytes:
            offset = dram + done
            address = done if fill else base_address + offset
            size = min(transfer.run_bytes - done, block - address % block)
            outside = not fill and not (
                offset >= 0 and offset + size <= base_bytes and address < 1 << config.address_bits
            )
            ends = done + size == transfer.run_bytes
            yield Piece(
                address=address - address % bus,
                beats=(address % bus + size + bus - 1) // bus,
                lane=address % bus,
                bytes=size,
                place=(place + done) % transfer.ring_bytes,
                ends_run=ends,
                last=ends and r == len(runs) - 1,
                outside=outside,
            )
            if outside:
                return
            done += size


def random_transfers(
    config: NpuConfig, rng: random.Random, opcodes: Sequence[Opcode], count: int, dram_bytes: int, *, longest: int = 200
) -> list[Transfer]:
    """Legal transfers inside [0, dram_bytes) whose bytes never overlap in the ring within one transfer."""
    transfers = []
    for index in range(count):
        opcode = rng.choice(opcodes)
        run_bytes = rng.choice([1, 2, config.bus_bytes, 64, rng.randint(1, longest), rng.randint(1, longest)])
        counts = rng.choice([(1, 1, 1), (2, 1, 1), (3, 2, 1), (1, 2, 2), (2, 2, 2), (rng.randint(1, 6), 1, 1)])
        # Runs lie in the ring one after the other, in some order of the dimensions, with gaps.
        extent = run_bytes
        place_stride = [0, 0, 0]
        for d in rng.sample(range(3), 3):
            extent += rng.randint(0, 5)
            place_stride[d] = extent if counts[d] > 1 else rng.choice([0, extent])
            extent *= counts[d]
        ring_bytes = max(extent + rng.randint(0, 40), config.word_bytes // 2)
        if opcode == Opcode.STORE:
            # Nor may they overlap in DRAM.
            dram_stride = [stride * rng.choice([1, -1]) for stride in place_stride]
        else:
            dram_stride = [rng.choice([0, rng.randint(-300, 300)]) for _ in range(3)]
        low = sum(min(0, (n - 1) * stride) for n, stride in zip(counts, dram_stride, strict=True))
        high = sum(max(0, (n - 1) * stride) for n, stride in zip(counts, dram_stride, strict=True)) + run_bytes
        if high - low > dram_bytes:
            continue
        transfers.append(
            Transfer(
                opcode=opcode,
                index=1000 + index,
                run_bytes=run_bytes,
                dram_offset=rng.randint(-low, dram_bytes - high),
                count=counts,
                dram_stride=tuple(dram_stride),
                scratchpad_stride=tuple(place_stride),
                fill=rng.randrange(256),
                ring_base=rng.randrange(0, config.scratchpad.bytes - ring_bytes + 1, config.word_bytes),
                ring_bytes=ring_bytes,
                start=rng.randrange(ring_bytes),
                operands=tuple(
                    (rng.randrange(16), rng.choice([0, 1, 4, 7]), rng.randrange(100)) for _ in range(rng.randint(1, 5))
                ),
            )
        )
    return transfers


def issue_payload(config: NpuConfig, transfer: Transfer) -> data.Const:
    """The transfer as the issue unit hands it over."""
    body = pack(
        TRANSFER,
        {
            "base": transfer.base,
            "fill": transfer.fill,
            "run_bytes": transfer.run_bytes,
            "dram_offset": transfer.dram_offset,
            "count": transfer.count,
            "dram_stride": transfer.dram_stride,
            "scratchpad_stride": transfer.scratchpad_stride,
        },
    )
    command = COMMAND.const({"header": {"opcode": transfer.opcode}, "body": body})
    padding = ((0, Cursor.NONE, 0),) * (OPERANDS - len(transfer.operands))
    operands: list[dict[str, int]] = [
        {"ring": ring, "cursor": cursor, "advance": advance} for ring, cursor, advance in transfer.operands + padding
    ]
    operands[0] |= {"base": transfer.ring_base, "start": transfer.start, "ring_bytes": transfer.ring_bytes}
    layout = issued_command(config)
    return layout.const({"command": command.as_bits(), "index": transfer.index, "operand": operands})


def passed(transfer: Transfer) -> list[tuple[int, int, int]]:
    """Commits that the transfer must make."""
    return [operand for operand in transfer.operands if operand[1] != Cursor.NONE]


def check_elaborates(component: Elaboratable) -> None:
    """Raises if the component has a combinational loop, on which the simulator would hang."""
    m = Module()
    m.submodules.dut = component
    rtlil.convert(m, ports=[Signal(name="unused")])


@dataclasses.dataclass
class Cycle:
    """What happened in one cycle."""

    accepted: bool
    granted: bool
    commit: tuple[int, int, int] | None
    retired: int | None
    fault: tuple[int, int] | None
    idle: bool
    flags: int
    bytes_moved: int


class DmaBench:
    """A DMA unit with an AXI memory behind the adapter, a checker on the bus, and a scratchpad.

    ``run`` offers the transfers one after the other and goes on until the unit has been idle for a while, or has
    faulted and become idle. Afterwards ``cycles`` holds every cycle, from the first command's offer on.
    """

    def __init__(
        self,
        config: NpuConfig,
        unit: type[DmaLoad] | type[DmaStore],
        *,
        memory: bytearray,
        scratchpad: bytearray,
        behaviour: AxiBehaviour,
        rng: random.Random,
        base: Sequence[tuple[int, int]],
        grant: float = 1.0,
        offer: float = 1.0,
    ):
        self.config = config
        self.scratchpad = scratchpad
        self.cycles: list[Cycle] = []
        self._rng = rng
        self._base = base
        self._grant = grant
        self._offer = offer
        self.dut = unit(config)
        adapter = AxiAdapter(config)
        checker = AxiChecker(config)
        m = Module()
        m.submodules.dut = self.dut
        m.submodules.adapter = adapter
        m.submodules.checker = checker
        wiring.connect(m, self.dut.memory, adapter.read if unit is DmaLoad else adapter.write)
        checker.watch(m, adapter.axi)
        self.memory = AxiMemory(adapter.axi, memory, behaviour, rng)
        self._checker = checker
        self._top = m

    def run(self, transfers: Sequence[Transfer], *, deadline: int = 20000, more: Sequence[Transfer] = ()) -> None:
        """With ``more``: after the fault that ``transfers`` must bring, and ``clear``, these run too."""
        simulator = Simulator(self._top)
        simulator.add_clock(1e-6)
        dut, rng = self.dut, self._rng

        async def commands(ctx: SimulatorContext) -> None:
            ctx.set(dut.base, [{"address": address, "bytes": size} for address, size in self._base])
            for transfer in transfers:
                while rng.random() >= self._offer:
                    await ctx.tick()
                ctx.set(dut.i.payload, issue_payload(self.config, transfer))
                ctx.set(dut.i.valid, 1)
                await ctx.tick().until(dut.i.ready)
                ctx.set(dut.i.valid, 0)
            while not ctx.get(dut.idle):
                await ctx.tick()
            await ctx.tick().repeat(5)
            if more:
                assert any(cycle.fault for cycle in self.cycles)
                ctx.set(dut.clear, 1)
                await ctx.tick()
                ctx.set(dut.clear, 0)
                for transfer in more:
                    ctx.set(dut.i.payload, issue_payload(self.config, transfer))
                    ctx.set(dut.i.valid, 1)
                    await ctx.tick().until(dut.i.ready)
                    ctx.set(dut.i.valid, 0)
                while not ctx.get(dut.idle):
                    await ctx.tick()
                await ctx.tick().repeat(5)
            assert ctx.get(dut.idle)
            assert ctx.get(self._checker.broken) == 0

        async def watchdog(ctx: SimulatorContext) -> None:
            await ctx.delay(deadline * 1e-6)
            raise AssertionError(f"not finished after {deadline} cycles")

        async def recorder(ctx: SimulatorContext) -> None:
            commit, retire, fault = dut.commit, dut.retire, dut.fault
            while True:
                _, _, *v = await ctx.tick().sample(
                    dut.i.valid, dut.i.ready, dut.scratchpad.valid, dut.scratchpad.ready,
                    commit.valid, commit.ring, commit.cursor, commit.advance, retire.valid, retire.index,
                    fault.valid, fault.report, dut.idle, dut.flags, dut.bytes_moved,
                )  # fmt: skip
                self.cycles.append(
                    Cycle(
                        accepted=bool(v[0] and v[1]),
                        granted=bool(v[2] and v[3]),
                        commit=(v[5], v[6], v[7]) if v[4] else None,
                        retired=v[9] if v[8] else None,
                        fault=(v[11].code, v[11].command) if v[10] else None,
                        idle=bool(v[12]),
                        flags=v[13].as_bits(),
                        bytes_moved=v[14],
                    )
                )

        simulator.add_testbench(commands)
        simulator.add_testbench(watchdog, background=True)
        simulator.add_testbench(self.memory.run, background=True)
        simulator.add_testbench(self._scratchpad, background=True)
        simulator.add_testbench(recorder, background=True)
        simulator.run()

    async def _scratchpad(self, ctx: SimulatorContext) -> None:
        port = self.dut.scratchpad
        writes = isinstance(self.dut, DmaLoad)
        size = len(self.scratchpad)
        signals = (port.valid, port.address) + ((port.data, port.strobe) if writes else ())
        while True:
            ready = self._grant >= 1.0 or self._rng.random() < self._grant
            ctx.set(port.ready, ready)
            _, _, valid, address, *rest = await ctx.tick().sample(*signals)
            if writes:
                if valid and ready:
                    word, strobe = rest
                    for i in range(strobe.bit_length()):
                        if strobe >> i & 1:
                            self.scratchpad[(address + i) % size] = word >> 8 * i & 0xFF
            elif valid and ready:
                read = bytes(self.scratchpad[(address + i) % size] for i in range(self.config.bus_bytes))
                ctx.set(port.data, int.from_bytes(read, "little"))
            else:
                ctx.set(port.data, self._rng.getrandbits(self.config.dma.bus_bits))

    # What happened.

    def accepted(self) -> list[int]:
        return [t for t, cycle in enumerate(self.cycles) if cycle.accepted]

    def granted(self) -> list[int]:
        return [t for t, cycle in enumerate(self.cycles) if cycle.granted]

    def commits(self) -> list[tuple[int, int, int]]:
        return [cycle.commit for cycle in self.cycles if cycle.commit is not None]

    def retired(self) -> list[tuple[int, int]]:
        return [(t, cycle.retired) for t, cycle in enumerate(self.cycles) if cycle.retired is not None]

    def faults(self) -> list[tuple[int, int]]:
        return [cycle.fault for cycle in self.cycles if cycle.fault is not None]
