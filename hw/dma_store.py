"""DMA store: scratchpad to DRAM.

::

    i ─┬─► walker ──► requests ──► memory.request
       │                 │ pieces
       │                 ▼
       └─► contexts ─► reads ──► scratchpad ──► lanes ──► output queue ──► memory.data
              ▲
              └────────────────────────────────────────── memory.done
        commit, retire
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dma_contexts import CommandContexts, decode
from hw.interfaces import (
    CAUSE_FLAGS,
    CLIENT_STORE,
    FaultSignature,
    MemoryWriteSignature,
    RetireSignature,
    RingCommitSignature,
    ScratchpadReadSignature,
    issued_command,
)
from hw.spec.commands import BASE_REGISTERS, Fault
from hw.spec.config import NpuConfig
from hw.spec.control_block import base_register
from hw.transfer_walker import TransferWalker, piece_bytes

PIECES_AHEAD = 4
"""Bursts requested whose reads have not begun."""
BEATS_AHEAD = 4
"""Beats read that the memory port has not taken: the read's latency, and one to spare."""


class DmaStore(wiring.Component):
    """Store channel. Takes issued STORE commands, legal ones only; up to four overlap, all in order.

    The data operand's ring has bytes; ``run_bytes`` and the scratchpad strides are at most its bytes.

    ``base`` holds still while a command is under way. A command is done when its last burst is: operands are committed
    from the cycle after, one a cycle, and the command retires with the last. ``idle`` is high when every accepted
    command has retired or was dropped and no burst is outstanding. A fault (ADDRESS, BUS) drops its command and all
    later ones until ``clear``; every burst requested still gets all its beats. Latency and throughput:
    ``docs/timing/dma_store.md``.
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
                "memory": Out(MemoryWriteSignature(config)),
                "scratchpad": Out(ScratchpadReadSignature(config, config.bus_bytes)),
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
        m.submodules.walker = walker = TransferWalker(config)
        m.submodules.contexts = contexts = CommandContexts(config)
        wiring.connect(m, contexts.commit, wiring.flipped(self.commit))
        wiring.connect(m, contexts.retire, wiring.flipped(self.retire))

        dropping = Signal()  # after a fault
        failed = Signal()  # a burst was answered with an error

        # Commands.
        decode(m, config, self.i.payload, self.base, walker.i.payload, contexts.i.payload)
        m.d.comb += [
            walker.i.valid.eq(self.i.valid & contexts.i.ready & ~dropping),
            contexts.i.valid.eq(self.i.valid & walker.i.ready & ~dropping),
            self.i.ready.eq(dropping | (walker.i.ready & contexts.i.ready)),
            walker.flush.eq(dropping),
        ]

        # Requests.
        piece_layout = data.StructLayout(
            {
                "bytes": piece_bytes(config).bit_length(),
                "lane": len(walker.o.payload.lane),
                "to_end": config.scratchpad_address_bits + 1,
                "last": 1,
            }
        )
        piece = walker.o.payload
        m.submodules.pieces = pieces = fifo.SyncFIFO(width=piece_layout.size, depth=PIECES_AHEAD)
        m.submodules.lasts = lasts = fifo.SyncFIFO(width=1, depth=config.dma.outstanding)
        outstanding = Signal(range(config.dma.outstanding + 1))
        refused = Signal()
        offered = Signal()  # a request refused must stay
        requested = Signal()
        done = self.memory.done
        m.d.comb += [
            self.memory.request.valid.eq(
                walker.o.valid
                & ~piece.outside
                & ((pieces.w_rdy & (outstanding != config.dma.outstanding) & ~failed & ~dropping) | offered)
            ),
            self.memory.request.payload.address.eq(piece.address),
            self.memory.request.payload.beats.eq(piece.beats),
            self.memory.request.payload.client.eq(CLIENT_STORE),
            requested.eq(self.memory.request.valid & self.memory.request.ready),
            refused.eq(self.memory.request.valid & ~self.memory.request.ready),
            walker.o.ready.eq(requested | dropping),
            pieces.w_en.eq(requested),
            lasts.w_en.eq(requested),
            lasts.w_data.eq(piece.last),
            lasts.r_en.eq(done.valid),
            contexts.complete.eq(done.valid & lasts.r_rdy & lasts.r_data & ~done.payload.error & ~failed & ~dropping),
        ]
        m.d.comb += [
            pieces.w_data[field.offset : field.offset + field.width].eq(piece[name]) for name, field in piece_layout
        ]
        m.d.sync += offered.eq(refused)
        m.d.sync += outstanding.eq(outstanding + requested - (done.valid & lasts.r_rdy))
        with m.If(done.valid & lasts.r_rdy & done.payload.error & ~dropping):
            m.d.sync += failed.eq(1)

        # Reads: the piece whose beats come next, and how far it is.
        current = Signal(piece_layout)
        valid = Signal()
        step = Signal(range(config.bus_bytes + 1))
        space = Signal.like(step)  # in this beat
        available = Signal.like(step)  # bytes that go into this beat
        splits = Signal()  # the ring's end comes before the beat's
        ends_piece = Signal()
        beats_free = Signal(range(BEATS_AHEAD + 1), init=BEATS_AHEAD)
        granted = Signal()
        place = contexts.place
        m.d.comb += [
            space.eq(config.bus_bytes - current.lane),
            available.eq(Mux(current.bytes < space, current.bytes, space)),
            splits.eq((current.to_end != 0) & (current.to_end < available)),
            step.eq(Mux(splits, current.to_end, available)),
            ends_piece.eq((current.bytes <= space) & ~splits),
            self.scratchpad.valid.eq(valid & (beats_free != 0)),
            self.scratchpad.address.eq(place.ring_end - current.to_end),
            granted.eq(self.scratchpad.valid & self.scratchpad.ready),
            contexts.moved.eq(granted & ends_piece & current.last),
            pieces.r_en.eq(~valid | (granted & ends_piece)),
        ]
        with m.If(pieces.r_en):
            m.d.sync += [valid.eq(pieces.r_rdy), current.eq(data.View(piece_layout, pieces.r_data))]
        with m.Elif(granted):
            m.d.sync += [
                current.bytes.eq(current.bytes - step),
                current.lane.eq(Mux(splits, current.lane + step, 0)),
                current.to_end.eq(Mux(current.to_end == step, place.ring_bytes, current.to_end - step)),
            ]

        # Lanes, the cycle after the grant. A beat in two reads keeps the first one's bytes in ``part``.
        read = Signal()
        lane = Signal.like(current.lane)
        read_bytes = Signal.like(step)
        read_strobe = Signal(config.bus_bytes)
        completes = Signal()  # the beat
        last = Signal()
        m.d.sync += read.eq(granted)
        with m.If(granted):
            m.d.sync += [
                lane.eq(current.lane),
                read_bytes.eq(step),
                read_strobe.eq(((Const(1, 1) << step) - 1) << current.lane),
                completes.eq(~splits),
                last.eq(ends_piece),
            ]
        part = Signal(config.dma.bus_bits)
        part_bytes = Signal.like(step)
        part_strobe = Signal(config.bus_bytes)
        merged = Signal(config.dma.bus_bits)
        mask = Cat(bit.replicate(8) for bit in read_strobe)
        m.d.comb += merged.eq(((self.scratchpad.data << (lane << 3))[: config.dma.bus_bits] & mask) | part)
        with m.If(read):
            with m.If(completes):
                m.d.sync += [part.eq(0), part_bytes.eq(0), part_strobe.eq(0)]
            with m.Else():
                m.d.sync += [
                    part.eq(merged),
                    part_bytes.eq(part_bytes + read_bytes),
                    part_strobe.eq(part_strobe | read_strobe),
                ]

        # Output queue.
        beat_layout = data.StructLayout(
            {"beat": self.memory.data.payload.shape(), "bytes": range(config.bus_bytes + 1)}
        )
        m.submodules.beats = beats = fifo.SyncFIFO(width=beat_layout.size, depth=BEATS_AHEAD)
        beat = data.View(beat_layout, beats.w_data)
        head = data.View(beat_layout, beats.r_data)
        moved = Signal()
        m.d.comb += [
            beats.w_en.eq(read & completes),
            beat.beat.data.eq(merged),
            beat.beat.strobe.eq(read_strobe | part_strobe),
            beat.beat.last.eq(last),
            beat.bytes.eq(part_bytes + read_bytes),
            self.memory.data.valid.eq(beats.r_rdy),
            self.memory.data.payload.eq(head.beat),
            beats.r_en.eq(self.memory.data.ready),
            moved.eq(beats.r_rdy & self.memory.data.ready),
            self.bytes_moved.eq(Mux(moved, head.bytes, 0)),
        ]
        m.d.sync += beats_free.eq(beats_free - (granted & ~splits) + moved)

        # Faults: what is under way ends first, and every older command retires.
        m.d.comb += [
            self.fault.valid.eq(
                (failed | (walker.o.valid & piece.outside))
                & (outstanding == 0)
                & ~self.memory.request.valid
                & contexts.settled
                & ~dropping
            ),
            self.fault.report.code.eq(Mux(failed, Fault.BUS, Fault.ADDRESS)),
            self.fault.report.command.eq(contexts.index),
            contexts.flush.eq(self.fault.valid),
        ]
        with m.If(self.fault.valid):
            m.d.sync += [dropping.eq(1), failed.eq(0)]
        with m.If(self.clear):
            m.d.sync += dropping.eq(0)

        # State for the outside.
        waits = Signal()
        m.d.comb += [
            self.idle.eq(contexts.empty & (outstanding == 0) & ~self.memory.request.valid),
            waits.eq(
                refused
                | (beats.r_rdy & ~self.memory.data.ready)
                | ((outstanding != 0) & ~valid & ~read & ~beats.r_rdy & ~pieces.r_rdy)
            ),
            self.flags.busy.eq(moved),
            self.flags.bank_conflict.eq(self.scratchpad.valid & ~self.scratchpad.ready),
            self.flags.memory.eq(waits),
            self.flags.pipeline.eq(~self.idle & ~moved & ~self.flags.bank_conflict & ~waits),
        ]
        return m
