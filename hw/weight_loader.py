"""Weight loader: the stationary operands of each command, from the scratchpad into array and epilogue.

::

    command: tile 0 ─► parameter block ─► table (unless cached) ─► tile 1 ─► tile 2 ...
             N lines   9 lines            256 / N lines            N lines    (one line if ``diagonal``)
                │          │                  │
                ▼          ▼                  ▼  four entries a cycle
             shadow    shadow             tables
             weights   parameters

Each part waits until its place is free: shadow weights until they are swapped in, shadow parameters until the
epilogue has begun the command before, the table until the epilogue has finished everything before. One line is read a
cycle; it arrives a cycle after its grant. Only a command with ``accumulate_last`` has parameters and perhaps a table;
only one without ``maximum`` has tiles.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.array import WeightWriteSignature
from hw.interfaces import ScratchpadReadSignature
from hw.ring_address import wrap
from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES
from hw.spec.config import NpuConfig
from hw.window import CURSOR_PASS, ring_place

TABLE_ENTRIES_PER_WORD = 4
TABLE_WORDS = TABLE_BYTES // TABLE_ENTRIES_PER_WORD


def loader_context(config: NpuConfig) -> data.StructLayout:
    """The fields of a CONVOLVE that the loader needs."""
    return data.StructLayout(
        {
            "maximum": 1,
            "accumulate_last": 1,
            "load_table": 1,
            "diagonal": 1,
            "table_tag": 16,
            "kernel_width": 8,
            "kernel_height": 8,
            "in_blocks": 16,
            "weights_place": ring_place(config),
            "table_place": ring_place(config),
            "weights": CURSOR_PASS,
            "table": CURSOR_PASS,
        }
    )


class ParameterWriteSignature(wiring.Signature):
    """A line of the parameter block into the shadow parameters."""

    def __init__(self, config: NpuConfig):
        bits = (PARAMETER_LINES - 1).bit_length()
        super().__init__({"valid": Out(1), "row": Out(bits), "line": Out(config.array.n * 8)})


class TableWriteSignature(wiring.Signature):
    """Four entries of the activation table, for all channels."""

    def __init__(self) -> None:
        super().__init__(
            {"valid": Out(1), "word": Out((TABLE_WORDS - 1).bit_length()), "data": Out(TABLE_ENTRIES_PER_WORD * 8)}
        )


class _State(enum.Enum, shape=2):
    IDLE = 0
    TILE = 1
    PARAMETERS = 2
    TABLE = 3


class WeightLoader(wiring.Component):
    """Loads for commands in order, one at a time.

    ``shadow_full``: the shadow weights hold the next tile, or will when a swap that issues now takes effect; ``swap``
    from the streamer frees them. ``parameters_full``: parameters and table of the next command of the epilogue are
    there; ``begin`` from the epilogue frees the parameters. ``epilogue_idle``: the epilogue works on nothing.
    ``commit_weights`` and ``commit_table`` pulse, with what they pass, in the cycle of the command's last grant.
    ``clear`` forgets the cached table. ``refused``: a read was not granted.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(loader_context(config))),
                "port": Out(ScratchpadReadSignature(config, config.array.n)),
                "weights": Out(WeightWriteSignature(config)),
                "parameters": Out(ParameterWriteSignature(config)),
                "table": Out(TableWriteSignature()),
                "shadow_full": Out(1),
                "swap": In(1),
                "parameters_full": Out(1),
                "begin": In(1),
                "epilogue_idle": In(1),
                "commit_weights": Out(1),
                "weights_pass": Out(CURSOR_PASS),
                "commit_table": Out(1),
                "table_pass": Out(CURSOR_PASS),
                "clear": In(1),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n = self._config.array.n
        bits = self._config.scratchpad_address_bits
        words_per_line = n // TABLE_ENTRIES_PER_WORD
        table_lines = TABLE_BYTES // n

        state = Signal(_State)
        context = Signal(loader_context(self._config))
        incoming = data.View(loader_context(self._config), self.i.payload)
        row = Signal(range(max(n, table_lines, PARAMETER_LINES)))
        tap_x = Signal(8)
        tap_y = Signal(8)
        block = Signal(16)
        tile_offset = Signal(bits)
        other_offset = Signal(bits)  # parameters, then table

        shadow_full = Signal()
        parameters_taken = Signal()  # from the last parameter line read to the epilogue's begin
        parameters_read = Signal()
        table_pending = Signal()  # a table is being read or written
        table_valid = Signal()
        table_tag = Signal(16)
        words_left = Signal(range(words_per_line + 1))
        table_arrives = Signal()

        place = Mux(state == _State.TABLE, context.table_place.as_value(), context.weights_place.as_value())
        place = data.View(ring_place(self._config), place)
        offset = Mux(state == _State.TILE, tile_offset, other_offset)
        next_offset = Signal(bits)
        m.d.comb += next_offset.eq(wrap(offset + n, place.ring_bytes))

        may_read = Signal()
        grant = Signal()
        m.d.comb += [
            self.port.valid.eq(may_read),
            self.port.address.eq(place.base + offset),
            grant.eq(may_read & self.port.ready),
            self.refused.eq(may_read & ~self.port.ready),
            self.shadow_full.eq(shadow_full),
            self.weights_pass.eq(context.weights),
            self.table_pass.eq(context.table),
        ]

        last_tap_x = tap_x + 1 == context.kernel_width
        last_tap_y = tap_y + 1 == context.kernel_height
        last_tile = last_tap_x & last_tap_y & (block + 1 == context.in_blocks)
        first_tile = (tap_x == 0) & (tap_y == 0) & (block == 0)
        table_wanted = context.load_table & ~(table_valid & (table_tag == context.table_tag))
        last_line = context.diagonal | (row == n - 1)  # of a tile
        tiles_done = Signal()  # when the epilogue's part is read, no tile remains
        done = Signal()  # the last line of the command is granted
        nothing_to_read = Signal()  # the command before: a maximum that goes on
        m.d.sync += nothing_to_read.eq(0)
        with m.If(nothing_to_read):
            m.d.comb += done.eq(1)
        with m.If(grant):
            m.d.sync += row.eq(row + 1)
            with m.If(state == _State.TILE):
                m.d.sync += tile_offset.eq(next_offset)
            with m.Else():
                m.d.sync += other_offset.eq(next_offset)

        with m.Switch(state):
            with m.Case(_State.IDLE):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    block_bytes = Mux(incoming.accumulate_last, PARAMETER_LINES * n, 0)
                    m.d.sync += [
                        context.eq(incoming),
                        row.eq(0),
                        tap_x.eq(0),
                        tap_y.eq(0),
                        block.eq(0),
                        other_offset.eq(incoming.weights_place.start),
                        tile_offset.eq(
                            wrap(incoming.weights_place.start + block_bytes, incoming.weights_place.ring_bytes)
                        ),
                        tiles_done.eq(incoming.maximum),
                    ]
                    with m.If(~incoming.maximum):
                        m.d.sync += state.eq(_State.TILE)
                    with m.Elif(incoming.accumulate_last):
                        m.d.sync += state.eq(_State.PARAMETERS)
                    with m.Else():
                        m.d.sync += nothing_to_read.eq(1)
            with m.Case(_State.TILE):
                m.d.comb += may_read.eq(~shadow_full)
                with m.If(grant & last_line):
                    m.d.sync += [row.eq(0), tap_x.eq(tap_x + 1), tiles_done.eq(last_tile)]
                    with m.If(last_tap_x):
                        m.d.sync += [tap_x.eq(0), tap_y.eq(tap_y + 1)]
                        with m.If(last_tap_y):
                            m.d.sync += [tap_y.eq(0), block.eq(block + 1)]
                    with m.If(first_tile & context.accumulate_last):
                        m.d.sync += state.eq(_State.PARAMETERS)
                    with m.Elif(last_tile):
                        m.d.comb += done.eq(1)
                        m.d.sync += state.eq(_State.IDLE)
            with m.Case(_State.PARAMETERS):
                m.d.comb += may_read.eq(~parameters_taken)
                with m.If(grant & (row == PARAMETER_LINES - 1)):
                    m.d.sync += [row.eq(0), parameters_taken.eq(1), parameters_read.eq(1)]
                    with m.If(table_wanted):
                        m.d.sync += [
                            state.eq(_State.TABLE),
                            table_pending.eq(1),
                            other_offset.eq(context.table_place.start),
                        ]
                    with m.Elif(tiles_done):
                        m.d.comb += done.eq(1)
                        m.d.sync += state.eq(_State.IDLE)
                    with m.Else():
                        m.d.sync += state.eq(_State.TILE)
            with m.Case(_State.TABLE):
                # A line is asked for when its first word can follow the last word of the line before.
                m.d.comb += may_read.eq(self.epilogue_idle & (words_left <= 1) & ~table_arrives)
                if words_per_line == 1:
                    m.d.comb += may_read.eq(self.epilogue_idle)
                with m.If(grant & (row == table_lines - 1)):
                    m.d.sync += [row.eq(0), table_valid.eq(1), table_tag.eq(context.table_tag)]
                    with m.If(tiles_done):
                        m.d.comb += done.eq(1)
                        m.d.sync += state.eq(_State.IDLE)
                    with m.Else():
                        m.d.sync += state.eq(_State.TILE)

        # The last grant of any kind commits both, even if the table was cached.
        m.d.comb += [self.commit_weights.eq(done), self.commit_table.eq(done)]

        # The cycle after a grant: the line arrives.
        arrives = Signal(_State)
        arriving_row = Signal.like(row)
        arriving_diagonal = Signal()
        m.d.sync += arrives.eq(Mux(grant, state, _State.IDLE))
        with m.If(grant):
            m.d.sync += [arriving_row.eq(row), arriving_diagonal.eq(context.diagonal)]
        m.d.comb += [
            self.weights.valid.eq(arrives == _State.TILE),
            self.weights.diagonal.eq(arriving_diagonal),
            self.weights.row.eq(arriving_row),
            self.weights.line.eq(self.port.data),
            self.parameters.valid.eq(arrives == _State.PARAMETERS),
            self.parameters.row.eq(arriving_row),
            self.parameters.line.eq(self.port.data),
            table_arrives.eq(arrives == _State.TABLE),
        ]

        # Shadow weights: full as soon as the last line is granted, for a swap takes effect two cycles later.
        with m.If(self.swap):
            m.d.sync += shadow_full.eq(0)
        with m.If(grant & (state == _State.TILE) & last_line):
            m.d.sync += shadow_full.eq(1)

        # Table words.
        table_line = Signal(n * 8)
        word = Signal(range(TABLE_WORDS))
        m.d.comb += [
            self.table.valid.eq(words_left != 0),
            self.table.word.eq(word),
            self.table.data.eq(table_line[:32]),
        ]
        with m.If(words_left != 0):
            m.d.sync += [words_left.eq(words_left - 1), table_line.eq(table_line >> 32), word.eq(word + 1)]
            with m.If(word == TABLE_WORDS - 1):
                m.d.sync += table_pending.eq(0)
        with m.If(table_arrives):
            m.d.sync += [table_line.eq(self.port.data), words_left.eq(words_per_line)]

        # Parameters are full a cycle after the last line is granted: then it has arrived.
        m.d.sync += self.parameters_full.eq(parameters_read & ~table_pending & ~self.begin)
        with m.If(self.begin):
            m.d.sync += [parameters_taken.eq(0), parameters_read.eq(0)]

        with m.If(self.clear):
            m.d.sync += table_valid.eq(0)
        return m
