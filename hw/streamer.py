"""Streamer: reads the input line of every output pixel of every tile and hands it to the array.

::

    context ──► window ──► line ──┬─► scratchpad read ──► feed.line  (the cycle after)
                                  └─► pad_value ────────►
                            swap ──► array, weight loader

A line *issues* in the cycle in which its read is granted, or at once if it lies outside the bounds; the line is on
``feed`` in the next cycle. A read that is not granted is asked again: one bubble a refusal, nothing else.

A line that begins a tile waits for the shadow weights (not with ``maximum``), and issues at the earliest two cycles
after the line that began the tile before: the accumulator needs that to see its own last write. A line waits while
the half it adds to still drains.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.interfaces import ScratchpadReadSignature
from hw.spec.config import NpuConfig
from hw.window import CURSOR_PASS, Window, window_context


def sum_tag(config: NpuConfig) -> data.StructLayout:
    """What the accumulator needs to know of a line."""
    return data.StructLayout(
        {
            "index": (config.accumulator_half - 1).bit_length(),
            "half": 1,
            "clear": 1,  # the sum replaces what the accumulator holds
            "maximum": 1,
            "complete": 1,  # the last line: the half goes to the epilogue
        }
    )


class FeedSignature(wiring.Signature):
    """Lines into the array. ``swap`` comes with the *issue* of a line: the cycle before that line is valid here."""

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "swap": Out(1),
                "valid": Out(1),
                "line": Out(config.array.n * 8),
                "tag": Out(sum_tag(config)),
            }
        )


class Streamer(wiring.Component):
    """Streams commands in order, without a gap between tiles or commands whose weights are there.

    Ports besides the obvious: ``shadow_full`` from the weight loader; ``drained``, a pulse from the epilogue in the
    cycle in which it reads the last line of a half; ``commit_valid`` with ``commit`` in the cycle in which a
    command's last line issues; ``finished`` in that cycle if no epilogue follows; ``refused`` when a read was not
    granted.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(window_context(config))),
                "pixels": Out(ScratchpadReadSignature(config, config.array.n)),
                "feed": Out(FeedSignature(config)),
                "shadow_full": In(1),
                "drained": In(1),
                "commit_valid": Out(1),
                "commit": Out(CURSOR_PASS),
                "finished": Out(1),
                "issued": Out(1),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        m.submodules.window = window = Window(config)
        connect(m, flipped(self.i), window.i)
        line = window.o.payload

        half = Signal()
        draining = Signal(2)
        drain_half = Signal()
        tile_began = Signal()  # in the cycle before

        begins = line.tile_first
        go = Signal()
        issue = Signal()
        m.d.comb += [
            go.eq(
                window.o.valid
                & (~begins | line.tag.maximum | self.shadow_full)
                & ~(begins & tile_began)
                & ~draining.bit_select(half, 1)
            ),
            self.pixels.valid.eq(go & line.inside),
            self.pixels.address.eq(line.address),
            issue.eq(go & (~line.inside | self.pixels.ready)),
            window.o.ready.eq(issue),
            self.issued.eq(issue),
            self.refused.eq(self.pixels.valid & ~self.pixels.ready),
            self.feed.swap.eq(issue & begins & ~line.tag.maximum),
            self.commit_valid.eq(issue & line.last),
            self.commit.eq(line.tag.input),
            self.finished.eq(issue & line.last & ~line.tag.accumulate_last),
        ]
        m.d.sync += tile_began.eq(issue & begins)

        completes = line.last & line.tag.accumulate_last
        with m.If(self.drained):
            m.d.sync += [draining.bit_select(drain_half, 1).eq(0), drain_half.eq(~drain_half)]
        with m.If(issue & completes):
            m.d.sync += [draining.bit_select(half, 1).eq(1), half.eq(~half)]

        # The cycle after issue: the data arrive.
        read = Signal()
        pad_value = Signal(8)
        m.d.sync += self.feed.valid.eq(issue)
        with m.If(issue):
            m.d.sync += [
                read.eq(line.inside),
                pad_value.eq(line.tag.pad_value),
                self.feed.tag.index.eq(line.index),
                self.feed.tag.half.eq(half),
                self.feed.tag.clear.eq(line.tag.accumulate_first & line.command_tile),
                self.feed.tag.maximum.eq(line.tag.maximum),
                self.feed.tag.complete.eq(completes),
            ]
        m.d.comb += self.feed.line.eq(Mux(read, self.pixels.data, pad_value.replicate(config.array.n)))
        return m
