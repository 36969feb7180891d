"""The memory port: grants against a model of docs/timing/memory_port.md in every cycle, data through an AXI memory."""

import gc
import itertools
import os
import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator, SimulatorContext

from hw.axi import AxiAdapter
from hw.axi_checker import AxiChecker
from hw.memory_port import GRANTS_BEFORE_YIELD, WRITE_BURSTS_AHEAD, MemoryPort
from hw.spec.config import load_config
from sim.testing.axi_memory import AxiBehaviour, AxiMemory
from sim.testing.dma_bench import check_elaborates

SEED = int(os.environ.get("RONDO_SEED", "1"))
CONFIG = load_config("tiny", {"dma.bus_bits": 64})
READS = [2, 5, 0, 3]
WRITES = [5, 1, 7]


async def watchdog(ctx: SimulatorContext) -> None:
    await ctx.delay(20000e-6)
    raise AssertionError("not finished")


def model_reads(waiting: list[bool], state: dict[str, int]) -> int | None:
    """The client granted, by the page; ``state`` holds streak and turn."""
    first = next((k for k, waits in enumerate(waiting) if waits), None)
    if first is None:
        return None
    lower = [k for k in range(first + 1, len(waiting)) if waiting[k]]
    if lower and state["streak"] == GRANTS_BEFORE_YIELD:
        state["streak"] = 0
        state["turn"] = min(lower, key=lambda k: (k - state["turn"] - 1) % len(waiting))
        return state["turn"]
    state["streak"] = state["streak"] + 1 if lower else 0
    return first


def model_writes(waiting: list[bool], state: dict[str, int]) -> int | None:
    clients = [k for k, waits in enumerate(waiting) if waits]
    if not clients:
        return None
    state["turn"] = min(clients, key=lambda k: (k - state["turn"] - 1) % len(waiting))
    return state["turn"]


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize(("load", "ready"), [(1.0, 1.0), (0.9, 1.0), (0.5, 0.6), (0.1, 0.9)])
def test_grants(kind: str, load: float, ready: float) -> None:
    """Who is granted, and when, in every cycle. Writes have their beats at once, so the queue of grants is short."""
    print(f"seed {SEED}")
    dut = MemoryPort(CONFIG, READS, WRITES)
    check_elaborates(MemoryPort(CONFIG, READS, WRITES))
    tags = READS if kind == "read" else WRITES
    clients = [getattr(dut, f"{kind}_{k}") for k in range(len(tags))]
    port = dut.port_read if kind == "read" else dut.port_write
    rng = random.Random(f"{SEED} {kind} {load}")
    grants: list[int] = []

    async def bench(ctx: SimulatorContext) -> None:
        state = {"streak": 0, "turn": -1}
        waiting = [False] * len(tags)
        held: int | None = None  # in the register
        held_task = 0
        sent = 0
        if kind == "write":
            ctx.set(port.data.ready, 1)
            for client in clients:
                ctx.set(client.data.valid, 1)
                ctx.set(client.data.payload.last, 1)
        for _ in range(600):
            for k, client in enumerate(clients):
                if not waiting[k] and rng.random() < load:
                    waiting[k] = True
                    sent += 1
                    ctx.set(client.request.payload.address, sent * 8)
                ctx.set(client.request.valid, waiting[k])
            taken = rng.random() < ready
            ctx.set(port.request.ready, taken)
            task = rng.randrange(16)
            ctx.set(dut.task, task)
            expected = None
            if held is None or taken:
                model = model_reads if kind == "read" else model_writes
                expected = model(waiting, state)
            _, _, valid, payload, *granted = await ctx.tick().sample(
                port.request.valid,
                port.request.payload,
                *(client.request.ready & client.request.valid for client in clients),
            )
            assert valid == (held is not None)
            if held is not None:
                assert (payload.client, payload.task) == (tags[held], held_task)
            assert granted == [k == expected for k in range(len(clients))]
            if taken:
                held = None
            if expected is not None:
                held, held_task = expected, task
                waiting[expected] = False
                grants.append(expected)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()
    if load == 1.0:
        lowest = [t for t, k in enumerate(grants) if k == len(tags) - 1]
        waits = [b - a for a, b in itertools.pairwise(lowest)]
        assert max(waits) <= (8 * (len(tags) - 1) if kind == "read" else len(tags))
        assert len(grants) == 600


def test_write_grants_wait_for_their_beats() -> None:
    """No more than the queue holds are granted while no beat passes; beats follow the order of the grants."""
    dut = MemoryPort(CONFIG, READS, WRITES)
    order: list[int] = []

    async def bench(ctx: SimulatorContext) -> None:
        ctx.set(dut.port_write.request.ready, 1)
        clients = [getattr(dut, f"write_{k}") for k in range(len(WRITES))]
        for client in clients:
            ctx.set(client.request.valid, 1)
        for _ in range(20):
            _, _, valid, client = await ctx.tick().sample(
                dut.port_write.request.valid, dut.port_write.request.payload.client
            )
            if valid:
                order.append(client)
        assert len(order) == WRITE_BURSTS_AHEAD
        for client in clients:
            ctx.set(client.request.valid, 0)
            ctx.set(client.data.valid, 1)
            ctx.set(client.data.payload.last, 1)
        for client, tag in zip(clients, WRITES, strict=True):
            ctx.set(client.data.payload.data, tag)
        ctx.set(dut.port_write.data.ready, 1)
        passed = []
        for _ in range(20):
            _, _, valid, word = await ctx.tick().sample(dut.port_write.data.valid, dut.port_write.data.payload.data)
            if valid:
                passed.append(word)
        assert passed == order

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


