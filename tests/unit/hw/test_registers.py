"""The register file against a plain model of the register map and of docs/timing/registers.md, cycle by cycle."""

import os
import random
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from hw.registers import OKAY, PORTS, SLVERR, RegisterFile
from hw.spec.config import load_config
from hw.spec.register_map import REGISTERS, Access

CONFIG = load_config("tiny")
BY_OFFSET = {register.offset: register for register in REGISTERS.values()}
INPUTS = sorted({p.name for p in PORTS.values() if p.input} - {"config_hash"})
OUTPUTS = sorted({p.name for p in PORTS.values() if not p.input})
PULSES = [p.name for p in PORTS.values() if p.field.access is Access.PULSE]


def seed() -> int:
    value = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={value}")
    return value


class Model:
    """The page, in words of Python: ``step`` takes a cycle's inputs and returns the outputs seen in that cycle."""

    def __init__(self) -> None:
        self.port = dict.fromkeys(OUTPUTS, 0)
        self.sticky = 0
        self.address = self.data = self.b = self.read_address = self.r = self.r_data = None
        self.interrupt = 0

    def value(self, register, inputs) -> int:
        word = 0
        for field in register.fields.values():
            if field.access is Access.CONSTANT:
                word |= field.insert(field.reset)
            elif register.name == "CONFIG_HASH":
                word = CONFIG.hash
            elif field.access is Access.WRITE_ONE_TO_CLEAR:
                word |= field.insert(self.sticky)
            elif field.access is not Access.PULSE:
                port = PORTS[register.name, field.name]
                whole = (inputs if port.input else self.port)[port.name]
                word |= field.insert(whole >> port.start & ((1 << field.width) - 1))
        return word

    def write(self, register, data: int, strobe: int) -> None:
        lanes = sum(0xFF << 8 * i for i in range(4) if strobe >> i & 1)
        for field in register.fields.values():
            port, mask = PORTS.get((register.name, field.name)), field.extract(lanes)
            if field.access in (Access.READ_WRITE, Access.PULSE):
                mask <<= port.start
                new = field.extract(data) << port.start
                self.port[port.name] = (self.port[port.name] & ~mask) | (new & mask)
            elif field.access is Access.WRITE_ONE_TO_CLEAR:
                self.sticky &= ~(field.extract(data) & mask)

    def step(self, i: dict[str, int]) -> dict[str, int]:
        out = {
            "awready": self.address is None, "wready": self.data is None, "arready": self.read_address is None,
            "bvalid": self.b is not None, "bresp": self.b, "rvalid": self.r is not None, "rresp": self.r,
            "rdata": self.r_data, "interrupt": self.interrupt, **self.port,
        }  # fmt: skip
        status = self.value(REGISTERS["INTERRUPT_STATUS"], i)
        self.interrupt = int(status & self.value(REGISTERS["INTERRUPT_ENABLE"], i) != 0)
        if out["bvalid"] and i["bready"]:
            self.b = None
        if out["rvalid"] and i["rready"]:
            self.r = None
        if self.read_address is not None and self.r is None:  # sampled: values before this cycle's write
            register = BY_OFFSET.get(self.read_address)
            self.r, self.r_data = (OKAY, self.value(register, i)) if register else (SLVERR, 0)
            self.read_address = None
        self.port.update(dict.fromkeys(PULSES, 0))
        if self.address is not None and self.data is not None and self.b is None:  # performed
            register = BY_OFFSET.get(self.address)
            self.b = OKAY if register and register.writable else SLVERR
            if self.b == OKAY:
                self.write(register, *self.data)
            self.address = self.data = None
        self.sticky |= i["interrupt_status_completion_error"]
        if out["awready"] and i["awvalid"]:
            self.address = i["awaddr"] & ~3
        if out["wready"] and i["wvalid"]:
            self.data = i["wdata"], i["wstrb"]
        if out["arready"] and i["arvalid"]:
            self.read_address = i["araddr"] & ~3
        return {name: int(value) for name, value in out.items() if value is not None}


