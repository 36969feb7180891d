"""The command set: three streams of fixed-size commands, decoded by gateware and written by the compiler from
the same layouts.

Every command is ``COMMAND_BYTES`` long, little-endian, aligned to its size: a header, five *operands*, a body.

An operand names one ring and one cursor of it. Before a command starts, *all* its operands must be ready; then all
are taken in one step, and from then on the command waits for no other engine.

=============  =================================  ====================================  ==========================
cursor         ready when                         taking it                             committing it
=============  =================================  ====================================  ==========================
0 to 3         ``need`` slots are filled beyond   the command addresses the slot at     ``advance`` slots are
(consumer)     the cursor                         the cursor; cursor += ``advance``     passed: free, or the next
                                                                                        consumer's
4 (producer)   ``need`` more slots are free       ``need`` slots are reserved; the      ``advance`` slots are
                                                  command addresses the first slot not  published
                                                  yet claimed; claim += ``advance``
7              always                             nothing                               nothing
=============  =================================  ====================================  ==========================

``offset`` is a byte offset from that slot's start; it may reach into later slots of the ring and wraps at its end.
"""

import enum as py_enum
import functools
import typing

from amaranth.lib import data, enum

COMMAND_BYTES = 128
COMMAND_BITS = COMMAND_BYTES * 8
OPERANDS = 5
RING_BITS = 6
COUNT_BITS = 14
OFFSET_BITS = 26


class Opcode(enum.IntEnum, shape=8):
    """What a command does, and which stream may hold it. Zero is illegal, so that cleared memory faults."""

    END = 1
    """Any stream: the job's last command; waits until the engine has committed everything."""
    WAIT = 2
    """Any stream: takes its operands, waits until the engine has committed everything before, commits them."""
    RING_CONFIGURE = 3
    """Load stream: gives a ring its place and shape once every ring in ``drained_mask`` is drained."""
    LOAD = 4
    """Load stream: DRAM to scratchpad."""
    FILL = 5
    """Load stream: a constant byte to scratchpad."""
    STORE = 6
    """Store stream: scratchpad to DRAM."""
    CONVOLVE = 7
    """Compute stream: convolution or window maximum over a tile, with the epilogue."""


class Engine(enum.IntEnum, shape=2):
    LOAD = 0
    COMPUTE = 1
    STORE = 2


LEGAL_OPCODES: dict[Engine, tuple[Opcode, ...]] = {
    Engine.LOAD: (Opcode.END, Opcode.WAIT, Opcode.RING_CONFIGURE, Opcode.LOAD, Opcode.FILL),
    Engine.COMPUTE: (Opcode.END, Opcode.WAIT, Opcode.CONVOLVE),
    Engine.STORE: (Opcode.END, Opcode.WAIT, Opcode.STORE),
}


class Cursor(enum.IntEnum, shape=3):
    CONSUMER_0 = 0
    CONSUMER_1 = 1
    CONSUMER_2 = 2
    CONSUMER_3 = 3
    PRODUCER = 4
    NONE = 7


class ComputeOperand(py_enum.IntEnum):
    """Which operand of a CONVOLVE is which."""

    INPUT = 0
    WEIGHTS = 1
    TABLE = 2
    RESIDUAL = 3
    OUTPUT = 4


DMA_DATA_OPERAND = 0
"""Operand of LOAD, FILL and STORE that addresses the data; the other four only order."""

HEADER = data.StructLayout(
    {
        "opcode": 8,
        "layer": 16,  # operator number, for reports and traces only
        "reserved": 40,
    }
)

OPERAND = data.StructLayout(
    {
        "ring": RING_BITS,
        "cursor": 3,
        "reserved": 1,
        "need": COUNT_BITS,
        "advance": COUNT_BITS,
        "offset": OFFSET_BITS,  # bytes
    }
)

BODY_BITS = COMMAND_BITS - HEADER.size - OPERANDS * OPERAND.size

RING_CONFIGURE = data.StructLayout(
    {
        "ring": 8,
        "consumer_mask": 8,  # bit i: consumer i is active
        "slots": 16,  # at most MAX_SLOTS
        "base": 32,  # scratchpad byte address, a multiple of the word
        "slot_bytes": 32,  # 0 makes a counted semaphore
        "ring_bytes": 32,  # slots x slot_bytes
        "follows": data.ArrayLayout(8, 4),  # consumer i waits on: 0..3 another consumer, 4 the publish cursor
        "drained_mask": 32,  # bit r: ring r must be drained first
    }
)
MAX_SLOTS = (1 << COUNT_BITS) - 1

TRANSFER = data.StructLayout(
    {
        "base": 8,  # base register 0..3
        "fill": 8,  # FILL: the byte
        "reserved": 16,
        "run_bytes": 32,  # contiguous bytes, innermost; at least 1
        "dram_offset": 64,  # from the base register
        "count": data.ArrayLayout(16, 3),  # repetitions, innermost first; at least 1
        "reserved2": 16,
        "dram_stride": data.ArrayLayout(32, 3),  # bytes, two's complement; 0 repeats
        "scratchpad_stride": data.ArrayLayout(32, 3),  # bytes, non-negative, wraps at the ring's end
    }
)
"""Body of LOAD, STORE and FILL: three strided dimensions of contiguous runs.

Run (i2, i1, i0) moves ``run_bytes`` bytes between DRAM address ``base + dram_offset + sum(i * dram_stride)`` and
scratchpad ring offset ``start + sum(i * scratchpad_stride)``; i0 varies fastest.
"""

