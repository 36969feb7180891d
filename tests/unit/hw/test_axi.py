"""The AXI adapter's order of AW and W, and the checker: each rule is broken once and must be named."""

import os
import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator, SimulatorContext

from hw.axi import AxiAdapter
from hw.axi_checker import AxiChecker, AxiRule
from hw.spec.config import load_config
from sim.testing.dma_bench import check_elaborates

SEED = int(os.environ.get("RONDO_SEED", "1"))
CONFIG = load_config("tiny")


async def watchdog(ctx: SimulatorContext) -> None:
    await ctx.delay(5000e-6)
    raise AssertionError("not finished")


def simulate(top: Module | wiring.Component, *benches) -> None:
    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    for bench in benches:
        simulator.add_testbench(bench)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def watched() -> tuple[Module, AxiAdapter, AxiChecker]:
    check_elaborates(AxiAdapter(CONFIG))
    m = Module()
    m.submodules.adapter = adapter = AxiAdapter(CONFIG)
    m.submodules.checker = checker = AxiChecker(CONFIG, assertions=True)
    checker.watch(m, adapter.axi)
    return m, adapter, checker


def test_read_passes_in_its_cycle() -> None:
    m, adapter, _ = watched()
    axi, read = adapter.axi, adapter.read

    async def bench(ctx: SimulatorContext) -> None:
        ctx.set(read.request.payload, {"address": 0x12340, "beats": 16, "client": 5, "task": 3})
        ctx.set(read.request.valid, 1)
        assert ctx.get(axi.arvalid) and not ctx.get(read.request.ready)
        assert (ctx.get(axi.araddr), ctx.get(axi.arlen), ctx.get(axi.arid)) == (0x12340, 15, 5)
        assert (ctx.get(axi.arsize), ctx.get(axi.arburst)) == (2, 1)
        ctx.set(axi.arready, 1)
        assert ctx.get(read.request.ready)
        await ctx.tick()
        ctx.set(read.request.valid, 0)
        for response, error in ((0, 0), (1, 0), (2, 1), (3, 1)):
            ctx.set(axi.rvalid, 1)
            ctx.set(axi.rid, 5)
            ctx.set(axi.rresp, response)
            ctx.set(axi.rdata, response + 100)
            assert ctx.get(read.data.valid)
            assert ctx.get(read.data.payload) == read.data.payload.shape().const(
                {"data": response + 100, "last": 0, "error": error, "client": 5}
            )
            ctx.set(read.data.ready, 1)
            assert ctx.get(axi.rready)
            await ctx.tick()

    simulate(m, bench)


def test_w_waits_until_its_aw_is_offered_but_not_until_it_is_taken() -> None:
    m, adapter, _ = watched()
    axi, write = adapter.axi, adapter.write

    async def bench(ctx: SimulatorContext) -> None:
        ctx.set(axi.wready, 1)
        ctx.set(write.data.valid, 1)
        ctx.set(write.data.payload.last, 1)
        for _ in range(3):
            assert not ctx.get(axi.wvalid) and not ctx.get(write.data.ready)
            await ctx.tick()
        ctx.set(write.request.payload.beats, 1)
        ctx.set(write.request.valid, 1)
        assert ctx.get(axi.wvalid) and ctx.get(write.data.ready)
        await ctx.tick()
        # This burst's beats are through; the next burst's AW has not been offered.
        for _ in range(3):
            assert ctx.get(axi.awvalid) and not ctx.get(axi.wvalid)
            await ctx.tick()
        ctx.set(axi.awready, 1)
        await ctx.tick()
        assert ctx.get(axi.wvalid)
        await ctx.tick()
        ctx.set(write.request.valid, 0)
        for _ in range(2):
            assert not ctx.get(axi.wvalid)
            await ctx.tick()

    simulate(m, bench)


