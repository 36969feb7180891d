"""One engine's fetch from DRAM: the job's entry in the job ring, then the commands of its program."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import FaultSignature, MemoryReadSignature, fetched_command
from hw.spec.commands import BASE_REGISTERS, COMMAND_BITS, COMMAND_BYTES, JOB, JOB_BYTES, Fault, Opcode
from hw.spec.config import NpuConfig
from hw.spec.control_block import HOST_ADDRESS_BITS, INDEX_BITS, JOB_INDEX_BITS, base_register

ITEM_ALIGN = (COMMAND_BYTES - 1).bit_length()
assert COMMAND_BYTES == JOB_BYTES == 1 << ITEM_ALIGN


def job_entry(config: NpuConfig) -> data.StructLayout:
    """What the hardware keeps of a job ring entry. A base address beyond the address space is kept as a buffer of no
    bytes, so that every access to it is outside; a longer buffer than the address space as one of that length."""
    return data.StructLayout({"job": 32, "base": data.ArrayLayout(base_register(config), BASE_REGISTERS)})


class Fetcher(wiring.Component):
    """Streams a job's entry and commands; timing and faults: ``docs/timing/fetcher.md``.

    Parameters
    ----------
    client
        Client of the memory port.

    Attributes
    ----------
    start, ready
        A pulse that begins job ``job_index``, while ``ready``.
    job_ring_address, job_ring_log2_entries, program_address, program_commands
        Places in DRAM, 128-byte aligned (lower bits are ignored); they hold still while a job runs. What lies beyond
        the address space is never asked for: it is a fault in its turn.
    engine_idle
        Every command handed over is committed.
    hold
        Offer nothing and raise no fault.
    flush
        Drop everything: the job is over for this engine.
    entry, entry_valid
        The job ring's entry, for one cycle, before the first command.
    commands, fault, memory
        See ``hw.interfaces``.
    """

    start: Signal
    ready: Signal
    job_index: Signal
    job_ring_address: Signal
    job_ring_log2_entries: Signal
    program_address: Signal
    program_commands: Signal
    engine_idle: Signal
    hold: Signal
    flush: Signal
    entry: data.View
    entry_valid: Signal
    commands: stream.Interface
    fault: wiring.PureInterface
    memory: wiring.PureInterface

    def __init__(self, config: NpuConfig, client: int):
        super().__init__(
            {
                "start": In(1),
                "ready": Out(1),
                "job_index": In(JOB_INDEX_BITS),
                "job_ring_address": In(HOST_ADDRESS_BITS),
                "job_ring_log2_entries": In(4),
                "program_address": In(HOST_ADDRESS_BITS),
                "program_commands": In(INDEX_BITS),
                "engine_idle": In(1),
                "hold": In(1),
                "flush": In(1),
                "entry": Out(job_entry(config)),
                "entry_valid": Out(1),
                "commands": Out(stream.Signature(fetched_command(config))),
                "fault": Out(FaultSignature()),
                "memory": Out(MemoryReadSignature(config)),
            }
        )
        self._config = config
        self._client = client

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        rows = config.command.prefetch
        item_beats = COMMAND_BYTES // config.bus_bytes
        burst_beats = min(item_beats, config.dma.burst_beats)
        bursts = item_beats // burst_beats

        active = Signal()  # from start until END is handed over, or a fault
        swallow = Signal(init=1)  # what arrives is not wanted
        filled = Signal(range(rows + 1))  # rows that hold an item
        reserved = Signal(range(rows + 1))  # rows that hold one, or for which one is asked
        in_flight = Signal(range(rows * bursts + 2))  # bursts
        read = Signal()  # a row moves to the head

        # --- requests: a register, filled with the next burst while there is one and room for it
        request = self.memory.request
        asking = Signal()  # there is more to ask for
        stop_asking = Signal()  # combinational: END or an error arrives
        next_address = Signal(HOST_ADDRESS_BITS + 1)
        beyond = Signal()  # of the address space; an item lies inside or beyond as a whole
        entry_beyond = Signal()
        limit = Signal(INDEX_BITS)  # commands that can be had
        next_burst = Signal(range(bursts))  # within its item
        left = Signal(INDEX_BITS + 1)  # items not asked for, the one at next_address included
        asking_entry = Signal()  # next_address is in the job ring
        put_up = Signal()
        free = Signal()
        m.d.comb += [
            request.p.beats.eq(burst_beats),
            request.p.client.eq(self._client),
            free.eq(~request.valid | request.ready),
            beyond.eq(next_address[config.address_bits :].any()),
            put_up.eq(free & asking & ~beyond & ~stop_asking & ~self.flush & ((next_burst != 0) | (reserved != rows))),
        ]
        with m.If(free):
            m.d.sync += request.valid.eq(put_up)
        with m.If(put_up):
            m.d.sync += [
                request.p.address.eq(next_address),
                next_address.eq(next_address + burst_beats * config.bus_bytes),
                next_burst.eq(next_burst + 1),  # wraps: bursts is a power of two
            ]
            with m.If(next_burst == bursts - 1):
                m.d.sync += [left.eq(left - 1), asking_entry.eq(0)]
                with m.If(asking_entry):
                    m.d.sync += next_address.eq(Cat(Const(0, ITEM_ALIGN), self.program_address[ITEM_ALIGN:]))
                with m.If(left == 1):
                    m.d.sync += asking.eq(0)
        with m.If(asking & beyond):
            m.d.sync += asking.eq(0)
            with m.If(asking_entry):
                m.d.sync += entry_beyond.eq(1)
            with m.Else():
                m.d.sync += limit.eq(self.program_commands - left)
        with m.If(stop_asking):
            # An item that is asked for in part must still arrive as a whole, or what waits for it waits for ever.
            with m.If(next_burst == 0):
                m.d.sync += asking.eq(0)
            with m.Else():
                m.d.sync += left.eq(1)

        # --- arrivals: beats fill a row
        beat_data = self.memory.data
        item = Signal(range(rows))  # row being filled
        beat = Signal(range(item_beats))
        is_entry = Signal()  # the item arriving is the job's entry
        failed = Signal()  # an earlier beat of this item had an error
        final = Signal()  # nothing after this item is wanted
        last_beat, arrived, beat_final, beat_failed = Signal(), Signal(), Signal(), Signal()
        row_failed = Array(Signal(name=f"row_{row}_failed") for row in range(rows))
        queue = memory.Memory(shape=COMMAND_BITS, depth=rows, init=[])
        m.submodules.queue = queue
        write_port = queue.write_port(granularity=config.dma.bus_bits)
        read_port = queue.read_port()
        opcode = beat_data.p.data[:8]
        wanted = Signal()
        m.d.comb += [
            beat_data.ready.eq(1),
            wanted.eq(beat_data.valid & ~swallow),
            last_beat.eq(beat == item_beats - 1),
            arrived.eq(wanted & last_beat),
            beat_failed.eq(failed | beat_data.p.error),
            beat_final.eq(final | beat_data.p.error | ((beat == 0) & ~is_entry & (opcode == Opcode.END))),
            stop_asking.eq(wanted & beat_final),
            write_port.addr.eq(item),
            write_port.data.eq(beat_data.p.data.replicate(item_beats)),
            write_port.en.eq(Mux(wanted, Const(1, item_beats) << beat, 0)),
        ]
        with m.If(wanted):
            m.d.sync += [beat.eq(beat + 1), failed.eq(beat_failed), final.eq(beat_final)]
        with m.If(arrived):
            m.d.sync += [
                item.eq(Mux(item == rows - 1, 0, item + 1)),
                row_failed[item].eq(beat_failed),
                is_entry.eq(0),
                failed.eq(0),
                swallow.eq(beat_final),
            ]

        # --- head: the read port's output
        head_row = Signal(range(rows))
        head_valid, head_failed, head_is_entry, taken = Signal(), Signal(), Signal(), Signal()
        index = Signal(INDEX_BITS)  # of the command at the head, or of the next to come
        epoch = Signal(2)
        head_entry = data.View(JOB, read_port.data)
        unavailable = Signal()  # the next item is none that could be asked for
        m.d.comb += [
            read_port.addr.eq(head_row),
            read_port.en.eq(read),
            read.eq((filled != 0) & (~head_valid | taken)),
            self.entry_valid.eq(head_valid & head_is_entry & ~head_failed),
            self.entry.job.eq(head_entry.job),
            self.commands.valid.eq(head_valid & ~head_is_entry & ~head_failed & ~self.hold),
            self.commands.p.command.eq(read_port.data),
            self.commands.p.index.eq(index),
            self.commands.p.epoch.eq(epoch),
            taken.eq(self.entry_valid | (self.commands.valid & self.commands.ready)),
            unavailable.eq(active & Mux(head_is_entry, entry_beyond, index == limit)),
            self.fault.valid.eq(
                ((head_valid & head_failed) | unavailable) & self.engine_idle & ~self.hold & ~self.flush
            ),
            self.fault.report.code.eq(Fault.FETCH),
            self.fault.report.command.eq(index),
        ]
        for here, there in zip(self.entry.base, head_entry.base, strict=True):
            whole = there.bytes[config.address_bits :].any()
            size = Cat(Mux(whole, 0, there.bytes[: config.address_bits]), whole)
            m.d.comb += [
                here.address.eq(there.address),
                here.bytes.eq(Mux(there.address[config.address_bits :].any(), 0, size)),
            ]
        with m.If(taken):
            m.d.sync += [head_valid.eq(0), head_is_entry.eq(0)]
        with m.If(read):
            m.d.sync += [
                head_row.eq(Mux(head_row == rows - 1, 0, head_row + 1)),
                head_valid.eq(1),
                head_failed.eq(row_failed[head_row]),
            ]
        with m.If(self.commands.valid & self.commands.ready):
            m.d.sync += index.eq(index + 1)
            with m.If(read_port.data[:8] == Opcode.END):
                m.d.sync += active.eq(0)

        # --- counts
        m.d.sync += [
            filled.eq(filled + arrived - read),
            reserved.eq(reserved + (put_up & (next_burst == 0)) - read),
            in_flight.eq(in_flight + (request.valid & request.ready) - (beat_data.valid & beat_data.p.last)),
        ]

        # --- beginning and end of a job
        m.d.comb += self.ready.eq(~active & ~request.valid & (in_flight == 0) & ~self.flush)
        with m.If(self.fault.valid | self.flush):
            m.d.sync += [active.eq(0), asking.eq(0), swallow.eq(1), head_valid.eq(0), filled.eq(0)]
        with m.If(self.flush):
            m.d.sync += epoch.eq(epoch + 1)
        with m.If(self.start):
            entries_mask = (Const(1, JOB_INDEX_BITS) << self.job_ring_log2_entries) - 1
            entry_number = self.job_index & entries_mask[:JOB_INDEX_BITS]
            entry_address = Cat(Const(0, ITEM_ALIGN), self.job_ring_address[ITEM_ALIGN:] + entry_number)
            assert len(entry_address) == len(next_address)
            m.d.sync += [
                active.eq(1),
                asking.eq(1),
                asking_entry.eq(1),
                next_address.eq(entry_address),
                entry_beyond.eq(0),
                left.eq(self.program_commands + 1),
                limit.eq(self.program_commands),
                swallow.eq(0),
                is_entry.eq(1),
                final.eq(0),
                head_is_entry.eq(1),
                index.eq(0),
            ]
            m.d.sync += [signal.eq(0) for signal in (next_burst, reserved, filled, item, beat, failed, head_row)]
        return m