CONVOLVE = data.StructLayout(
    {
        "accumulate_first": 1,  # the sums start at zero (or at the first value, for maximum)
        "accumulate_last": 1,  # the epilogue runs after this command; otherwise the next command goes on adding
        "maximum": 1,  # window maximum instead of convolution: no weight tiles, only parameters
        "upsample": 1,  # halved input coordinates
        "residual": 1,  # the epilogue adds the residual operand
        "load_table": 1,  # with TABLE operand: activation table; without, values pass unchanged
        "diagonal": 1,  # weight tiles are diagonals; not with ``maximum``
        "single_rounding": 1,  # requantisation rounds once, halves up; otherwise twice
        "reserved0": 8,
        "table_tag": 16,  # identity of the table's contents within the program; a cached table is not read again
        "out_width": 16,  # output pixels a row
        "out_rows": 16,
        "kernel_width": 8,  # taps that are loops (packed taps are not)
        "kernel_height": 8,
        "in_blocks": 16,  # input channel blocks of N
        "stride_x": 8,
        "stride_y": 8,
        "dilation_x": 8,
        "dilation_y": 8,
        "x_origin": 16,  # input column of output 0, tap 0; two's complement
        "y_origin": 16,  # input row, counted from the tile's first row; two's complement
        "in_width": 16,  # columns 0 <= x < in_width exist, others read as pad_value
        "in_rows": 16,  # rows 0 <= y < in_rows exist
        "in_pixel_stride": 16,  # bytes from a pixel to the next: N, or the channel count when taps are packed
        "pad_value": 8,
        "output_zero_point": 8,  # two's complement
        "in_row_stride": 32,  # bytes
        "in_block_stride": 32,  # bytes
        "out_row_stride": 32,  # bytes; pixels of a row are N bytes apart
        "residual_row_stride": 32,  # bytes; pixels of a row are N bytes apart
        "clamp_low": 8,  # two's complement, before the table
        "clamp_high": 8,
        "add_zero_point_a": 8,  # of the value computed here
        "add_zero_point_b": 8,  # of the residual
        "add_zero_point_out": 8,
        "add_shift_a": 8,  # two's complement; positive is left
        "add_shift_b": 8,
        "add_shift_out": 8,
        "add_multiplier_a": 32,
        "add_multiplier_b": 32,
        "add_multiplier_out": 32,
        "add_clamp_low": 8,  # two's complement, after the addition of the residual
        "add_clamp_high": 8,
    }
)
"""Body of CONVOLVE.

The loop nest is block, kernel row, kernel column (each step one weight tile), then output row, output column. Input
pixel ``(x, y) = (x_origin + ox * stride_x + kx * dilation_x, y_origin + oy * stride_y + ky * dilation_y)``, both
halved after the bounds check with ``upsample``, lies at ring offset ``start + block * in_block_stride
+ y * in_row_stride + x * in_pixel_stride``; N bytes are read there. ``out_width * out_rows`` is at most half the
accumulator's lines.

The weights operand's slot holds, from its offset: the parameter block (only with ``accumulate_last``), then
``in_blocks * kernel_height * kernel_width`` tiles (none with ``maximum``). A tile is N lines of N int8: line r holds
the weights of input channel r for output channels 0..N-1. With ``diagonal`` a tile is one line of N int8: lane c is the
weight of input channel c for output channel c, and all other weights are 0. The parameter block is ``PARAMETER_LINES``
lines of N bytes: line j < 4 byte j of each channel's bias, line 4 + j byte j of its multiplier, line 8 its shift (two's
complement, positive is left). The table operand's slot holds 256 int8: the result for value v at index v + 128.

Requantisation multiplies by ``multiplier * 2**(shift - 31)``. It rounds twice, as TFLite's CONV_2D does (to the doubled
high half, halves up, then at the right shift, halves away from zero), or with ``single_rounding`` once, halves up
(``hw.spec.numerics``).
"""
PARAMETER_LINES = 9
TABLE_BYTES = 256

BODIES: dict[Opcode, data.StructLayout | None] = {
    Opcode.END: None,
    Opcode.WAIT: None,
    Opcode.RING_CONFIGURE: RING_CONFIGURE,
    Opcode.LOAD: TRANSFER,
    Opcode.FILL: TRANSFER,
    Opcode.STORE: TRANSFER,
    Opcode.CONVOLVE: CONVOLVE,
}

COMMAND = data.StructLayout(
    {
        "header": HEADER,
        "operand": data.ArrayLayout(OPERAND, OPERANDS),
        "body": BODY_BITS,
    }
)
assert COMMAND.size == COMMAND_BITS
assert all(body is None or body.size <= BODY_BITS for body in BODIES.values())

