"""Epilogue: sums to int8 lines, with table and residual, into the output ring.

::

    cycle  e          e + 1                e + 2 .. e + 5                 e + 6
           read ────► pass 0: sum + bias ─► requantise ─► zero point, ───► table ──► output queue
                 ┌──► pass 1: residual                    clamp, sum  ──┐
                 ├──► pass 2: value                                     │
                 └──► pass 3: both                                      │
                 └──────────────────────────────────────────────────────┘

Without a residual a line passes once, and a line issues every cycle. With one it passes four times through the same
five stages and issues at cycles 0 mod 4 from the first: since 5 = 1 mod 4, passes 1, 2, 3 enter at slots 1, 2, 3 mod
4, and no two passes meet. The residual is read in the cycle of the sums; if that read is not granted, the slot goes
unused.

A line issues only while fewer than ``QUEUE`` lines are between issue and write, so the queue always has room.
"""

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.accumulator import DrainSignature
from hw.interfaces import ScratchpadReadSignature, ScratchpadWriteSignature
from hw.requantise import Requantise
from hw.ring_address import wrap
from hw.spec.commands import PARAMETER_LINES
from hw.spec.config import NpuConfig
from hw.weight_loader import TABLE_WORDS, ParameterWriteSignature, TableWriteSignature
from hw.window import CURSOR_PASS, pixel_count_bits, ring_place

QUEUE = 8
ADD_LEFT_SHIFT = 20
"""Bits by which TFLite's int8 ADD raises its inputs."""

_ADD_FACTOR = data.StructLayout({"zero_point": signed(8), "multiplier": signed(32), "shift": signed(8)})


def epilogue_context(config: NpuConfig) -> data.StructLayout:
    """The fields of a CONVOLVE that the epilogue needs."""
    count = pixel_count_bits(config)
    stride = config.scratchpad_address_bits + 1
    return data.StructLayout(
        {
            "out_width": count,
            "out_rows": count,
            "out_row_stride": stride,
            "residual_row_stride": stride,
            "residual": 1,
            "load_table": 1,
            "single_rounding": 1,
            "output_zero_point": signed(8),
            "clamp_low": signed(8),
            "clamp_high": signed(8),
            "add_clamp_low": signed(8),
            "add_clamp_high": signed(8),
            "add_a": _ADD_FACTOR,
            "add_b": _ADD_FACTOR,
            "add_out": _ADD_FACTOR,
            "residual_place": ring_place(config),
            "output_place": ring_place(config),
            "residual_pass": CURSOR_PASS,
            "output_pass": CURSOR_PASS,
        }
    )


def left_part(shift: Value) -> Value:
    """Bits to shift left before the multiplication: the shift, if it is positive."""
    return Mux(shift[7], 0, shift[:5])


def right_part(shift: Value) -> Value:
    """Bits to shift right after the multiplication: the shift negated, if it is negative."""
    return Mux(shift[7], (-shift)[:5], 0)


