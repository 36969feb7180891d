"""The commands that a DMA unit has under way: their rings for the data side, and their commits, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import RetireSignature, RingCommitSignature
from hw.spec.commands import COMMAND, COUNT_BITS, DMA_DATA_OPERAND, OPERANDS, TRANSFER, Cursor, Opcode
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS
from hw.transfer_walker import DIMENSIONS

DEPTH = 4
"""Commands that may be under way."""

_OPERAND = data.StructLayout({"ring": 6, "cursor": 3, "advance": COUNT_BITS})
_COMMIT = data.StructLayout({"index": INDEX_BITS, "operand": data.ArrayLayout(_OPERAND, OPERANDS)})


def ring_place(config: NpuConfig) -> data.StructLayout:
    """What the data side must know of a command."""
    bits = config.scratchpad_address_bits
    return data.StructLayout({"ring_end": bits + 1, "ring_bytes": bits + 1, "fill": 8})


def command_context(config: NpuConfig) -> data.StructLayout:
    return data.StructLayout({"place": ring_place(config), "commit": _COMMIT})


def decode(
    m: Module, config: NpuConfig, issued: data.View, base: data.View, walk: data.View, context: data.View
) -> None:
    """Drive what the walker and the contexts take from an issued command; combinational."""
    command = data.View(COMMAND, issued.command)
    body = data.View(TRANSFER, command.body[: TRANSFER.size])
    where = issued.operand[DMA_DATA_OPERAND]
    place_bits = config.scratchpad_address_bits + 1
    m.d.comb += [
        walk.fill.eq(command.header.opcode == Opcode.FILL),
        walk.run_bytes.eq(body.run_bytes),
        walk.count.eq(body.count),
        walk.dram_offset.eq(body.dram_offset),
        walk.dram_stride.eq(body.dram_stride),
        walk.base_address.eq(base[body.base[:2]].address),
        walk.base_bytes.eq(base[body.base[:2]].bytes),
        walk.start.eq(where.start),
        walk.ring_bytes.eq(where.ring_bytes),
        context.place.ring_end.eq(where.base + where.ring_bytes),
        context.place.ring_bytes.eq(where.ring_bytes),
        context.place.fill.eq(body.fill),
        context.commit.index.eq(issued.index),
    ]
    m.d.comb += [walk.place_stride[d].eq(body.scratchpad_stride[d][:place_bits]) for d in range(DIMENSIONS)]
    for passed, operand in zip(context.commit.operand, issued.operand, strict=True):
        m.d.comb += [
            passed.ring.eq(operand.ring),
            passed.cursor.eq(operand.cursor),
            passed.advance.eq(operand.advance),
        ]


class CommandContexts(wiring.Component):
    """A queue of up to ``DEPTH`` commands with two readers: the data side, then the commits.

    A pulse of ``moved`` steps ``place`` to the next command. Each pulse of ``complete`` lets the oldest command that
    has not been completed commit: from the next cycle on one operand a cycle (those without a cursor cost nothing), and
    ``retire`` with the last of them. ``settled`` when no completed command is left to commit. ``index`` is that of the
    oldest command not retired. ``flush`` forgets all commands, also one accepted in that cycle.
    """

    i: stream.Interface
    place: data.View
    moved: Signal
    complete: Signal
    commit: wiring.PureInterface
    retire: wiring.PureInterface
    index: Signal
    settled: Signal
    empty: Signal
    flush: Signal

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "i": In(stream.Signature(command_context(config))),
                "place": Out(ring_place(config)),
                "moved": In(1),
                "complete": In(1),
                "commit": Out(RingCommitSignature()),
                "retire": Out(RetireSignature()),
                "index": Out(INDEX_BITS),
                "settled": Out(1),
                "empty": Out(1),
                "flush": In(1),
            }
        )
        self._config = config

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.places = places = memory.Memory(shape=ring_place(self._config), depth=DEPTH, init=[])
        m.submodules.commits = commits = memory.Memory(shape=_COMMIT, depth=DEPTH, init=[])
        tail = Signal(range(DEPTH))
        moving = Signal(range(DEPTH))
        head = Signal(range(DEPTH))
        held = Signal(range(DEPTH + 1))
        completed = Signal(range(DEPTH + 1))
        taken = Signal()

        m.d.comb += [
            self.empty.eq(held == 0),
            self.settled.eq(completed == 0),
            self.i.ready.eq(held != DEPTH),
            taken.eq(self.i.valid & self.i.ready),
        ]
        for store, value in ((places, self.i.payload.place), (commits, self.i.payload.commit)):
            port = store.write_port()
            m.d.comb += [port.en.eq(taken), port.addr.eq(tail), port.data.eq(value)]
        place_port = places.read_port(domain="comb")
        commit_port = commits.read_port(domain="comb")
        m.d.comb += [
            place_port.addr.eq(moving),
            self.place.eq(place_port.data),
            commit_port.addr.eq(head),
            self.index.eq(commit_port.data.index),
            self.retire.index.eq(commit_port.data.index),
        ]

        # Operands of the head still to pass: the lowest goes first.
        passed = Signal(OPERANDS)
        waiting = Signal(OPERANDS)
        rest = Signal(OPERANDS)
        operands = commit_port.data.operand
        m.d.comb += waiting.eq(Cat(operands[i].cursor != Cursor.NONE for i in range(OPERANDS)) & ~passed)
        m.d.comb += rest.eq(waiting & (waiting - 1)[:OPERANDS])
        with m.If(completed != 0):
            m.d.comb += [self.commit.valid.eq(waiting != 0), self.retire.valid.eq(rest == 0)]
            m.d.sync += passed.eq(Mux(rest == 0, 0, passed | (waiting & ~rest)))
        for i in reversed(range(OPERANDS)):
            with m.If(waiting[i]):
                m.d.comb += [
                    self.commit.ring.eq(operands[i].ring),
                    self.commit.cursor.eq(operands[i].cursor),
                    self.commit.advance.eq(operands[i].advance),
                ]

        retire = self.retire.valid
        m.d.sync += [
            tail.eq(tail + taken),
            moving.eq(moving + self.moved),
            head.eq(head + retire),
            held.eq(held + taken - retire),
            completed.eq(completed + self.complete - retire),
        ]
        with m.If(self.flush):
            m.d.sync += [tail.eq(0), moving.eq(0), head.eq(0), held.eq(0), completed.eq(0), passed.eq(0)]
        return m
