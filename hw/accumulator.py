"""Accumulator: two halves of N x int32 sums a line; one fills while the other drains.

Sums that are valid in cycle t are added to (or compared with) a line read in cycle t - 1 and written at the end of t;
a drain read in cycle t + 1 sees them. A line may be added to again two cycles later. Each half has one read port and
one write port, shared by fill and drain: the protocol of halves keeps them apart. A sum that *clears* reads nothing.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.array import SumsSignature
from hw.spec.config import NpuConfig


class DrainSignature(wiring.Signature):
    """The epilogue's reads: the line is on ``data`` in the cycle after ``valid``, and in that cycle only."""

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "valid": Out(1),
                "half": Out(1),
                "index": Out((config.accumulator_half - 1).bit_length()),
                "data": In(config.array.n * 32),
            }
        )


class Accumulator(wiring.Component):
    """``completed`` pulses in the cycle in which the last line of a half is written."""

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "i": In(SumsSignature(config)),
                "drain": In(DrainSignature(config)),
                "completed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n = self._config.array.n
        early, tag = self.i.early_tag, self.i.tag
        m.d.comb += self.completed.eq(self.i.valid & tag.complete)

        held = []
        new = Signal(n * 32)
        drain_half = Signal()
        with m.If(self.drain.valid):
            m.d.sync += drain_half.eq(self.drain.half)
        for half in range(2):
            lines = memory.Memory(shape=n * 32, depth=self._config.accumulator_half, init=[])
            m.submodules[f"half_{half}"] = lines
            write = lines.write_port()
            read = lines.read_port()
            fills = self.i.early & ~early.clear & (early.half == half)
            drains = self.drain.valid & (self.drain.half == half)
            m.d.comb += [
                read.en.eq(fills | drains),
                read.addr.eq(Mux(drains, self.drain.index, early.index)),
                write.en.eq(self.i.valid & (tag.half == half)),
                write.addr.eq(tag.index),
                write.data.eq(new),
            ]
            held.append(read.data)

        m.d.comb += self.drain.data.eq(Mux(drain_half, held[1], held[0]))
        before = Mux(tag.half, held[1], held[0])
        for channel in range(n):
            old = before.word_select(channel, 32).as_signed()
            value = self.i.sums.word_select(channel, 32).as_signed()
            result = Signal(32, name=f"result_{channel}")
            with m.If(tag.clear):
                m.d.comb += result.eq(value)
            with m.Elif(tag.maximum):
                m.d.comb += result.eq(Mux(old > value, old, value))
            with m.Else():
                m.d.comb += result.eq(old + value)
            m.d.comb += new.word_select(channel, 32).eq(result)
        return m
