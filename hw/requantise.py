"""Requantisation: TFLite's MultiplyByQuantizedMultiplier with its two roundings, or one; one multiplier a lane.

::

    cycle   t             t + 1           t + 2               t + 3            t + 4
            value<<left ─► times          ─► round to the      ─► round to the  ─► result
                           multiplier        doubled high half    right shift

A value a cycle in each lane. What a stage needs is given in the cycle of that stage: ``value`` and ``left`` with
``valid`` in cycle t, ``multiplier`` in t + 1, ``first_rounds`` in t + 2, ``right`` and ``away`` in t + 3; ``result`` is
there in cycle t + 4 only. The left shift wraps in 32 bits. Both roundings are exact at the extremes: -2^31 times -2^31
saturates.

Two roundings: ``first_rounds`` and ``away`` are set. One: ``first_rounds`` only without a right shift, ``away`` is not:
what the first shift floors, the second rounds, halves up; that is the same as one shift that rounds.
"""

from amaranth.hdl import Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.spec.numerics import INT32_MAX

LATENCY = 4


class Requantise(wiring.Component):
    """``lanes`` lanes that work in step."""

    def __init__(self, lanes: int):
        self._lanes = lanes
        super().__init__(
            {
                "valid": In(1),
                "value": In(32 * lanes),
                "left": In(5 * lanes),
                "multiplier": In(32 * lanes),
                "first_rounds": In(lanes),
                "away": In(1),
                "right": In(5 * lanes),
                "result": Out(32 * lanes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        valid = [self.valid] + [Signal(name=f"valid_{stage}") for stage in range(1, LATENCY)]
        m.d.sync += [valid[stage].eq(valid[stage - 1]) for stage in range(1, LATENCY)]
        for lane in range(self._lanes):
            shifted = Signal(signed(32), name=f"shifted_{lane}", reset_less=True)
            product = Signal(signed(64), name=f"product_{lane}", reset_less=True)
            high = Signal(signed(32), name=f"high_{lane}", reset_less=True)
            result = Signal(signed(32), name=f"result_{lane}", reset_less=True)
            with m.If(valid[0]):
                m.d.sync += shifted.eq(self.value.word_select(lane, 32) << self.left.word_select(lane, 5))
            with m.If(valid[1]):
                m.d.sync += product.eq(shifted * self.multiplier.word_select(lane, 32).as_signed())
            with m.If(valid[2]):
                # Halves round towards plus infinity. Only the product 2^62 leaves 32 bits: then bit 62 is set in a
                # positive sum.
                half = Mux(self.first_rounds[lane], Const(1 << 30, signed(32)), 0)
                rounded = (product + half)[:64]
                m.d.sync += high.eq(Mux(rounded[62] & ~rounded[63], INT32_MAX, rounded[31:63]))
            with m.If(valid[3]):
                # Halves round away from zero: one less for negative values; or up. Shifting twice the value
                # leaves the bit that rounds at the bottom, so that the half needs no shifter of its own.
                right = self.right.word_select(lane, 5)
                twice = Signal(signed(34), name=f"twice_{lane}")
                kept = Signal(signed(34), name=f"kept_{lane}")
                m.d.comb += twice.eq((high - (high[31] & right.any() & self.away)) << 1)
                m.d.comb += kept.eq((twice >> right) + 1)
                m.d.sync += result.eq(kept >> 1)
            m.d.comb += self.result.word_select(lane, 32).eq(result)
        return m
