"""The completion ring: one record in DRAM for each job that ended."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import CLIENT_COMPLETION, MemoryWriteSignature
from hw.spec.commands import COMPLETION, COMPLETION_BYTES
from hw.spec.config import NpuConfig
from hw.spec.control_block import HOST_ADDRESS_BITS, JOB_INDEX_BITS


class CompletionUnit(wiring.Component):
    """Writes completion records, in the order given; holds while the ring is full.

    Timing: ``docs/timing/completion.md``.

    Attributes
    ----------
    completion
        Records to write.
    ring_address, ring_log2_entries
        Place and length of the ring in DRAM.
    tail, head
        Records that the host has read, and records written; free-running.
    pending
        Some record is not yet read: the level behind the interrupt.
    error
        Pulse: the bus answered with an error, or the record's place is beyond the address space, and nothing was
        written; the record counts as written.
    busy
        A record is being written.
    memory
        Client of the memory port.
    """

    completion: stream.Interface
    ring_address: Signal
    ring_log2_entries: Signal
    tail: Signal
    head: Signal
    pending: Signal
    error: Signal
    busy: Signal
    memory: wiring.PureInterface

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "completion": In(stream.Signature(COMPLETION)),
                "ring_address": In(HOST_ADDRESS_BITS),
                "ring_log2_entries": In(4),
                "tail": In(JOB_INDEX_BITS),
                "head": Out(JOB_INDEX_BITS),
                "pending": Out(1),
                "error": Out(1),
                "busy": Out(1),
                "memory": Out(MemoryWriteSignature(config)),
            }
        )
        self._config = config

    def elaborate(self, platform) -> Module:
        m = Module()
        config, memory = self._config, self.memory
        bus_bytes = config.bus_bytes
        record_beats = max(1, COMPLETION_BYTES // bus_bytes)
        burst_beats = min(record_beats, config.dma.burst_beats)
        bursts = record_beats // burst_beats

        record = Signal(COMPLETION.size)
        address = Signal(HOST_ADDRESS_BITS + 1)  # of the record
        beyond = Signal()  # of the address space
        burst = Signal(range(bursts + 1))
        beat = Signal(range(burst_beats + 1))
        answers = Signal(range(bursts + 1))
        failed = Signal()

        entries = Signal(JOB_INDEX_BITS)
        full = Signal()
        m.d.comb += [
            entries.eq(1 << self.ring_log2_entries),
            full.eq((self.head - self.tail)[:JOB_INDEX_BITS] == entries),
            self.pending.eq(self.head != self.tail),
        ]

        # --- request and beats
        align = (bus_bytes - 1).bit_length()
        burst_address = Signal(config.address_bits)
        m.d.comb += [
            beyond.eq(address[config.address_bits :].any()),
            burst_address.eq(address + burst * (burst_beats * bus_bytes)),
            memory.request.p.address.eq(Cat(Const(0, align), burst_address[align:])),
            memory.request.p.beats.eq(burst_beats),
            memory.request.p.client.eq(CLIENT_COMPLETION),
            memory.data.p.last.eq(beat == burst_beats - 1),
        ]
        if bus_bytes <= COMPLETION_BYTES:
            m.d.comb += [memory.data.p.data.eq(record[: 8 * bus_bytes]), memory.data.p.strobe.eq(~0)]
        else:
            places = bus_bytes // COMPLETION_BYTES
            place = address[5 : 5 + (places - 1).bit_length()]
            m.d.comb += [
                memory.data.p.data.eq(record.replicate(places)),
                memory.data.p.strobe.eq(((1 << COMPLETION_BYTES) - 1) << (place << 5)),
            ]

        answered = Signal()
        m.d.comb += answered.eq(memory.done.valid & self.busy)
        with m.If(answered):
            m.d.sync += [answers.eq(answers + 1), failed.eq(failed | memory.done.p.error)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.completion.ready.eq(~full)
                with m.If(self.completion.valid & ~full):
                    index = self.head & (entries - 1)[:JOB_INDEX_BITS]
                    m.d.sync += [
                        record.eq(Value.cast(self.completion.p)),
                        address.eq(Cat(Const(0, 5), self.ring_address[5:] + index)),
                        burst.eq(0),
                        answers.eq(0),
                        failed.eq(0),
                    ]
                    m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += [self.busy.eq(1), memory.request.valid.eq(~beyond)]
                m.d.sync += beat.eq(0)
                with m.If(beyond):
                    m.d.comb += self.error.eq(1)
                    m.d.sync += self.head.eq(self.head + 1)
                    m.next = "IDLE"
                with m.Elif(memory.request.ready):
                    m.d.sync += burst.eq(burst + 1)
                    m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += [self.busy.eq(1), memory.data.valid.eq(1)]
                with m.If(memory.data.ready):
                    m.d.sync += beat.eq(beat + 1)
                    if bus_bytes < COMPLETION_BYTES:
                        m.d.sync += record.eq(record >> 8 * bus_bytes)
                    with m.If(memory.data.p.last):
                        m.next = "DONE"
                        with m.If(burst != bursts):
                            m.next = "REQUEST"
            with m.State("DONE"):
                m.d.comb += self.busy.eq(1)
                with m.If((answers == bursts) | (answered & (answers == bursts - 1))):
                    m.d.comb += self.error.eq(failed | (answered & memory.done.p.error))
                    m.d.sync += self.head.eq(self.head + 1)
                    m.next = "IDLE"
        return m
