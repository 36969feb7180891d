"""The scratchpad against a bytearray, and its grants against the rule on its timing page."""

import gc
import os
import random
import typing
import warnings

import pytest
from amaranth.back import rtlil
from amaranth.hdl import UnusedElaboratable
from amaranth.sim import Simulator

from hw.scratchpad import Scratchpad
from hw.spec.config import NpuConfig, load_config

SEED = int(os.environ.get("RONDO_SEED", "1"))
LIMIT = 20000  # cycles after which a simulation has hung


def configuration(**settings: typing.Any) -> NpuConfig:
    return load_config("tiny", {key.replace("__", "."): value for key, value in settings.items()})


def simulate(dut: Scratchpad, bench: typing.Callable[..., typing.Any]) -> None:
    rtlil.convert(dut)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def watchdog(ctx):
        for _ in range(LIMIT):
            await ctx.tick()
        raise AssertionError("the simulation hangs")

    simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


class Model:
    """Bytes, and the banks of an access, as the timing page defines them."""

    def __init__(self, config: NpuConfig):
        self.config = config
        self.memory = bytearray(config.scratchpad.bytes)
        self.words = config.scratchpad.bytes // config.word_bytes

    def bank(self, address: int) -> int:
        word = address % len(self.memory) // self.config.word_bytes
        return 2 * (word // (self.words // (self.config.scratchpad.banks // 2))) + word % 2

    def grants(self, accesses: list[set[int] | None]) -> list[bool]:
        taken: set[int] = set()
        result = []
        for addresses in accesses:
            banks = {self.bank(a) for a in addresses or ()}
            granted = addresses is not None and not banks & taken
            if granted:
                taken |= banks
            result.append(granted)
        return result


CASES = [
    ({"scratchpad__bytes": 256, "scratchpad__banks": 8}, (4, 4, 4, 4), (4, 4)),
    ({"scratchpad__bytes": 512, "scratchpad__banks": 8, "dma__bus_bits": 64}, (4, 4, 4, 8), (4, 8)),
    ({"scratchpad__bytes": 64, "scratchpad__banks": 2}, (4, 1), (3, 4, 2)),
    ({"scratchpad__bytes": 2048, "scratchpad__banks": 16, "array__n": 16}, (16, 16, 5, 4), (16, 4)),
]


@pytest.mark.parametrize(("settings", "read_sizes", "write_sizes"), CASES)
def test_random(settings: dict[str, typing.Any], read_sizes: tuple[int, ...], write_sizes: tuple[int, ...]) -> None:
    print(f"RONDO_SEED={SEED}")
    rng = random.Random(SEED)
    config = configuration(**settings)
    dut = Scratchpad(config, read_sizes, write_sizes)
    model = Model(config)
    size = config.scratchpad.bytes

    def address() -> int:
        return rng.choice([rng.randrange(size), rng.randrange(24), (size - rng.randrange(1, 24))])

    async def bench(ctx):
        expected: list[bytes | None] = [None] * len(read_sizes)
        seen = [[0, 0] for _ in read_sizes]
        for _ in range(1000):
            busy = rng.choice([0.3, 0.7, 1.0])
            reads: list[set[int] | None] = []
            writes: list[set[int] | None] = []
            starts, values = [], []
            for k, length in enumerate(read_sizes):
                a, valid = address(), rng.random() < busy
                port = getattr(dut, f"read_{k}")
                ctx.set(port.address, a)
                ctx.set(port.valid, valid)
                starts.append(a)
                reads.append({(a + i) % size for i in range(length)} if valid else None)
            for k, length in enumerate(write_sizes):
                a, valid = address(), rng.random() < busy
                port = getattr(dut, f"write_{k}")
                strobe = rng.choice([(1 << length) - 1, rng.randrange(1 << length), 1, 0])
                value = rng.randbytes(length)
                ctx.set(port.address, a)
                ctx.set(port.valid, valid)
                ctx.set(port.strobe, strobe)
                ctx.set(port.data, int.from_bytes(value, "little"))
                touched = {(a + i) % size: value[i] for i in range(length) if strobe >> i & 1}
                writes.append(set(touched) if valid else None)
                values.append(touched)
            for k in range(len(read_sizes)):  # data of the cycle before
                if (bytes_before := expected[k]) is not None:
                    data = ctx.get(getattr(dut, f"read_{k}").data)
                    assert data == int.from_bytes(bytes_before, "little")
            granted_reads, granted_writes = model.grants(reads), model.grants(writes)
            assert [bool(ctx.get(getattr(dut, f"read_{k}").ready)) for k in range(len(read_sizes))] == granted_reads
            assert [bool(ctx.get(getattr(dut, f"write_{k}").ready)) for k in range(len(write_sizes))] == granted_writes
            for k, length in enumerate(read_sizes):
                expected[k] = (
                    bytes(model.memory[(starts[k] + i) % size] for i in range(length)) if granted_reads[k] else None
                )
                if reads[k] is not None:
                    seen[k][granted_reads[k]] += 1
            for granted, touched in zip(granted_writes, values, strict=True):
                if granted:
                    for a, value in touched.items():
                        model.memory[a] = value
            await ctx.tick()
        assert seen[0][0] == 0 and all(granted and refused for refused, granted in seen[1:])
        for a in range(size):
            bank, row, lane = dut.locate(a)
            assert bank == model.bank(a)
            assert ctx.get(dut.banks[bank][row]) >> 8 * lane & 255 == model.memory[a]

    simulate(dut, bench)


def test_streams_in_one_region_take_turns() -> None:
    config = configuration(scratchpad__bytes=1024)
    dut = Scratchpad(config, (4, 4), (4, 4))

    async def bench(ctx):
        ports = [(dut.read_0, dut.read_1), (dut.write_0, dut.write_1)]
        positions = [[0, 64], [0, 64]]
        refused = [0, 0]
        for write in (dut.write_0, dut.write_1):
            ctx.set(write.strobe, 15)
        for _ in range(16):
            for kind, pair in enumerate(ports):
                for k, port in enumerate(pair):
                    ctx.set(port.address, positions[kind][k])
                    ctx.set(port.valid, 1)
            for kind, pair in enumerate(ports):
                for k, port in enumerate(pair):
                    if ctx.get(port.ready):
                        positions[kind][k] += 4
                    else:
                        refused[kind] += 1
            await ctx.tick()
        assert refused == [1, 1]

    simulate(dut, bench)


def test_a_refused_port_takes_no_bank() -> None:
    """Port 1 needs banks 0 and 1 but 0 is taken; port 2 gets 1."""
    dut = Scratchpad(configuration(scratchpad__bytes=1024), (4, 4, 4), (4,))

    async def bench(ctx):
        for port, address in ((dut.read_0, 0), (dut.read_1, 2), (dut.read_2, 4)):
            ctx.set(port.address, address)
            ctx.set(port.valid, 1)
        assert [ctx.get(port.ready) for port in (dut.read_0, dut.read_1, dut.read_2)] == [1, 0, 1]
        await ctx.tick()

    simulate(dut, bench)


def test_a_read_in_the_cycle_of_a_write_gets_the_old_bytes() -> None:
    dut = Scratchpad(configuration(scratchpad__bytes=1024), (4,), (4,))

    async def bench(ctx):
        for port in (dut.read_0, dut.write_0):
            ctx.set(port.address, 1021)
            ctx.set(port.valid, 1)
        ctx.set(dut.write_0.strobe, 15)
        ctx.set(dut.write_0.data, 0x04030201)
        await ctx.tick()
        assert ctx.get(dut.read_0.data) == 0
        await ctx.tick()
        assert ctx.get(dut.read_0.data) == 0x04030201

    simulate(dut, bench)


def test_sizes_beyond_a_word_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedElaboratable)  # Amaranth also warns of a component never finished
        with pytest.raises(ValueError, match="must be from 1 to the word's 4 bytes, not 5"):
            Scratchpad(configuration(), (5,), (4,))
        gc.collect()