BASE_REGISTERS = 4
JOB_BYTES = 128
JOB = data.StructLayout(
    {
        "job": 32,  # the host's number for it, returned in the completion
        "reserved": 480,
        "base": data.ArrayLayout(data.StructLayout({"address": 64, "bytes": 64}), BASE_REGISTERS),
    }
)
"""One entry of the job ring in DRAM: the buffers that base registers are bound to, with their sizes."""
assert JOB.size == JOB_BYTES * 8

COMPLETION_BYTES = 32
COMPLETION = data.StructLayout(
    {
        "job": 32,
        "status": 8,  # a Fault; 0 is success
        "engine": 8,  # of the fault
        "reserved": 16,
        "command": 32,  # index of the command that faulted
        "reserved2": 32,
        "started": 64,  # cycle in which the first engine began the job
        "finished": 64,  # cycle in which the last engine ended it
    }
)
"""One entry of the completion ring in DRAM."""
assert COMPLETION.size == COMPLETION_BYTES * 8


class Fault(enum.IntEnum, shape=8):
    """Why a job failed.

    The faulty command commits nothing, and its engine begins none after it. The other engines end the jobs before, and
    in the failed one stop after a command. When all are quiet the job's completion is written with code, engine and
    command, and the NPU is stopped until CONTROL.RESUME, which goes on with the next job. What the failed job wrote is
    undefined.
    """

    NONE = 0
    OPCODE = 1
    """Issue unit of any engine: an opcode that does not exist, or that this stream may not hold."""
    RING = 2
    """Issue unit of any engine: an operand names a ring or cursor that does not exist; or, once no cursor of any ring
    can move any more, a ring that is not configured, a cursor that is not active, or more slots than the ring has."""
    FIELD = 3
    """Issue unit of any engine: a field of the body out of range, flags that exclude each other, an operand that the
    command addresses but does not use, or one whose offset or step is longer than its ring."""
    ADDRESS = 4
    """Load and store engine: a LOAD or STORE leaves its base register's buffer or the address space. Its bursts before
    that may be moved."""
    BUS = 5
    """Load and store engine: the bus answered a burst of a LOAD or STORE with an error. Others of it may be moved."""
    FETCH = 6
    """Fetcher of any engine: a command or job ring entry that the bus answered with an error, or beyond the address
    space; or the stream ran past its end. ``command`` is 0 for the entry, the stream's length past its end."""


SIGNED = frozenset(
    {
        "x_origin",
        "y_origin",
        "pad_value",
        "output_zero_point",
        "clamp_low",
        "clamp_high",
        "add_zero_point_a",
        "add_zero_point_b",
        "add_zero_point_out",
        "add_shift_a",
        "add_shift_b",
        "add_shift_out",
        "add_clamp_low",
        "add_clamp_high",
        "dram_stride",
    }
)
"""Fields in two's complement; all others are unsigned."""


def _fields(layout: data.StructLayout) -> typing.Iterator[tuple[str, int, int, int]]:
    """Each scalar field: name, index (or -1), bit offset, width."""
    for name, field in layout:
        shape = field.shape
        if isinstance(shape, data.ArrayLayout):
            width = shape.size // shape.length
            for index in range(shape.length):
                yield str(name), index, field.offset + index * width, width
        else:
            yield str(name), -1, field.offset, field.width


@functools.cache
def _packing(key: int) -> tuple[tuple[str, int, int, int], ...]:
    return tuple(_fields(_LAYOUTS[key]))


_LAYOUTS: dict[int, data.StructLayout] = {
    id(layout): layout for layout in (HEADER, OPERAND, RING_CONFIGURE, TRANSFER, CONVOLVE, COMPLETION)
}


def pack(layout: data.StructLayout, values: typing.Mapping[str, typing.Any]) -> int:
    """Bits of a flat layout (scalars and arrays of scalars) from field values; missing fields are zero.

    Fields of ``SIGNED`` are stored in two's complement. Raises ``ValueError`` for a value that does not fit its field
    and ``KeyError`` for an unknown field.
    """
    result = 0
    known = set()
    for name, index, offset, width in _packing(id(layout)):
        known.add(name)
        value = values.get(name, 0)
        if index >= 0:
            value = value[index] if value else 0
        value = int(value)
        low, high = (-(1 << (width - 1)), 1 << (width - 1)) if name in SIGNED else (0, 1 << width)
        if not low <= value < high:
            raise ValueError(f"{name} of {value} does not fit {width} bits")
        result |= (value & ((1 << width) - 1)) << offset
    if not known.issuperset(values):
        raise KeyError(f"unknown field {sorted(set(values) - known)[0]}")
    return result


def unpack(layout: data.StructLayout, bits: int) -> dict[str, typing.Any]:
    """The inverse of ``pack``."""
    result: dict[str, typing.Any] = {}
    for name, index, offset, width in _packing(id(layout)):
        value = bits >> offset & ((1 << width) - 1)
        if name in SIGNED and value >> (width - 1):
            value -= 1 << width
        if index < 0:
            result[name] = value
        else:
            result.setdefault(name, []).append(value)
    return result
