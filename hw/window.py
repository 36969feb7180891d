"""Window address generator: one input pixel address a cycle, over a ring.

::

    context ──► counters, x, y ──► bounds, products ──► sum ──► wrap, base ──► line
                (one line a cycle)  y*row, x*pixel      ring offset

Walks block, kernel row, kernel column (each step one *tile*), then output row, output column, as the CONVOLVE command
says. A context taken in cycle t gives its first line in cycle t + 4. Contexts that wait are walked without a gap
between them; every stage holds while the next one is full, and an empty stage never holds the one before.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.ring_address import wrap
from hw.spec.commands import COUNT_BITS, RING_BITS
from hw.spec.config import NpuConfig


def pixel_count_bits(config: NpuConfig) -> int:
    """Bits of a number of output pixels, at most half the accumulator's lines."""
    return config.accumulator_half.bit_length()


def ring_place(config: NpuConfig) -> data.StructLayout:
    """Where an operand lies: byte ``base + (start + offset) mod ring_bytes``."""
    bits = config.scratchpad_address_bits
    return data.StructLayout({"base": bits, "start": bits, "ring_bytes": bits + 1})


CURSOR_PASS = data.StructLayout({"ring": RING_BITS, "cursor": 3, "advance": COUNT_BITS})
"""What a commit passes."""

STREAM_TAG = data.StructLayout(
    {
        "accumulate_first": 1,
        "accumulate_last": 1,
        "maximum": 1,
        "pad_value": 8,
        "input": CURSOR_PASS,
    }
)
"""What belongs to a command and travels with each of its lines."""


def window_context(config: NpuConfig) -> data.StructLayout:
    """The fields of a CONVOLVE that shape its window; strides are modulo twice the scratchpad."""
    count = pixel_count_bits(config)
    stride = config.scratchpad_address_bits + 1
    return data.StructLayout(
        {
            "out_width": count,
            "out_rows": count,
            "kernel_width": 8,
            "kernel_height": 8,
            "in_blocks": 16,
            "stride_x": 8,
            "stride_y": 8,
            "dilation_x": 8,
            "dilation_y": 8,
            "x_origin": signed(16),
            "y_origin": signed(16),
            "in_width": 16,
            "in_rows": 16,
            "pixel_stride": 16,
            "row_stride": stride,
            "block_stride": stride,
            "upsample": 1,
            "place": ring_place(config),
            "tag": STREAM_TAG,
        }
    )


def window_line(config: NpuConfig) -> data.StructLayout:
    """One line to stream: ``inside``, it is read from ``address``; otherwise it is ``tag.pad_value`` in all lanes."""
    return data.StructLayout(
        {
            "address": config.scratchpad_address_bits,
            "inside": 1,
            "index": (config.accumulator_half - 1).bit_length(),  # output pixel
            "tile_first": 1,
            "command_tile": 1,  # in the command's first tile
            "last": 1,  # of the command
            "tag": STREAM_TAG,
        }
    )