def simulate(bench, cycles: int) -> None:
    """Run ``bench(dut, ctx)``; fail when it has not ended after ``cycles`` cycles."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dut = RegisterFile(CONFIG)
        rtlil.convert(dut)  # raises on a combinational loop
        dut = RegisterFile(CONFIG)
        simulator = Simulator(dut)

    async def main(ctx) -> None:
        await bench(dut, ctx)

    async def watchdog(ctx) -> None:
        for _ in range(cycles):
            await ctx.tick()
        raise TimeoutError(f"not ended after {cycles} cycles")

    simulator.add_clock(1e-6)
    simulator.add_testbench(main)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


@pytest.mark.parametrize(("patience", "busy"), [(1.0, 1.0), (0.5, 0.5), (0.1, 0.9), (0.9, 0.3)])
def test_random_accesses_follow_the_page(patience: float, busy: float) -> None:
    rng = random.Random(seed())
    interesting = list(BY_OFFSET) + [0x00C, 0xFFC, 0x2C8] + [REGISTERS["INTERRUPT_STATUS"].offset] * 20
    interesting += [REGISTERS[name].offset for name in ("CONTROL", "COUNTER_CONTROL", "INTERRUPT_ENABLE")] * 10
    steps = 1500

    async def bench(dut: RegisterFile, ctx) -> None:
        model = Model()
        bus = dict.fromkeys(("awvalid", "wvalid", "arvalid"), 0)
        hardware = dict.fromkeys(INPUTS, 0)
        out: dict[str, int] = {}
        for _ in range(steps):
            for channel in ("aw", "w", "ar"):  # a valid stays, with its payload, until it is taken
                if not bus[f"{channel}valid"] or out.get(f"{channel}ready"):
                    bus[f"{channel}valid"] = int(rng.random() < busy)
                    if channel == "w":
                        bus["wdata"], bus["wstrb"] = rng.getrandbits(32), rng.choice([15, 15, rng.getrandbits(4)])
                    else:
                        bus[f"{channel}addr"] = rng.choice(interesting) | rng.getrandbits(2)
            bus["bready"], bus["rready"] = int(rng.random() < patience), int(rng.random() < patience)
            for name in rng.sample(INPUTS, 3):
                hardware[name] = rng.getrandbits(len(getattr(dut, name)))
            hardware["interrupt_status_completion_error"] = int(rng.random() < 0.1)
            for name, value in bus.items():
                ctx.set(getattr(dut.bus, name), value)
            for name, value in hardware.items():
                ctx.set(getattr(dut, name), value)
            out = {}
            expected = model.step(bus | hardware)
            for name, value in expected.items():
                out[name] = ctx.get(getattr(dut.bus if hasattr(dut.bus, name) else dut, name))
                assert out[name] == value, name
            await ctx.tick()

    simulate(bench, steps + 10)


async def write(dut: RegisterFile, ctx, name: str, data: int) -> int:
    ctx.set(dut.bus.awaddr, REGISTERS[name].offset)
    ctx.set(dut.bus.wdata, data)
    ctx.set(dut.bus.wstrb, 15)
    ctx.set(dut.bus.awvalid, 1)
    ctx.set(dut.bus.wvalid, 1)
    ctx.set(dut.bus.bready, 1)
    await ctx.tick()
    ctx.set(dut.bus.awvalid, 0)
    ctx.set(dut.bus.wvalid, 0)
    (response,) = await ctx.tick().sample(dut.bus.bresp).until(dut.bus.bvalid)
    return response


async def read(dut: RegisterFile, ctx, name: str) -> int:
    ctx.set(dut.bus.araddr, REGISTERS[name].offset)
    ctx.set(dut.bus.arvalid, 1)
    ctx.set(dut.bus.rready, 1)
    await ctx.tick()
    ctx.set(dut.bus.arvalid, 0)
    (data,) = await ctx.tick().sample(dut.bus.rdata).until(dut.bus.rvalid)
    return data


def test_identity_and_reset_values() -> None:
    async def bench(dut: RegisterFile, ctx) -> None:
        assert await read(dut, ctx, "IDENTITY") == int.from_bytes(b"RNDO", "little")
        assert await read(dut, ctx, "CONFIG_HASH") == CONFIG.hash
        for register in REGISTERS.values():
            if register.name != "CONFIG_HASH":
                assert await read(dut, ctx, register.name) == register.reset, register.name

    simulate(bench, 10 * len(REGISTERS))


def test_interrupt_stays_until_the_tail_reaches_the_head() -> None:
    async def bench(dut: RegisterFile, ctx) -> None:
        fields = REGISTERS["INTERRUPT_ENABLE"].fields
        assert await write(dut, ctx, "INTERRUPT_ENABLE", fields["COMPLETION"].mask) == OKAY
        ctx.set(dut.completion_head, 2)
        ctx.set(dut.interrupt_status_completion, 1)
        await ctx.tick()
        assert ctx.get(dut.interrupt)
        assert await write(dut, ctx, "COMPLETION_TAIL", 2) == OKAY
        assert ctx.get(dut.completion_tail) == 2
        assert ctx.get(dut.interrupt)
        ctx.set(dut.interrupt_status_completion, 0)
        await ctx.tick()
        assert not ctx.get(dut.interrupt)
        assert await write(dut, ctx, "COMPLETION_HEAD", 9) == SLVERR

    simulate(bench, 100)