@pytest.mark.parametrize("round", range(4))
def test_through_axi(round: int) -> None:
    """Random bursts of all clients at once, answers mixed between IDs: every client gets its own, in order."""
    print(f"seed {SEED}")
    rng = random.Random(f"{SEED} {round}")
    memory = bytearray(rng.randbytes(0x10000))
    before = bytes(memory)
    bad = 0x4000
    behaviour = AxiBehaviour(
        latency=((1, 1), (1, 30))[round > 0],
        ready=(1.0, 0.5, 0.8, 0.3)[round],
        valid=(1.0, 0.8, 0.5, 1.0)[round],
        interleave=round > 0,
        read_error=lambda address: address & 0x7000 == bad,
        write_error=lambda address: address & 0x7000 == bad,
    )
    m = Module()
    m.submodules.port = port = MemoryPort(CONFIG, READS, WRITES)
    m.submodules.adapter = adapter = AxiAdapter(CONFIG)
    m.submodules.checker = checker = AxiChecker(CONFIG)
    wiring.connect(m, port.port_read, adapter.read)
    wiring.connect(m, port.port_write, adapter.write)
    checker.watch(m, adapter.axi)
    model = AxiMemory(adapter.axi, memory, behaviour, rng)
    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    bus = CONFIG.bus_bytes
    expected = bytearray(before)
    done_reads, done_writes = [0] * len(READS), [0] * len(WRITES)

    def burst() -> tuple[int, int]:
        beats = rng.randint(1, 16)
        return rng.randrange(0, 0x8000, 4096) + rng.randint(0, 4096 // bus - beats) * bus, beats

    for k in range(len(READS)):
        bursts = [burst() for _ in range(25)]
        client = getattr(port, f"read_{k}")

        async def ask(ctx, client=client, bursts=bursts) -> None:
            for address, beats in bursts:
                while rng.random() < 0.3:
                    await ctx.tick()
                ctx.set(client.request.payload, {"address": address, "beats": beats, "client": 6, "task": 0})
                ctx.set(client.request.valid, 1)
                await ctx.tick().until(client.request.ready)
                ctx.set(client.request.valid, 0)

        async def take(ctx, client=client, bursts=bursts, k=k) -> None:
            for address, beats in bursts:
                for beat in range(beats):
                    while rng.random() < 0.2:
                        await ctx.tick()
                    ctx.set(client.data.ready, 1)
                    (payload,) = await ctx.tick().sample(client.data.payload).until(client.data.valid)
                    ctx.set(client.data.ready, 0)
                    at = address + beat * bus
                    assert payload.data == int.from_bytes(before[at : at + bus], "little")
                    assert payload.last == (beat == beats - 1)
                    assert payload.error == (at & 0x7000 == bad)
            done_reads[k] = 1

        simulator.add_testbench(ask)
        simulator.add_testbench(take)

    for k in range(len(WRITES)):
        client = getattr(port, f"write_{k}")
        # Each client has its own half of the upper memory's pages, so that the order between clients is of no matter.
        bursts = []
        for _ in range(25):
            address, beats = burst()
            bursts.append((0x8000 + (address & 0x3FFF) % 0x2000 + (0x2000 * k), beats))
        words = [[(rng.getrandbits(64), rng.getrandbits(8)) for _ in range(beats)] for _, beats in bursts]
        for (address, _), body in zip(bursts, words, strict=True):
            if address & 0x7000 != bad:
                for beat, (word, strobe) in enumerate(body):
                    for lane in range(bus):
                        if strobe >> lane & 1:
                            expected[address + beat * bus + lane] = word >> 8 * lane & 0xFF

        async def ask(ctx, client=client, bursts=bursts) -> None:
            for address, beats in bursts:
                while rng.random() < 0.3:
                    await ctx.tick()
                ctx.set(client.request.payload, {"address": address, "beats": beats, "client": 6, "task": 0})
                ctx.set(client.request.valid, 1)
                await ctx.tick().until(client.request.ready)
                ctx.set(client.request.valid, 0)

        async def give(ctx, client=client, words=words) -> None:
            for body in words:
                for beat, (word, strobe) in enumerate(body):
                    while rng.random() < 0.2:
                        await ctx.tick()
                    ctx.set(client.data.payload, {"data": word, "strobe": strobe, "last": beat == len(body) - 1})
                    ctx.set(client.data.valid, 1)
                    await ctx.tick().until(client.data.ready)
                    ctx.set(client.data.valid, 0)

        async def finish(ctx, client=client, bursts=bursts, k=k) -> None:
            for address, _ in bursts:
                (payload,) = await ctx.tick().sample(client.done.payload).until(client.done.valid)
                assert payload.error == (address & 0x7000 == bad)
            done_writes[k] = 1

        simulator.add_testbench(ask)
        simulator.add_testbench(give)
        simulator.add_testbench(finish)

    async def checks(ctx: SimulatorContext) -> None:
        while not (all(done_reads) and all(done_writes)):
            await ctx.tick()
        assert ctx.get(checker.broken) == 0

    simulator.add_testbench(checks)
    simulator.add_testbench(model.run, background=True)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()
    assert memory == expected
    assert {burst.id for burst in model.reads} == set(READS)
    assert {burst.id for burst in model.writes} == set(WRITES)


@pytest.mark.filterwarnings("ignore:.*created but never used")
@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        ([0], [], "write_clients must name at least one client"),
        ([1, 1], [0], r"read_clients must be different tags from 0 to 7, not \[1, 1\]"),
        ([8], [0], r"not \[8\]"),
    ],
)
def test_refuses_bad_clients(reads: list[int], writes: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryPort(CONFIG, reads, writes)
    gc.collect()


def test_one_client() -> None:
    check_elaborates(MemoryPort(CONFIG, [0], [1]))
