"""Wrap of a ring offset against the remainder."""

import itertools

from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from hw.ring_address import wrap


def test_wrap() -> None:
    offset, ring_bytes, wrapped = Signal(6), Signal(5), Signal(6)
    m = Module()
    m.d.comb += wrapped.eq(wrap(offset, ring_bytes))
    simulator = Simulator(m)

    async def bench(ctx):
        for size in range(1, 32):
            ctx.set(ring_bytes, size)
            for value in range(2 * size):
                ctx.set(offset, value)
                assert ctx.get(wrapped) == value % size
        ctx.set(ring_bytes, 0)
        ctx.set(offset, 0)
        assert ctx.get(wrapped) == 0

    simulator.add_testbench(bench)
    simulator.run()


def test_length_is_that_of_the_ring() -> None:
    for offset_bits, ring_bits in itertools.product((4, 9), (4, 9)):
        assert len(wrap(Signal(offset_bits), Signal(ring_bits))) == max(ring_bits, min(offset_bits, ring_bits))
