"""The multiply-accumulate array: for each output column the dot product of N inputs with its N weights.

::

    cycle   t          t + 1        t + 2                   t + 3
            feed ────► line ──────► products, sums of 16 ──► tree, correction = sums
                          └───────► line ─────────────────► line, sign-extended (maximum)

A line a cycle; sums follow a valid ``feed`` by three cycles. Weights arrive a line a cycle into *shadow* weights, which
``feed.swap`` makes *active* all at once: a swap in cycle s counts from the line valid on ``feed`` in cycle s + 1. Lines
of the next tile may be written from cycle s + 2 on; the last line of this one in cycle s + 1 at the latest.

Bytes are held and multiplied unsigned, offset by 128, which needs no sign extension at any multiplier. With u = x +
128 and v = w + 128, ``sum(x w) = sum(u v) - 128 (sum(x) + sum(v))``: ``sum(x)`` is shared by all columns, ``sum(v)``
is added up while the weights arrive, so the lines of a tile must be written in order, line 0 first. A tile that is a
diagonal arrives as one line.
"""

import functools

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.spec.config import NpuConfig
from hw.streamer import FeedSignature, sum_tag

GROUP = 16
"""Products that are summed in the cycle of their multiplication."""
LATENCY = 3
"""Cycles from a line on ``feed`` to its sums."""
ZERO = 0x80
"""A weight of 0 as it is held."""


def _tree(terms: list[Value]) -> Value:
    while len(terms) > 1:
        terms = [functools.reduce(lambda a, b: a + b, terms[i : i + 2]) for i in range(0, len(terms), 2)]
    return terms[0]


class WeightWriteSignature(wiring.Signature):
    """A weight line into the shadow weights; with ``diagonal`` it is all of them, weight (c, c) in lane c."""

    def __init__(self, config: NpuConfig):
        n = config.array.n
        super().__init__({"valid": Out(1), "diagonal": Out(1), "row": Out((n - 1).bit_length()), "line": Out(n * 8)})


class SumsSignature(wiring.Signature):
    """Sums for the accumulator. ``early`` and ``early_tag`` announce them a cycle before, to read what they add to."""

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "early": Out(1),
                "early_tag": Out(sum_tag(config)),
                "valid": Out(1),
                "tag": Out(sum_tag(config)),
                "sums": Out(config.array.n * 32),
            }
        )


class Array(wiring.Component):
    """See the module's text; the tag of a line comes out with its sums."""

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "feed": In(FeedSignature(config)),
                "weights": In(WeightWriteSignature(config)),
                "o": Out(SumsSignature(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n = self._config.array.n
        group = min(GROUP, n)
        total_bits = (n * 255).bit_length()  # of a column's sum of v

        # Every weight a register of its own: the generated simulation then reads it without shifting and masking.
        shadow = [[Signal(8, name=f"shadow_{r}_{c}", reset_less=True) for c in range(n)] for r in range(n)]
        active = [[Signal(8, name=f"active_{r}_{c}", reset_less=True) for c in range(n)] for r in range(n)]
        shadow_total = [Signal(total_bits, name=f"shadow_total_{c}", reset_less=True) for c in range(n)]
        active_total = [Signal(total_bits, name=f"active_total_{c}", reset_less=True) for c in range(n)]
        arriving = [self.weights.line.word_select(c, 8) ^ 0x80 for c in range(n)]
        with m.If(self.weights.valid & self.weights.diagonal):
            for r in range(n):
                m.d.sync += [shadow[r][c].eq(arriving[c] if r == c else ZERO) for c in range(n)]
            m.d.sync += [shadow_total[c].eq(arriving[c] + (n - 1) * ZERO) for c in range(n)]
        with m.Elif(self.weights.valid):
            with m.Switch(self.weights.row):
                for r in range(n):
                    with m.Case(r):
                        m.d.sync += [shadow[r][c].eq(arriving[c]) for c in range(n)]
            first = self.weights.row == 0
            m.d.sync += [shadow_total[c].eq(Mux(first, 0, shadow_total[c]) + arriving[c]) for c in range(n)]
        # A swap waits a cycle: the last line issued before it is then past its products.
        swap = Signal()
        m.d.sync += swap.eq(self.feed.swap)
        with m.If(swap):
            for r in range(n):
                m.d.sync += [active[r][c].eq(shadow[r][c]) for c in range(n)]
            m.d.sync += [active_total[c].eq(shadow_total[c]) for c in range(n)]

        line_valid = Signal()
        line_tag = Signal(sum_tag(self._config))
        line = Signal(n * 8, reset_less=True)
        m.d.sync += line_valid.eq(self.feed.valid)
        with m.If(self.feed.valid):
            m.d.sync += [line.eq(self.feed.line), line_tag.eq(self.feed.tag)]

        group_valid = Signal()
        group_tag = Signal(sum_tag(self._config))
        group_line = Signal(n * 8, reset_less=True)
        corrections = [Signal(signed(total_bits + 2), name=f"correction_{c}", reset_less=True) for c in range(n)]
        groups: list[list[Signal]] = [[] for _ in range(n)]
        m.d.sync += group_valid.eq(line_valid)
        with m.If(line_valid):
            m.d.sync += group_tag.eq(line_tag)
        with m.If(line_valid & line_tag.maximum):
            m.d.sync += group_line.eq(line)
        with m.If(line_valid & ~line_tag.maximum):
            inputs = [line.word_select(r, 8) ^ 0x80 for r in range(n)]
            line_total = _tree([line.word_select(r, 8).as_signed() for r in range(n)])
            for c in range(n):
                m.d.sync += corrections[c].eq(line_total + active_total[c])
                for start in range(0, n, group):
                    products: list[Value] = [inputs[r] * active[r][c] for r in range(start, start + group)]
                    partial = Signal(16 + (group - 1).bit_length(), name=f"partial_{c}_{start}", reset_less=True)
                    m.d.sync += partial.eq(functools.reduce(lambda a, b: a + b, products))
                    groups[c].append(partial)

        sums = [Signal(signed(16 + (n - 1).bit_length() + 1), name=f"sum_{c}", reset_less=True) for c in range(n)]
        m.d.sync += self.o.valid.eq(group_valid)
        with m.If(group_valid):
            m.d.sync += self.o.tag.eq(group_tag)
            with m.If(group_tag.maximum):
                m.d.sync += [sums[c].eq(group_line.word_select(c, 8).as_signed()) for c in range(n)]
            with m.Else():
                m.d.sync += [sums[c].eq(_tree(list(groups[c])) - (corrections[c] << 7)) for c in range(n)]
        m.d.comb += [self.o.early.eq(group_valid), self.o.early_tag.eq(group_tag)]
        m.d.comb += [self.o.sums.word_select(c, 32).eq(sums[c]) for c in range(n)]
        return m
