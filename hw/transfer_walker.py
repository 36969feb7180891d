"""Walks the runs of a transfer and cuts them into bursts.

::

    i ──► run generator ──► splitter ──► output register ──► o
          three counters    cuts a run    one piece a cycle
          next run = one    at multiples
          add away          of a burst
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.ring_address import wrap
from hw.spec.config import NpuConfig

DIMENSIONS = 3


def transfer_walk(config: NpuConfig) -> data.StructLayout:
    """A transfer as the walker takes it: three strided dimensions of contiguous runs.

    Every stride in the scratchpad, and ``run_bytes``, are at most ``ring_bytes``; ``start`` is less. Counts and
    ``run_bytes`` are at least 1.
    """
    place_bits = config.scratchpad_address_bits + 1
    return data.StructLayout(
        {
            "fill": 1,  # no DRAM side: runs are cut from offset 0 and none is outside
            "run_bytes": 32,
            "count": data.ArrayLayout(16, DIMENSIONS),
            "dram_offset": 64,  # from base_address
            "dram_stride": data.ArrayLayout(32, DIMENSIONS),  # two's complement
            "base_address": config.address_bits,
            "base_bytes": config.address_bits + 1,  # at most the address space
            "start": config.scratchpad_address_bits,  # from the ring's base
            "place_stride": data.ArrayLayout(place_bits, DIMENSIONS),
            "ring_bytes": place_bits,
        }
    )


def transfer_piece(config: NpuConfig) -> data.StructLayout:
    """One burst: where its beats are, and which bytes of them go where in the ring. A FILL has no beats."""
    return data.StructLayout(
        {
            "address": config.address_bits,  # of the first beat
            "beats": 7,
            "lane": (config.bus_bytes - 1).bit_length(),  # of the first byte in the first beat
            "bytes": piece_bytes(config).bit_length(),
            "to_end": config.scratchpad_address_bits + 1,  # bytes from the first one's place to the ring's end
            "last": 1,  # of its transfer
            "outside": 1,  # not inside the base register's buffer
            "fill": 1,
        }
    )


def piece_bytes(config: NpuConfig) -> int:
    """Most bytes in one piece."""
    return max(config.dma.burst_beats * config.bus_bytes, config.word_bytes)


class TransferWalker(wiring.Component):
    """Address generator of the DMA units: one piece a cycle, in order, with no bubble between runs.

    Latency is 3 cycles from ``i`` to the first piece. Between two transfers the run generator loses one cycle. Pieces
    end at multiples of ``burst_beats`` times the bus width (in DRAM), so that a burst never crosses 4 KiB.

    A piece whose bytes are not all in [base_address, base_address + base_bytes), or beyond the address space, is marked
    ``outside``; pieces after it mean nothing.

    ``flush`` drops the transfer under way, and stops new pieces, but leaves the piece at ``o``.
    """

    i: stream.Interface
    o: stream.Interface
    flush: Signal

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "i": In(stream.Signature(transfer_walk(config))),
                "o": Out(stream.Signature(transfer_piece(config))),
                "flush": In(1),
            }
        )
        self._config = config

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        place_bits = config.scratchpad_address_bits + 1

        # Run generator. Where each dimension's current line begins; dimension 0's is the run itself. An offset that is
        # two or more strides outside may overflow, but the first one outside has ended the walk by then.
        offset_shape = signed(config.address_bits + 2)
        active = Signal()
        walk = Signal(transfer_walk(config))
        offset = [Signal(offset_shape, name=f"offset_{d}") for d in range(DIMENSIONS)]
        place = [Signal(place_bits, name=f"place_{d}") for d in range(DIMENSIONS)]
        left = [Signal(16, name=f"left_{d}") for d in range(DIMENSIONS)]

        ends = [Signal(name=f"ends_{d}") for d in range(DIMENSIONS)]
        m.d.comb += [ends[d].eq(left[d] == 1) for d in range(DIMENSIONS)]
        next_offset = Signal(offset_shape)
        next_place = Signal(place_bits)
        with m.If(~ends[0]):
            m.d.comb += next_offset.eq(offset[0] + walk.dram_stride[0].as_signed())
            m.d.comb += next_place.eq(wrap(place[0] + walk.place_stride[0], walk.ring_bytes))
        with m.Elif(~ends[1]):
            m.d.comb += next_offset.eq(offset[1] + walk.dram_stride[1].as_signed())
            m.d.comb += next_place.eq(wrap(place[1] + walk.place_stride[1], walk.ring_bytes))
        with m.Else():
            m.d.comb += next_offset.eq(offset[2] + walk.dram_stride[2].as_signed())
            m.d.comb += next_place.eq(wrap(place[2] + walk.place_stride[2], walk.ring_bytes))

        # Splitter.
        valid = Signal()
        address = Signal(config.address_bits + 1)
        room = Signal(signed(config.address_bits + 3))  # bytes to the end of the buffer
        before = Signal()  # the run begins before the buffer
        bytes_left = Signal(32)
        to_end = Signal(place_bits)
        ring_bytes = Signal(place_bits)
        last_run = Signal()
        fill = Signal()

        piece = Signal(transfer_piece(config))
        ends_run = Signal()
        self._cut(m, piece, ends_run, address, bytes_left, fill)
        m.d.comb += [
            piece.to_end.eq(to_end),
            piece.last.eq(ends_run & last_run),
            piece.outside.eq((before | address[-1] | (room < piece.bytes)) & ~fill),
            piece.fill.eq(fill),
        ]

        cut = Signal()
        run = Signal()
        m.d.comb += cut.eq(valid & (~self.o.valid | self.o.ready) & ~self.flush)
        m.d.comb += run.eq(active & (~valid | (cut & ends_run)) & ~self.flush)

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(cut):
            unwrapped = (to_end - piece.bytes)[:place_bits]
            piece_length = piece_bytes(config)
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.eq(piece),
                valid.eq(~ends_run),
                address.eq(Cat(C(0, _log2(config.dma.burst_beats * config.bus_bytes)), self._next_block(address))),
                room.eq(room - piece.bytes),
                bytes_left.eq(bytes_left - piece.bytes),
                to_end.eq(Mux(to_end > piece.bytes, unwrapped, unwrapped + ring_bytes)),
            ]
            if piece_length != config.dma.burst_beats * config.bus_bytes:
                # FILL pieces are longer than bursts here; its address stays at the start of a block.
                with m.If(fill):
                    m.d.sync += address.eq(0)

        with m.If(run):
            m.d.sync += [
                valid.eq(1),
                address.eq(Mux(walk.fill, 0, walk.base_address + offset[0])),
                room.eq(walk.base_bytes - offset[0]),
                before.eq(offset[0] < 0),
                bytes_left.eq(walk.run_bytes),
                to_end.eq(walk.ring_bytes - place[0]),
                ring_bytes.eq(walk.ring_bytes),
                last_run.eq(Cat(ends).all()),
                fill.eq(walk.fill),
                offset[0].eq(next_offset),
                place[0].eq(next_place),
                left[0].eq(Mux(ends[0], walk.count[0], left[0] - 1)),
            ]
            with m.If(ends[0]):
                m.d.sync += [offset[1].eq(next_offset), place[1].eq(next_place)]
                m.d.sync += left[1].eq(Mux(ends[1], walk.count[1], left[1] - 1))
            with m.If(ends[0] & ends[1]):
                m.d.sync += [offset[2].eq(next_offset), place[2].eq(next_place), left[2].eq(left[2] - 1)]
            with m.If(Cat(ends).all()):
                m.d.sync += active.eq(0)

        m.d.comb += self.i.ready.eq(~active)
        with m.If(self.i.valid & ~active):
            beyond = self.i.payload.dram_offset[config.address_bits :].any()
            first = Cat(self.i.payload.dram_offset[: config.address_bits], beyond, beyond).as_signed()
            m.d.sync += [active.eq(1), walk.eq(self.i.payload)]
            m.d.sync += [signal.eq(first) for signal in offset]
            m.d.sync += [signal.eq(self.i.payload.start) for signal in place]
            m.d.sync += [left[d].eq(self.i.payload.count[d]) for d in range(DIMENSIONS)]

        with m.If(self.flush):
            m.d.sync += [active.eq(0), valid.eq(0)]
        return m

    def _cut(
        self, m: Module, piece: data.View, ends_run: Signal, address: Signal, bytes_left: Signal, fill: Signal
    ) -> None:
        """The piece at the head of a run: up to the end of its block."""
        config = self._config
        block = config.dma.burst_beats * config.bus_bytes
        lane_bits = _log2(config.bus_bytes)
        in_block = address[: _log2(block)]
        space = Signal(range(piece_bytes(config) + 1))
        final = Signal(range(block))
        m.d.comb += space.eq(block - in_block)
        if piece_bytes(config) != block:
            with m.If(fill):
                m.d.comb += space.eq(piece_bytes(config))
        m.d.comb += [
            ends_run.eq(bytes_left <= space),
            piece.bytes.eq(Mux(ends_run, bytes_left, space)),
            final.eq(in_block + piece.bytes - 1),
            piece.address.eq(Cat(C(0, lane_bits), address[lane_bits:])),
            piece.lane.eq(address[:lane_bits]),
            piece.beats.eq(final[lane_bits:] - in_block[lane_bits:] + 1),
        ]

    def _next_block(self, address: Signal) -> Value:
        return (address[_log2(self._config.dma.burst_beats * self._config.bus_bytes) :] + 1)[:-1]


def _log2(value: int) -> int:
    return value.bit_length() - 1