class LineWalker(wiring.Component):
    """Offsets of the lines of a tile in a ring, row by row: the line is given by ``offset``, ``step`` goes to the next.

    ``load`` goes to the first, at ``start``. ``last`` holds at the last line.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        bits = config.scratchpad_address_bits
        count = pixel_count_bits(config)
        super().__init__(
            {
                "load": In(1),
                "start": In(bits),
                "step": In(1),
                "width": In(count),
                "rows": In(count),
                "row_stride": In(bits + 1),
                "ring_bytes": In(bits + 1),
                "offset": Out(bits),
                "last": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self._config.scratchpad_address_bits
        column = Signal.like(self.width)
        row = Signal.like(self.rows)
        row_start = Signal(bits)
        last_column = column + 1 == self.width
        next_row = Signal(bits)
        m.d.comb += [
            next_row.eq(wrap(row_start + self.row_stride, self.ring_bytes)),
            self.last.eq(last_column & (row + 1 == self.rows)),
        ]
        with m.If(self.step):
            m.d.sync += [
                column.eq(column + 1),
                self.offset.eq(wrap(self.offset + self._config.array.n, self.ring_bytes)),
            ]
            with m.If(last_column):
                m.d.sync += [column.eq(0), row.eq(row + 1), row_start.eq(next_row), self.offset.eq(next_row)]
        with m.If(self.load):
            m.d.sync += [column.eq(0), row.eq(0), row_start.eq(self.start), self.offset.eq(self.start)]
        return m


class Epilogue(wiring.Component):
    """Works on one command at a time: it *begins* once the half is completed and the parameters are there.

    ``completed`` from the accumulator, one pulse a half, halves in turn; ``drained`` pulses in the cycle in which a
    half's last line is read. ``begin`` pulses when a command begins (parameters are copied at its end), ``finished``
    in the cycle of its last write, with ``commit`` fields ``residual_pass`` and ``output_pass``. ``idle``: between
    commands. ``refused_residual``, ``refused_output``: an access was not granted.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        n = config.array.n
        super().__init__(
            {
                "i": In(stream.Signature(epilogue_context(config))),
                "completed": In(1),
                "drained": Out(1),
                "drain": Out(DrainSignature(config)),
                "parameters": In(ParameterWriteSignature(config)),
                "parameters_full": In(1),
                "table": In(TableWriteSignature()),
                "begin": Out(1),
                "finished": Out(1),
                "residual_pass": Out(CURSOR_PASS),
                "output_pass": Out(CURSOR_PASS),
                "idle": Out(1),
                "residual": Out(ScratchpadReadSignature(config, n)),
                "output": Out(ScratchpadWriteSignature(config, n)),
                "wrote": Out(1),
                "refused_residual": Out(1),
                "refused_output": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        n = config.array.n
        incoming = data.View(epilogue_context(config), self.i.payload)

        # --- commands ---
        context = Signal(epilogue_context(config))
        active = Signal()
        waiting = Signal(2)  # completed halves that have not begun
        m.d.comb += [
            self.begin.eq(self.i.valid & ~active & (waiting != 0) & self.parameters_full),
            self.i.ready.eq(self.begin),
            self.idle.eq(~active),
            self.residual_pass.eq(context.residual_pass),
            self.output_pass.eq(context.output_pass),
        ]
        m.d.sync += waiting.eq(waiting + self.completed - self.begin)
        with m.If(self.begin):
            m.d.sync += [context.eq(incoming), active.eq(1)]
        with m.Elif(self.finished):
            m.d.sync += active.eq(0)

        # --- parameters: shadow, copied when a command begins ---
        block = [Signal(n * 8, name=f"parameter_line_{row}", reset_less=True) for row in range(PARAMETER_LINES)]
        with m.If(self.parameters.valid), m.Switch(self.parameters.row):
            for row in range(PARAMETER_LINES):
                with m.Case(row):
                    m.d.sync += block[row].eq(self.parameters.line)
        bias = [Signal(32, name=f"bias_{c}", reset_less=True) for c in range(n)]
        multiplier = [Signal(32, name=f"multiplier_{c}", reset_less=True) for c in range(n)]
        left = [Signal(5, name=f"left_{c}", reset_less=True) for c in range(n)]
        right = [Signal(5, name=f"right_{c}", reset_less=True) for c in range(n)]
        with m.If(self.begin):
            for c in range(n):
                shift = block[8].word_select(c, 8)
                for byte in range(4):
                    m.d.sync += [
                        bias[c].word_select(byte, 8).eq(block[byte].word_select(c, 8)),
                        multiplier[c].word_select(byte, 8).eq(block[4 + byte].word_select(c, 8)),
                    ]
                m.d.sync += [left[c].eq(left_part(shift)), right[c].eq(right_part(shift))]

        # --- issue ---
        m.submodules.reads = reads = LineWalker(config)
        reading = Signal()
        half = Signal()
        index = Signal((config.accumulator_half - 1).bit_length())
        phase = Signal(2)
        under_way = Signal(range(QUEUE + 1))
        may_issue = Signal()
        issue = Signal()
        parity = Signal()
        m.d.comb += [
            reads.load.eq(self.begin),
            reads.start.eq(incoming.residual_place.start),
            reads.step.eq(issue),
            reads.width.eq(context.out_width),
            reads.rows.eq(context.out_rows),
            reads.row_stride.eq(context.residual_row_stride),
            reads.ring_bytes.eq(context.residual_place.ring_bytes),
            may_issue.eq(reading & (under_way != QUEUE) & (~context.residual | (phase == 0))),
            self.residual.valid.eq(may_issue & context.residual),
            self.residual.address.eq(context.residual_place.base + reads.offset),
            issue.eq(may_issue & (~context.residual | self.residual.ready)),
            self.refused_residual.eq(self.residual.valid & ~self.residual.ready),
            self.drain.valid.eq(issue),
            self.drain.half.eq(half),
            self.drain.index.eq(index),
            self.drained.eq(issue & reads.last),
        ]
        m.d.sync += phase.eq(phase + 1)
        with m.If(issue):
            m.d.sync += [index.eq(index + 1), parity.eq(~parity)]
        with m.If(self.drained):
            m.d.sync += [reading.eq(0), half.eq(~half)]
        with m.If(self.begin):
            m.d.sync += [reading.eq(1), index.eq(0), phase.eq(0)]

        # --- passes: what is in each stage ---
        entry = data.StructLayout({"valid": 1, "number": 2, "parity": 1})
        stages = [Signal(entry, name=f"stage_{stage}") for stage in range(1, 7)]
        first, second, third, fourth, fifth, result = stages  # ``result``: the cycle after stage 5, e + 6 of pass 0
        read = Signal(entry)
        m.d.sync += [read.valid.eq(issue), read.parity.eq(parity)]
        again = result.valid & context.residual & (result.number != 3)
        leaves = Signal()
        m.d.comb += [
            leaves.eq(result.valid & (~context.residual | (result.number == 3))),
            first.valid.eq(read.valid | again),
            first.number.eq(Mux(read.valid, 0, result.number + 1)),
            first.parity.eq(Mux(read.valid, read.parity, result.parity)),
        ]
        m.d.sync += [stages[stage].eq(stages[stage - 1]) for stage in range(1, 6)]

        # --- what waits beside the pipeline for its pass, by parity of its line ---

        def held_by_parity(name: str, bits: int) -> list[list[Signal]]:
            return [
                [Signal(signed(bits), name=f"{name}_{parity}_{c}", reset_less=True) for c in range(n)]
                for parity in range(2)
            ]

        residuals = held_by_parity("residual", 8)
        values = held_by_parity("value", 8)
        scaled = held_by_parity("scaled", 32)

        m.submodules.requantise = requantise = Requantise(n)
        m.d.comb += [
            requantise.valid.eq(first.valid),
            requantise.away.eq((fourth.number != 0) | ~context.single_rounding),
        ]
        sums = [Signal(signed(32), name=f"sum_{c}", reset_less=True) for c in range(n)]
        bytes_out = [Signal(8, name=f"byte_{c}", reset_less=True) for c in range(n)]
        results = [Signal(signed(8), name=f"result_{c}") for c in range(n)]
        table_read = Signal()
        m.d.comb += table_read.eq(fifth.valid & (fifth.number == 0) & context.load_table)
        from_table = Signal()
        with m.If(fifth.valid):
            m.d.sync += from_table.eq(table_read)

        # The constants of the addition by pass, once for all lanes, in the stages that use them.
        def by_pass(number: Value, a: Value, b: Value, both: Value) -> Value:
            return Mux(number[0], Mux(number[1], both, b), a)

        add_a, add_b, add_out = context.add_a, context.add_b, context.add_out
        add_left = Signal(5)
        add_multiplier = Signal(32)
        add_right = Signal(5)
        m.d.comb += [
            add_left.eq(by_pass(first.number, *(left_part(add.shift) for add in (add_a, add_b, add_out)))),
            add_multiplier.eq(by_pass(second.number, add_a.multiplier, add_b.multiplier, add_out.multiplier)),
            add_right.eq(by_pass(fourth.number, *(right_part(add.shift) for add in (add_a, add_b, add_out)))),
        ]
        first_plain = first.number == 0
        second_plain = second.number == 0
        third_single = (third.number == 0) & context.single_rounding
        fourth_plain = fourth.number == 0
        last_zero_point = Signal(signed(8))
        low = Signal(signed(8))
        high = Signal(signed(8))
        m.d.comb += [
            last_zero_point.eq(Mux(fifth.number == 0, context.output_zero_point, add_out.zero_point)),
            low.eq(Mux(fifth.number == 0, context.clamp_low, context.add_clamp_low)),
            high.eq(Mux(fifth.number == 0, context.clamp_high, context.add_clamp_high)),
        ]

        for c in range(n):
            # Stage 1.
            value = Signal(32, name=f"entering_{c}")
            with m.Switch(first.number):
                with m.Case(0):
                    m.d.comb += value.eq(self.drain.data.word_select(c, 32) + bias[c])
                with m.Case(1):
                    held = Mux(first.parity, residuals[1][c], residuals[0][c])
                    m.d.comb += value.eq((held - add_b.zero_point) << ADD_LEFT_SHIFT)
                with m.Case(2):
                    held = Mux(first.parity, values[1][c], values[0][c])
                    m.d.comb += value.eq((held - add_a.zero_point) << ADD_LEFT_SHIFT)
                with m.Case(3):
                    m.d.comb += value.eq(sums[c])
            m.d.comb += [
                requantise.value.word_select(c, 32).eq(value),
                requantise.left.word_select(c, 5).eq(Mux(first_plain, left[c], add_left)),
                # Stages 2 to 4.
                requantise.first_rounds[c].eq(~third_single | ~right[c].any()),
                requantise.multiplier.word_select(c, 32).eq(Mux(second_plain, multiplier[c], add_multiplier)),
                requantise.right.word_select(c, 5).eq(Mux(fourth_plain, right[c], add_right)),
            ]

            # Stage 5.
            product = requantise.result.word_select(c, 32).as_signed()
            moved = Signal(signed(33), name=f"moved_{c}")
            clamped = Signal(signed(8), name=f"clamped_{c}")
            m.d.comb += moved.eq(product + last_zero_point)
            with m.If(moved < low):
                m.d.comb += clamped.eq(low)
            with m.Elif(moved > high):
                m.d.comb += clamped.eq(high)
            with m.Else():
                m.d.comb += clamped.eq(moved)
            with m.If(fifth.valid), m.Switch(fifth.number):
                with m.Case(1):
                    with m.If(fifth.parity):
                        m.d.sync += scaled[1][c].eq(product)
                    with m.Else():
                        m.d.sync += scaled[0][c].eq(product)
                with m.Case(2):
                    m.d.sync += sums[c].eq(product + Mux(fifth.parity, scaled[1][c], scaled[0][c]))
                with m.Default():
                    m.d.sync += bytes_out[c].eq(clamped)

            # The table answers in the cycle after stage 5.
            table = memory.Memory(shape=32, depth=TABLE_WORDS, init=[])
            m.submodules[f"table_{c}"] = table
            table_write = table.write_port()
            table_port = table.read_port()
            m.d.comb += [
                table_write.en.eq(self.table.valid),
                table_write.addr.eq(self.table.word),
                table_write.data.eq(self.table.data),
                table_port.en.eq(table_read),
                table_port.addr.eq((clamped ^ 0x80)[2:8]),
                results[c].eq(Mux(from_table, table_port.data.word_select(bytes_out[c][:2], 8), bytes_out[c])),
            ]

        with m.If(read.valid & context.residual):
            for p in range(2):
                with m.If(read.parity == p):
                    m.d.sync += [residuals[p][c].eq(self.residual.data.word_select(c, 8)) for c in range(n)]
        with m.If(result.valid & (result.number == 0) & context.residual):
            for p in range(2):
                with m.If(result.parity == p):
                    m.d.sync += [values[p][c].eq(results[c]) for c in range(n)]

        # --- output queue and writes ---
        m.submodules.queue = queue = fifo.SyncFIFO(width=n * 8, depth=QUEUE)
        m.submodules.writes = writes = LineWalker(config)
        m.d.comb += [
            queue.w_en.eq(leaves),
            [queue.w_data.word_select(c, 8).eq(results[c]) for c in range(n)],
            self.output.valid.eq(queue.r_rdy),
            self.output.data.eq(queue.r_data),
            self.output.strobe.eq(Const(1, 1).replicate(n)),
            self.output.address.eq(context.output_place.base + writes.offset),
            self.wrote.eq(queue.r_rdy & self.output.ready),
            self.refused_output.eq(queue.r_rdy & ~self.output.ready),
            queue.r_en.eq(self.wrote),
            writes.load.eq(self.begin),
            writes.start.eq(incoming.output_place.start),
            writes.step.eq(self.wrote),
            writes.width.eq(context.out_width),
            writes.rows.eq(context.out_rows),
            writes.row_stride.eq(context.out_row_stride),
            writes.ring_bytes.eq(context.output_place.ring_bytes),
            self.finished.eq(self.wrote & writes.last),
        ]
        m.d.sync += under_way.eq(under_way + issue - self.wrote)
        return m