class Window(wiring.Component):
    """Address generator of the streamer; see the module's text for its timing."""

    i: stream.Interface
    o: stream.Interface

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(window_context(config))),
                "o": Out(stream.Signature(window_line(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        bits = config.scratchpad_address_bits
        half = config.accumulator_half
        # The farthest coordinate: origin, largest stride over every pixel, largest dilation over every tap.
        coordinate = signed(((1 << 15) + half * 255 + 255 * 255).bit_length() + 1)

        context = Signal(window_context(config))
        walking = Signal()
        next_context = data.View(window_context(config), self.i.payload)

        # Counters: the state names the line that leaves for the products.
        column = Signal(pixel_count_bits(config))
        row = Signal(pixel_count_bits(config))
        tap_x = Signal(8)
        tap_y = Signal(8)
        block = Signal(16)
        index = Signal((half - 1).bit_length())
        x = Signal(coordinate)
        y = Signal(coordinate)
        tile_x = Signal(coordinate)  # input column of output column 0 in this tile
        tile_y = Signal(coordinate)
        origin = Signal(bits + 1)  # ring offset of this channel block

        products_ready = Signal()
        sum_ready = Signal()
        address_ready = Signal()

        last_column = column + 1 == context.out_width
        last_row = row + 1 == context.out_rows
        last_tap_x = tap_x + 1 == context.kernel_width
        last_tap_y = tap_y + 1 == context.kernel_height
        last_block = block + 1 == context.in_blocks
        tile_end = Signal()
        command_end = Signal()
        m.d.comb += tile_end.eq(last_column & last_row)
        m.d.comb += command_end.eq(tile_end & last_tap_x & last_tap_y & last_block)

        next_tile_x = Signal(coordinate)
        next_tile_y = Signal(coordinate)
        m.d.comb += [
            next_tile_x.eq(Mux(last_tap_x, context.x_origin, tile_x + context.dilation_x)),
            next_tile_y.eq(Mux(last_tap_x, Mux(last_tap_y, context.y_origin, tile_y + context.dilation_y), tile_y)),
        ]
        with m.If(walking & products_ready):
            m.d.sync += [column.eq(column + 1), index.eq(index + 1), x.eq(x + context.stride_x)]
            with m.If(last_column):
                m.d.sync += [column.eq(0), row.eq(row + 1), x.eq(tile_x), y.eq(y + context.stride_y)]
            with m.If(tile_end):
                m.d.sync += [row.eq(0), index.eq(0), tap_x.eq(tap_x + 1)]
                m.d.sync += [x.eq(next_tile_x), tile_x.eq(next_tile_x), y.eq(next_tile_y), tile_y.eq(next_tile_y)]
                with m.If(last_tap_x):
                    m.d.sync += [tap_x.eq(0), tap_y.eq(tap_y + 1)]
                    with m.If(last_tap_y):
                        m.d.sync += [tap_y.eq(0), block.eq(block + 1)]
                        m.d.sync += origin.eq(wrap(origin + context.block_stride, context.place.ring_bytes))
        m.d.comb += self.i.ready.eq(~walking | (products_ready & command_end))
        with m.If(self.i.ready):
            m.d.sync += walking.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += [
                    context.eq(next_context),
                    column.eq(0),
                    row.eq(0),
                    tap_x.eq(0),
                    tap_y.eq(0),
                    block.eq(0),
                    index.eq(0),
                    x.eq(next_context.x_origin),
                    tile_x.eq(next_context.x_origin),
                    y.eq(next_context.y_origin),
                    tile_y.eq(next_context.y_origin),
                    origin.eq(next_context.place.start),
                ]

        # Bounds, halving and products.
        moving = data.StructLayout(
            {
                "inside": 1,
                "index": index.shape(),
                "tile_first": 1,
                "command_tile": 1,
                "last": 1,
                "tag": STREAM_TAG,
                "base": bits,
                "ring_bytes": bits + 1,
            }
        )
        products = Signal(moving)
        products_valid = Signal()
        product_x = Signal(bits + 1)
        product_y = Signal(bits + 1)
        product_origin = Signal(bits + 1)
        inside = (x >= 0) & (x < context.in_width) & (y >= 0) & (y < context.in_rows)
        # Only coordinates inside the bounds matter, and those fit 16 bits.
        source_x = Mux(context.upsample, Cat(x[1:16], Const(0, 1)), x[:16])
        source_y = Mux(context.upsample, Cat(y[1:16], Const(0, 1)), y[:16])
        m.d.comb += products_ready.eq(~products_valid | sum_ready)
        with m.If(products_ready):
            m.d.sync += products_valid.eq(walking)
            with m.If(walking):
                m.d.sync += [
                    products.inside.eq(inside),
                    products.index.eq(index),
                    products.tile_first.eq((column == 0) & (row == 0)),
                    products.command_tile.eq((tap_x == 0) & (tap_y == 0) & (block == 0)),
                    products.last.eq(command_end),
                    products.tag.eq(context.tag),
                    products.base.eq(context.place.base),
                    products.ring_bytes.eq(context.place.ring_bytes),
                    product_x.eq(source_x * context.pixel_stride),
                    product_y.eq(source_y * context.row_stride),
                    product_origin.eq(origin),
                ]

        # Ring offset, less than twice the ring.
        summed = Signal(moving)
        summed_valid = Signal()
        offset = Signal(bits + 1)
        m.d.comb += sum_ready.eq(~summed_valid | address_ready)
        with m.If(sum_ready):
            m.d.sync += summed_valid.eq(products_valid)
            with m.If(products_valid):
                m.d.sync += [summed.eq(products), offset.eq(product_origin + product_x + product_y)]

        # Wrap and base.
        line = Signal(window_line(config))
        line_valid = Signal()
        m.d.comb += address_ready.eq(~line_valid | self.o.ready)
        with m.If(address_ready):
            m.d.sync += line_valid.eq(summed_valid)
            with m.If(summed_valid):
                m.d.sync += [
                    line.address.eq(summed.base + wrap(offset, summed.ring_bytes)),
                    line.inside.eq(summed.inside),
                    line.index.eq(summed.index),
                    line.tile_first.eq(summed.tile_first),
                    line.command_tile.eq(summed.command_tile),
                    line.last.eq(summed.last),
                    line.tag.eq(summed.tag),
                ]
        m.d.comb += [self.o.valid.eq(line_valid), self.o.payload.eq(line)]
        return m
