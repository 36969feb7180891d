"""DMA load: LOAD (DRAM to scratchpad) and FILL (a byte to scratchpad).

::

    i ─┬─► walker ──► requests ──► memory.request
       │                 │ pieces
       │                 ▼
       └─► contexts ─► data side ◄── buffer ◄── memory.data
              │          │ one write a beat
              ▼          ▼
        commit, retire  scratchpad
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dma_contexts import CommandContexts, decode
from hw.interfaces import (
    CAUSE_FLAGS,
    CLIENT_LOAD,
    FaultSignature,
    MemoryReadSignature,
    RetireSignature,
    RingCommitSignature,
    ScratchpadWriteSignature,
    issued_command,
)
from hw.spec.commands import BASE_REGISTERS, Fault
from hw.spec.config import NpuConfig
from hw.spec.control_block import base_register
from hw.transfer_walker import TransferWalker, piece_bytes


class DmaLoad(wiring.Component):
    """Load channel. Takes issued LOAD and FILL commands, legal ones only; up to four overlap, all in order.

    The data operand's ring has bytes; ``run_bytes`` and the scratchpad strides are at most its bytes.

    ``base`` holds still while a command is under way. Operands are committed from the cycle after the command's last
    write was granted, one a cycle, and the command retires with the last. ``idle`` is high when every accepted command
    has retired or was dropped and no beat is outstanding. A fault (ADDRESS, BUS) drops its command and all later ones
    until ``clear``. Latency and throughput: ``docs/timing/dma_load.md``.
    """

    i: stream.Interface
    memory: wiring.PureInterface
    scratchpad: wiring.PureInterface
    base: data.View
    commit: wiring.PureInterface
    retire: wiring.PureInterface
    idle: Signal
    fault: wiring.PureInterface
    clear: Signal
    flags: data.View
    bytes_moved: Signal

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "i": In(stream.Signature(issued_command(config))),
                "memory": Out(MemoryReadSignature(config)),
                "scratchpad": Out(ScratchpadWriteSignature(config, config.word_bytes)),
                "base": In(data.ArrayLayout(base_register(config), BASE_REGISTERS)),
                "commit": Out(RingCommitSignature()),
                "retire": Out(RetireSignature()),
                "idle": Out(1),
                "fault": Out(FaultSignature()),
                "clear": In(1),
                "flags": Out(CAUSE_FLAGS),
                "bytes_moved": Out(range(config.bus_bytes + 1)),
            }
        )
        self._config = config

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        place_bits = config.scratchpad_address_bits + 1
        m.submodules.walker = walker = TransferWalker(config)
        m.submodules.contexts = contexts = CommandContexts(config)
        wiring.connect(m, contexts.commit, wiring.flipped(self.commit))
        wiring.connect(m, contexts.retire, wiring.flipped(self.retire))

        dropping = Signal()  # after a fault
        faulty = Signal()  # the data side is at a piece that faults

        # Commands.
        decode(m, config, self.i.payload, self.base, walker.i.payload, contexts.i.payload)
        m.d.comb += [
            walker.i.valid.eq(self.i.valid & contexts.i.ready & ~dropping),
            contexts.i.valid.eq(self.i.valid & walker.i.ready & ~dropping),
            self.i.ready.eq(dropping | (walker.i.ready & contexts.i.ready)),
            walker.flush.eq(dropping),
        ]

        # Requests. A piece that needs none, a FILL's or one outside, passes to the data side all the same.
        piece_layout = data.StructLayout(
            {
                "bytes": piece_bytes(config).bit_length(),
                "lane": len(walker.o.payload.lane),
                "to_end": place_bits,
                "last": 1,
                "outside": 1,
                "fill": 1,
            }
        )
        piece = walker.o.payload
        m.submodules.pieces = pieces = fifo.SyncFIFO(width=piece_layout.size, depth=config.dma.outstanding)
        count = Signal(range(config.dma.outstanding + 1))  # pieces issued and not all written
        beats_free = Signal(range(config.dma.buffer_beats + 1), init=config.dma.buffer_beats)
        blocked = Signal()  # a piece outside was passed on: nothing after it
        refused = Signal()
        offered = Signal()  # a request refused must stay
        room = Signal()
        issue = Signal()
        requested = Signal()
        m.d.comb += [
            room.eq((count != config.dma.outstanding) & ~blocked & ~faulty & ~dropping),
            self.memory.request.valid.eq(
                walker.o.valid & ~piece.fill & ~piece.outside & ((room & (beats_free >= piece.beats)) | offered)
            ),
            self.memory.request.payload.address.eq(piece.address),
            self.memory.request.payload.beats.eq(piece.beats),
            self.memory.request.payload.client.eq(CLIENT_LOAD),
            requested.eq(self.memory.request.valid & self.memory.request.ready),
            issue.eq(Mux(piece.fill | piece.outside, walker.o.valid & room, requested)),
            walker.o.ready.eq(issue | (dropping & ~offered)),
            pieces.w_en.eq(issue),
        ]
        m.d.comb += [
            pieces.w_data[field.offset : field.offset + field.width].eq(piece[name]) for name, field in piece_layout
        ]
        m.d.comb += refused.eq(self.memory.request.valid & ~self.memory.request.ready)
        m.d.sync += offered.eq(refused)
        with m.If(issue & piece.outside):
            m.d.sync += blocked.eq(1)

        # Buffer. One place more than the beats reserved, so that its output register costs no room.
        beat_layout = data.StructLayout({"data": config.dma.bus_bits, "error": 1})
        m.submodules.beats = beats = fifo.SyncFIFOBuffered(width=beat_layout.size, depth=config.dma.buffer_beats + 1)
        beat = data.View(beat_layout, beats.r_data)
        m.d.comb += [
            beats.w_en.eq(self.memory.data.valid),
            beats.w_data.eq(Cat(self.memory.data.payload.data, self.memory.data.payload.error)),
            self.memory.data.ready.eq(beats.w_rdy),
        ]

        # Data side: the piece whose beats come next, and how far it is.
        current = Signal(piece_layout)
        valid = Signal()
        step = Signal(range(config.word_bytes + 1))
        space = Signal.like(step)  # in this beat, or word
        available = Signal.like(step)  # bytes that this beat holds
        splits = Signal()  # the ring's end comes before the beat's
        ends_piece = Signal()
        fire = Signal()
        free = Signal()  # the write register takes a write
        place = contexts.place
        m.d.comb += [
            space.eq(Mux(current.fill, config.word_bytes, config.bus_bytes - current.lane)),
            available.eq(Mux(current.bytes < space, current.bytes, space)),
            splits.eq((current.to_end != 0) & (current.to_end < available)),
            step.eq(Mux(splits, current.to_end, available)),
            ends_piece.eq((current.bytes <= space) & ~splits),
            faulty.eq(valid & ~dropping & (current.outside | (~current.fill & beats.r_rdy & beat.error))),
            free.eq(~self.scratchpad.valid | self.scratchpad.ready),
            fire.eq(valid & free & ~faulty & ~dropping & (current.fill | beats.r_rdy)),
            beats.r_en.eq((fire & ~current.fill & ~splits) | dropping),
            contexts.moved.eq(fire & ends_piece & current.last),
            pieces.r_en.eq(~valid | (fire & ends_piece)),
        ]
        with m.If(pieces.r_en):
            m.d.sync += [valid.eq(pieces.r_rdy), current.eq(data.View(piece_layout, pieces.r_data))]
        with m.Elif(fire):
            m.d.sync += [
                current.bytes.eq(current.bytes - step),
                current.lane.eq(Mux(splits & ~current.fill, current.lane + step, 0)),
                current.to_end.eq(Mux(current.to_end == step, place.ring_bytes, current.to_end - step)),
            ]

        # Write register.
        write_last = Signal()  # of the command
        write_bytes = Signal.like(self.bytes_moved)  # that came over the bus
        granted = Signal()
        with m.If(free):
            m.d.sync += self.scratchpad.valid.eq(fire)
        with m.If(fire):
            m.d.sync += [
                self.scratchpad.address.eq(place.ring_end - current.to_end),
                self.scratchpad.data.eq(
                    Mux(current.fill, place.fill.replicate(config.word_bytes), beat.data >> (current.lane << 3))
                ),
                self.scratchpad.strobe.eq((Const(1, 1) << step) - 1),
                write_last.eq(ends_piece & current.last),
                write_bytes.eq(Mux(current.fill, 0, step)),
            ]
        m.d.comb += [
            granted.eq(self.scratchpad.valid & self.scratchpad.ready),
            contexts.complete.eq(granted & write_last),
            self.bytes_moved.eq(Mux(granted, write_bytes, 0)),
        ]

        # Room.
        m.d.sync += count.eq(count + issue - (fire & ends_piece))
        m.d.sync += beats_free.eq(beats_free - Mux(requested, piece.beats, 0) + (beats.r_en & beats.r_rdy))

        # Faults: every older command retires first.
        m.d.comb += [
            self.fault.valid.eq(faulty & ~self.scratchpad.valid & contexts.settled),
            self.fault.report.code.eq(Mux(current.outside, Fault.ADDRESS, Fault.BUS)),
            self.fault.report.command.eq(contexts.index),
            contexts.flush.eq(self.fault.valid),
        ]
        with m.If(self.fault.valid):
            m.d.sync += dropping.eq(1)
        with m.If(dropping):
            m.d.comb += pieces.r_en.eq(1)
            m.d.sync += [valid.eq(0), count.eq(0), blocked.eq(0)]
        with m.If(self.clear):
            m.d.sync += dropping.eq(0)

        # State for the outside.
        waits = Signal()
        m.d.comb += [
            self.idle.eq(
                contexts.empty & (beats_free == config.dma.buffer_beats) & ~self.memory.request.valid & ~pieces.r_rdy
            ),
            waits.eq(refused | ((beats_free != config.dma.buffer_beats) & ~beats.r_rdy)),
            self.flags.busy.eq(granted),
            self.flags.bank_conflict.eq(self.scratchpad.valid & ~self.scratchpad.ready),
            self.flags.memory.eq(waits),
            self.flags.pipeline.eq(~self.idle & ~self.scratchpad.valid & ~waits),
        ]
        return m