@pytest.mark.parametrize("w_first", [True, False])
def test_a_slave_may_wait_for_either_channel(w_first: bool) -> None:
    """AWREADY only after the last W was taken, or WREADY only after AW: both must end."""
    m, adapter, checker = watched()
    axi, write = adapter.axi, adapter.write
    rng = random.Random(SEED)
    bursts = [rng.randint(1, 16) for _ in range(20)]

    async def requests(ctx: SimulatorContext) -> None:
        for beats in bursts:
            ctx.set(write.request.payload, {"address": 64, "beats": beats, "client": 1, "task": 0})
            ctx.set(write.request.valid, 1)
            await ctx.tick().until(write.request.ready)
        ctx.set(write.request.valid, 0)

    async def beats_of_all(ctx: SimulatorContext) -> None:
        ctx.set(write.data.valid, 1)
        for beats in bursts:
            for beat in range(beats):
                ctx.set(write.data.payload, {"data": beat, "strobe": 15, "last": beat == beats - 1})
                await ctx.tick().until(write.data.ready)
        ctx.set(write.data.valid, 0)

    async def slave(ctx: SimulatorContext) -> None:
        for _ in bursts:
            if not w_first:
                ctx.set(axi.awready, 1)
                await ctx.tick().until(axi.awvalid)
                ctx.set(axi.awready, 0)
            ctx.set(axi.wready, 1)
            await ctx.tick().until(axi.wvalid & axi.wlast)
            ctx.set(axi.wready, 0)
            if w_first:
                ctx.set(axi.awready, 1)
                await ctx.tick().until(axi.awvalid)
                ctx.set(axi.awready, 0)
            ctx.set(axi.bvalid, 1)
            ctx.set(axi.bid, 1)
            ctx.set(axi.bresp, 2)
            assert ctx.get(write.done.valid) and ctx.get(write.done.payload.error)
            assert ctx.get(write.done.payload.client) == 1
            await ctx.tick()
            ctx.set(axi.bvalid, 0)
        await ctx.tick()
        assert ctx.get(checker.broken) == 0

    simulate(m, requests, beats_of_all, slave)


GOOD = {"size": 2, "burst": 1, "id": 1, "addr": 0x1000, "len": 1}


def offer(channel: str, valid: int = 1, **fields: int) -> dict[str, int]:
    """One cycle's values of a channel."""
    return {f"{channel}{name}": value for name, value in fields.items()} | {f"{channel}valid": valid}


AR, AW = offer("ar", **GOOD), offer("aw", **GOOD)
TAKE_AR, TAKE_AW = {"arready": 1}, {"awready": 1}

BROKEN: list[tuple[AxiRule, list[dict[str, int]]]] = [
    (AxiRule.AR_STABLE, [AR, {"arvalid": 0}]),
    (AxiRule.AR_STABLE, [AR, {"araddr": 0x2000}]),
    (AxiRule.AW_STABLE, [AW, {"awlen": 2}]),
    (AxiRule.W_STABLE, [AW | offer("w", data=1), {"wdata": 2}]),
    (AxiRule.W_STABLE, [AW | offer("w", data=1), {"wvalid": 0}]),
    (AxiRule.R_STABLE, [AR | TAKE_AR, {"arvalid": 0} | offer("r", id=1, data=1), {"rdata": 2}]),
    (
        AxiRule.B_STABLE,
        [offer("aw", **GOOD | {"len": 0}) | TAKE_AW | offer("w", last=1) | {"wready": 1},
         {"awvalid": 0, "wvalid": 0} | offer("b", id=1), {"bresp": 2}],
    ),
    (AxiRule.AR_BURST, [offer("ar", **GOOD | {"burst": 0})]),
    (AxiRule.AR_BURST, [offer("ar", **GOOD | {"size": 1})]),
    (AxiRule.AR_BURST, [offer("ar", **GOOD | {"addr": 0x1002})]),
    (AxiRule.AR_BURST, [offer("ar", **GOOD | {"addr": 0x1FFC})]),
    (AxiRule.AR_BURST, [offer("ar", **GOOD | {"len": 16})]),
    (AxiRule.AW_BURST, [offer("aw", **GOOD | {"addr": 0x1FFC})]),
    (AxiRule.W_BEFORE_AW, [offer("w", data=1)]),
    (AxiRule.W_LAST, [AW | offer("w", last=1)]),
    (AxiRule.W_LAST, [AW | offer("w", last=0) | {"wready": 1}, {"wlast": 0}]),
    (AxiRule.R_UNASKED, [offer("r", id=1)]),
    (AxiRule.R_UNASKED, [AR | TAKE_AR, {"arvalid": 0} | offer("r", id=2)]),
    (AxiRule.R_LAST, [AR | TAKE_AR, {"arvalid": 0} | offer("r", id=1, last=1)]),
    (AxiRule.B_UNASKED, [AW | TAKE_AW, {"awvalid": 0} | offer("b", id=1)]),
    (AxiRule.TOO_MANY, [AR | TAKE_AR] * 65),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "cycles"), BROKEN)
def test_checker_names_the_broken_rule(rule: AxiRule, cycles: list[dict[str, int]]) -> None:
    dut = AxiChecker(CONFIG)
    check_elaborates(AxiChecker(CONFIG))

    async def bench(ctx: SimulatorContext) -> None:
        for k, values in enumerate(cycles):
            assert ctx.get(dut.broken) == 0, f"before cycle {k}"
            for name, value in values.items():
                ctx.set(getattr(dut, name), value)
            await ctx.tick()
        assert ctx.get(dut.broken) == 1 << rule

    simulate(dut, bench)
