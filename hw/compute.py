"""The compute engine: CONVOLVE commands, four parts that work on successive commands.

::

              ┌─► weight loader ──► shadow weights ─┐   ┌─ shadow parameters, tables ─┐
    command ──┼─► streamer ───────► lines ────────► array ──► accumulator ──► epilogue ──► output
              └─► epilogue                                    (two halves)       ▲
                                                                   residual ─────┘

A command enters the queues of all parts that it concerns at once, and retires when its last part has finished and its
commits are out. Commits of the five operands wait in one register each; the lowest operand goes first.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.accumulator import Accumulator
from hw.array import Array
from hw.epilogue import Epilogue, epilogue_context
from hw.interfaces import (
    CAUSE_FLAGS,
    RetireSignature,
    RingCommitSignature,
    ScratchpadReadSignature,
    ScratchpadWriteSignature,
    issued_command,
)
from hw.spec.commands import COMMAND, CONVOLVE, OPERANDS, ComputeOperand, Cursor
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS
from hw.streamer import Streamer
from hw.weight_loader import WeightLoader, loader_context
from hw.window import CURSOR_PASS, window_context

PART_QUEUE = 2
"""Commands that wait in front of the loader and of the streamer."""
EPILOGUE_QUEUE = 3
INSIDE = 8
"""Commands accepted and not retired."""


class Compute(wiring.Component):
    """Executes CONVOLVE commands; see ``docs/timing/compute.md``.

    The commands are already checked: no field is out of range. ``clear`` (given only while ``idle``, and at the end of
    every job) forgets the cached table, whose tag means something only within its program.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        n = config.array.n
        super().__init__(
            {
                "i": In(stream.Signature(issued_command(config))),
                "pixels": Out(ScratchpadReadSignature(config, n)),
                "residual": Out(ScratchpadReadSignature(config, n)),
                "weights": Out(ScratchpadReadSignature(config, n)),
                "output": Out(ScratchpadWriteSignature(config, n)),
                "commit": Out(RingCommitSignature()),
                "retire": Out(RetireSignature()),
                "idle": Out(1),
                "clear": In(1),
                "flags": Out(CAUSE_FLAGS),
                "lines_streamed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        m.submodules.loader = loader = WeightLoader(config)
        m.submodules.streamer = streamer = Streamer(config)
        m.submodules.array = array = Array(config)
        m.submodules.accumulator = accumulator = Accumulator(config)
        m.submodules.epilogue = epilogue = Epilogue(config)

        # --- a command into the queues ---
        issued = data.View(issued_command(config), self.i.payload)
        body = data.View(CONVOLVE, data.View(COMMAND, issued.command).body[: CONVOLVE.size])

        def place(operand: ComputeOperand) -> dict[str, object]:
            where = issued.operand[operand.value]
            return {"base": where.base, "start": where.start, "ring_bytes": where.ring_bytes}

        def cursor(operand: ComputeOperand) -> dict[str, object]:
            what = issued.operand[operand.value]
            return {"ring": what.ring, "cursor": what.cursor, "advance": what.advance}

        def fields(*names: str) -> dict[str, object]:
            return {name: getattr(body, name) for name in names}

        streaming = fields(
            "out_width", "out_rows", "kernel_width", "kernel_height", "in_blocks", "stride_x", "stride_y",
            "dilation_x", "dilation_y", "x_origin", "y_origin", "in_width", "in_rows", "upsample",
        )  # fmt: skip
        streaming |= {
            "pixel_stride": body.in_pixel_stride,
            "row_stride": body.in_row_stride,
            "block_stride": body.in_block_stride,
            "place": place(ComputeOperand.INPUT),
            "tag": fields("accumulate_first", "accumulate_last", "maximum", "pad_value")
            | {"input": cursor(ComputeOperand.INPUT)},
        }
        loading = fields(
            "maximum", "accumulate_last", "load_table", "diagonal", "table_tag", "kernel_width", "kernel_height",
            "in_blocks",
        )  # fmt: skip
        loading |= {
            "weights_place": place(ComputeOperand.WEIGHTS),
            "table_place": place(ComputeOperand.TABLE),
            "weights": cursor(ComputeOperand.WEIGHTS),
            "table": cursor(ComputeOperand.TABLE),
        }
        ending = fields(
            "out_width", "out_rows", "out_row_stride", "residual_row_stride", "residual", "load_table",
            "single_rounding", "output_zero_point", "clamp_low", "clamp_high", "add_clamp_low", "add_clamp_high",
        )  # fmt: skip
        for add in ("a", "b", "out"):
            ending[f"add_{add}"] = {
                part: getattr(body, f"add_{part}_{add}") for part in ("zero_point", "multiplier", "shift")
            }
        ending |= {
            "residual_place": place(ComputeOperand.RESIDUAL),
            "output_place": place(ComputeOperand.OUTPUT),
            "residual_pass": cursor(ComputeOperand.RESIDUAL),
            "output_pass": cursor(ComputeOperand.OUTPUT),
        }

        def assign(view: data.View, values: dict[str, object]) -> list[object]:
            statements: list[object] = []
            for name, value in values.items():
                target = getattr(view, name)
                statements += assign(target, value) if isinstance(value, dict) else [target.eq(value)]
            return statements

        accept = Signal()
        order_layout = data.StructLayout({"index": INDEX_BITS, "accumulate_last": 1})
        queues: list[tuple[str, data.StructLayout, int, dict[str, object], object, stream.Interface | None]] = [
            ("loader_queue", loader_context(config), PART_QUEUE, loading, 1, loader.i),
            ("streamer_queue", window_context(config), PART_QUEUE, streaming, 1, streamer.i),
            ("epilogue_queue", epilogue_context(config), EPILOGUE_QUEUE, ending, body.accumulate_last, epilogue.i),
            (
                "order",
                order_layout,
                INSIDE,
                {"index": issued.index, "accumulate_last": body.accumulate_last},
                1,
                None,
            ),
        ]
        room = []
        order = None
        for name, layout, depth, values, wanted, target in queues:
            entry = Signal(layout, name=f"{name}_entry")
            m.d.comb += assign(entry, values)
            m.submodules[name] = queue = fifo.SyncFIFO(width=layout.size, depth=depth)
            m.d.comb += [queue.w_data.eq(entry), queue.w_en.eq(accept & wanted)]
            room.append(queue.w_rdy)
            if target is None:
                order = queue
            else:
                m.d.comb += [
                    target.valid.eq(queue.r_rdy),
                    target.payload.eq(queue.r_data),
                    queue.r_en.eq(target.ready),
                ]
        assert order is not None
        m.d.comb += self.i.ready.eq(Cat(room).all())
        m.d.comb += accept.eq(self.i.ready & self.i.valid)

        # --- between the parts ---
        connect(m, streamer.feed, array.feed)
        connect(m, loader.weights, array.weights)
        connect(m, array.o, accumulator.i)
        connect(m, epilogue.drain, accumulator.drain)
        connect(m, loader.parameters, epilogue.parameters)
        connect(m, loader.table, epilogue.table)
        connect(m, streamer.pixels, flipped(self.pixels))
        connect(m, loader.port, flipped(self.weights))
        connect(m, epilogue.residual, flipped(self.residual))
        connect(m, epilogue.output, flipped(self.output))
        m.d.comb += [
            streamer.shadow_full.eq(loader.shadow_full),
            loader.swap.eq(streamer.feed.swap),
            streamer.drained.eq(epilogue.drained),
            loader.begin.eq(epilogue.begin),
            loader.epilogue_idle.eq(epilogue.idle),
            loader.clear.eq(self.clear),
            epilogue.parameters_full.eq(loader.parameters_full),
            epilogue.completed.eq(accumulator.completed),
        ]

        # --- commits ---
        sources = {
            ComputeOperand.INPUT: (streamer.commit_valid, streamer.commit),
            ComputeOperand.WEIGHTS: (loader.commit_weights, loader.weights_pass),
            ComputeOperand.TABLE: (loader.commit_table, loader.table_pass),
            ComputeOperand.RESIDUAL: (epilogue.finished, epilogue.residual_pass),
            ComputeOperand.OUTPUT: (epilogue.finished, epilogue.output_pass),
        }
        pending = Signal(OPERANDS)
        for operand in reversed(ComputeOperand):  # the last assignment wins: operand 0 goes first
            valid, what = sources[operand]
            held = Signal(CURSOR_PASS, name=f"commit_{operand.name.lower()}")
            with m.If(pending[operand.value]):
                m.d.comb += [
                    self.commit.ring.eq(held.ring),
                    self.commit.cursor.eq(held.cursor),
                    self.commit.advance.eq(held.advance),
                ]
            goes = pending[operand.value] & (pending[: operand.value] == 0)
            with m.If(valid & (what.cursor != Cursor.NONE)):
                m.d.sync += [held.eq(what), pending[operand.value].eq(1)]
            with m.Elif(goes):
                m.d.sync += pending[operand.value].eq(0)
        m.d.comb += self.commit.valid.eq(pending.any())

        # --- retirement, in order ---
        oldest = Signal(order_layout)
        streamed = Signal(range(INSIDE + 1))  # commands without an epilogue that have finished
        drained = Signal(range(INSIDE + 1))
        retires_streamed = Signal()
        retires_drained = Signal()
        m.d.comb += [
            oldest.eq(order.r_data),
            retires_streamed.eq(order.r_rdy & ~oldest.accumulate_last & (streamed != 0) & ~pending.any()),
            retires_drained.eq(order.r_rdy & oldest.accumulate_last & (drained != 0) & ~pending.any()),
            order.r_en.eq(retires_streamed | retires_drained),
            self.retire.valid.eq(order.r_en),
            self.retire.index.eq(oldest.index),
            self.idle.eq(~order.r_rdy),
        ]
        m.d.sync += [
            streamed.eq(streamed + streamer.finished - retires_streamed),
            drained.eq(drained + epilogue.finished - retires_drained),
        ]

        # --- counters ---
        m.d.comb += [
            self.lines_streamed.eq(streamer.issued),
            self.flags.busy.eq(streamer.issued | epilogue.wrote),
            self.flags.bank_conflict.eq(
                streamer.refused | loader.refused | epilogue.refused_residual | epilogue.refused_output
            ),
            self.flags.pipeline.eq(~self.idle),
        ]
        return m
