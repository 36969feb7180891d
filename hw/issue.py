"""Issue unit: checks a command, waits for its operands, takes them, and hands the command to its engine.

::

    i ─► command register ─► decode ─► check operands ─► take operands ─┬─► o (engine commands)
                                         │      rings       │           ├─► hold until idle, commit, retire (WAIT, END)
                                         └──────────────────┘           └─► configure (RING_CONFIGURE, load engine)

Timing: docs/timing/issue.md.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import (
    CAUSE_FLAGS,
    FaultSignature,
    RetireSignature,
    RingCommitSignature,
    RingConfigureSignature,
    RingSignature,
    fetched_command,
    issued_command,
)
from hw.ring_address import wrap
from hw.spec.commands import (
    BASE_REGISTERS,
    BODIES,
    COMMAND,
    DMA_DATA_OPERAND,
    LEGAL_OPCODES,
    MAX_SLOTS,
    OPERAND,
    OPERANDS,
    PARAMETER_LINES,
    ComputeOperand,
    Cursor,
    Engine,
    Fault,
    Opcode,
)
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS


class _State(enum.Enum, shape=3):
    EMPTY = 0
    DECODE = 1
    CHECK = 2
    TAKE = 3
    OFFER = 4
    HOLD = 5  # WAIT, END: until the engine is quiet
    CONFIGURE = 6  # RING_CONFIGURE: until drained
    FAULTED = 7


class IssueUnit(wiring.Component):
    """Legality, operands, WAIT, END and RING_CONFIGURE of one engine's commands, in order, one at a time.

    A command with k operands costs 3 + 2k cycles when nothing waits. Faults OPCODE, RING and FIELD are reported here;
    nothing of a faulty command is taken.

    Parameters
    ----------
    config
        Widths and limits.
    engine
        Decides which opcodes are legal, and whether there is a member ``configure``.

    Attributes
    ----------
    i, o
        Commands in; engine commands, all operands taken, out.
    rings
        Look-ups, takes and commits (the engine's too) at the ring file.
    configure
        Load engine only: to the ring file.
    engine_commit, engine_retire, engine_idle
        From the engine; idle means that every command that left ``o`` has committed.
    retire
        Retirements of all commands; an index stands for every command before it.
    job_done
        Pulses when END retires.
    stop, idle
        Drop what is not begun, and what arrives; nothing is held.
    blocked
        A command waits for an operand, or RING_CONFIGURE for drained rings: only other engines can end it.
    stalled
        No cursor can move and no ring can be configured any more: an operand that does not fit its ring never will.
    fault, clear
        A pulse, after which nothing is accepted until ``clear``, which empties the unit.
    flags
        Why the engine has no command to work on.
    """

    def __init__(self, config: NpuConfig, engine: Engine):
        self._config = config
        self._engine = engine
        members = {
            "i": In(stream.Signature(fetched_command(config))),
            "o": Out(stream.Signature(issued_command(config))),
            "rings": Out(RingSignature(config)),
            "engine_commit": In(RingCommitSignature()),
            "engine_retire": In(RetireSignature()),
            "retire": Out(RetireSignature()),
            "engine_idle": In(1),
            "job_done": Out(1),
            "stop": In(1),
            "idle": Out(1),
            "blocked": Out(1),
            "stalled": In(1),
            "fault": Out(FaultSignature()),
            "clear": In(1),
            "flags": Out(CAUSE_FLAGS),
        }
        if engine == Engine.LOAD:
            members["configure"] = Out(RingConfigureSignature(config))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rings, flags = self.rings, self.flags
        command, index = Signal(COMMAND), Signal(INDEX_BITS)
        opcode = command.header.opcode
        state = Signal(_State)

        # The operand at hand: the first of those still to be checked, taken or committed.
        used, todo, rest = Signal(OPERANDS), Signal(OPERANDS), Signal(OPERANDS)
        operand = Signal(OPERAND)
        chosen: Value = command.operand[OPERANDS - 1].as_value()
        for k in reversed(range(OPERANDS - 1)):
            chosen = Mux(todo[k], command.operand[k].as_value(), chosen)
        m.d.comb += [
            used.eq(Cat(command.operand[k].cursor != Cursor.NONE for k in range(OPERANDS))),
            rest.eq(todo & (todo - 1)),
            operand.eq(chosen),
            rings.ring.eq(operand.ring),
            rings.cursor.eq(operand.cursor),
            rings.need.eq(operand.need),
            rings.advance.eq(operand.advance),
        ]

        # Retirements and commits: the engine's pass; those of this unit come only when the engine has none.
        engine_quiet, quiet, due = Signal(), Signal(), Signal()
        due_index = Signal(INDEX_BITS)
        retiring, committing = Signal(), Signal()
        engine_commit, engine_retire = self.engine_commit, self.engine_retire
        m.d.comb += [
            engine_quiet.eq(self.engine_idle & ~engine_commit.valid & ~engine_retire.valid),
            quiet.eq(engine_quiet & ~due),
            self.retire.valid.eq(engine_retire.valid | (due & engine_quiet) | retiring),
            self.retire.index.eq(Mux(engine_retire.valid, engine_retire.index, Mux(due, due_index, index))),
            rings.commit.eq(engine_commit.valid | committing),
            rings.commit_ring.eq(Mux(engine_commit.valid, engine_commit.ring, operand.ring)),
            rings.commit_cursor.eq(Mux(engine_commit.valid, engine_commit.cursor, operand.cursor)),
            rings.commit_advance.eq(Mux(engine_commit.valid, engine_commit.advance, operand.advance)),
        ]
        with m.If(engine_quiet | (engine_retire.valid & (engine_retire.index > due_index))):
            m.d.sync += due.eq(0)

        code = Signal(Fault)
        m.d.comb += [
            self.fault.valid.eq(code != Fault.NONE),
            self.fault.report.code.eq(code),
            self.fault.report.command.eq(index),
            self.idle.eq(((state == _State.EMPTY) | (state == _State.FAULTED)) & ~due),
        ]

        beyond_ring = self._beyond_ring(m, command, operand, todo & ~rest)
        with m.Switch(state):
            with m.Case(_State.EMPTY):
                m.d.comb += [
                    self.i.ready.eq(1),
                    flags.pipeline.eq(self.i.valid),
                    flags.wait_command.eq(~self.i.valid),
                ]
                with m.If(self.i.valid & ~self.stop):
                    m.d.sync += [
                        command.eq(self.i.payload.command),
                        index.eq(self.i.payload.index),
                        state.eq(_State.DECODE),
                    ]

            with m.Case(_State.DECODE):
                m.d.comb += flags.pipeline.eq(1)
                with m.If(self.stop):
                    m.d.sync += state.eq(_State.EMPTY)
                with m.Else():
                    self._decode(m, command, code, state, used, todo)

            with m.Case(_State.CHECK):
                with m.If(self.stop):
                    m.d.comb += flags.pipeline.eq(1)
                    m.d.sync += state.eq(_State.EMPTY)
                with m.Elif(rings.illegal):
                    m.d.comb += [flags.pipeline.eq(1), code.eq(Fault.RING)]
                # A ring's shape is certain only once it is ready: until then it may be about to be configured anew.
                with m.Elif(rings.ready & beyond_ring):
                    m.d.comb += [flags.pipeline.eq(1), code.eq(Fault.FIELD)]
                with m.Elif(rings.ready):
                    m.d.comb += flags.pipeline.eq(1)
                    m.d.sync += todo.eq(Mux(rest.any(), rest, used))
                    with m.If(~rest.any()):
                        m.d.sync += state.eq(_State.TAKE)
                with m.Elif(self.stalled & ~rings.fits):
                    m.d.comb += [flags.pipeline.eq(1), code.eq(Fault.RING)]
                with m.Else():
                    m.d.comb += [
                        self.blocked.eq(1),
                        flags.wait_free.eq(operand.cursor == Cursor.PRODUCER),
                        flags.wait_filled.eq(operand.cursor != Cursor.PRODUCER),
                    ]

            with m.Case(_State.TAKE):
                m.d.comb += [flags.pipeline.eq(1), rings.take.eq(1)]
                m.d.sync += todo.eq(Mux(rest.any(), rest, used))
                with m.If(~rest.any()):
                    m.d.sync += state.eq(Mux(opcode == Opcode.WAIT, _State.HOLD, _State.OFFER))

            with m.Case(_State.OFFER):
                m.d.comb += [flags.pipeline.eq(1), self.o.valid.eq(1)]
                with m.If(self.o.ready):
                    m.d.sync += state.eq(_State.EMPTY)

            with m.Case(_State.HOLD):
                with m.If(self.stop & ~todo.any()):
                    m.d.comb += flags.pipeline.eq(1)
                    m.d.sync += state.eq(_State.EMPTY)
                with m.Elif(quiet):
                    m.d.comb += [flags.pipeline.eq(1), committing.eq(todo.any())]
                    m.d.sync += todo.eq(rest)
                    with m.If(~rest.any()):
                        m.d.comb += [retiring.eq(1), self.job_done.eq(opcode == Opcode.END)]
                        m.d.sync += state.eq(_State.EMPTY)

            if self._engine == Engine.LOAD:
                with m.Case(_State.CONFIGURE):
                    self._configure(m, command, state, index, due, due_index)

        self._offer(m, command, index, operand, todo)
        with m.If(self.fault.valid):
            m.d.sync += state.eq(_State.FAULTED)
        with m.If(self.clear):
            m.d.sync += [state.eq(_State.EMPTY), due.eq(0)]
        return m

    def _decode(self, m: Module, command: data.View, code: Signal, state: Signal, used: Signal, todo: Signal) -> None:
        """Opcode and body; then on to the operands, if the command has any."""
        m.d.sync += todo.eq(used)
        with m.Switch(command.header.opcode):
            for opcode in LEGAL_OPCODES[self._engine]:
                with m.Case(opcode):
                    if opcode == Opcode.END:
                        m.d.sync += [todo.eq(0), state.eq(_State.HOLD)]
                    elif opcode == Opcode.RING_CONFIGURE:
                        m.d.sync += state.eq(_State.CONFIGURE)
                    else:
                        without = _State.HOLD if opcode == Opcode.WAIT else _State.OFFER
                        m.d.sync += state.eq(Mux(used.any(), _State.CHECK, without))
                    if BODIES[opcode] is not None:
                        missing = (self._addressed(opcode, _body(command, opcode)) & ~used).any()
                        with m.If(self._bad_body(m, opcode, _body(command, opcode)) | missing):
                            m.d.comb += code.eq(Fault.FIELD)
            with m.Default():
                m.d.comb += code.eq(Fault.OPCODE)

    def _addressed(self, opcode: Opcode, body: data.View) -> Value:
        """The operands that the engine will address, a bit each."""
        if opcode in (Opcode.END, Opcode.WAIT, Opcode.RING_CONFIGURE):
            return Const(0, OPERANDS)
        if opcode != Opcode.CONVOLVE:
            return Const(1 << DMA_DATA_OPERAND, OPERANDS)
        last = body.accumulate_last
        addressed = {
            ComputeOperand.INPUT: Const(1, 1),
            ComputeOperand.WEIGHTS: last | ~body.maximum,
            ComputeOperand.TABLE: last & body.load_table,
            ComputeOperand.RESIDUAL: last & body.residual,
            ComputeOperand.OUTPUT: last,
        }
        return Cat(addressed[operand] for operand in ComputeOperand)

    def _steps(self, opcode: Opcode, body: data.View) -> list[tuple[int, Value | int, Value]]:
        """Every step that the engine takes through an operand's ring: operand, whether it is taken, bytes.

        Addresses wrap by one subtraction, so that no step may be longer than the ring. The body is already checked:
        only bits that a scratchpad address may have matter.
        """
        n, bits = self._config.array.n, self._config.scratchpad_address_bits + 1
        if opcode in (Opcode.END, Opcode.WAIT, Opcode.RING_CONFIGURE):
            return []
        if opcode != Opcode.CONVOLVE:
            strides = [(DMA_DATA_OPERAND, body.count[k] != 1, body.scratchpad_stride[k][:bits]) for k in range(3)]
            return [(DMA_DATA_OPERAND, 1, body.run_bytes[:bits]), *strides]
        several = body.out_rows != 1
        return [
            (ComputeOperand.INPUT, 1, Const(1)),
            (ComputeOperand.INPUT, body.in_blocks != 1, body.in_block_stride[:bits]),
            (ComputeOperand.WEIGHTS, 1, Mux(body.accumulate_last, PARAMETER_LINES * n, n)),
            (ComputeOperand.TABLE, 1, Const(n)),
            (ComputeOperand.RESIDUAL, 1, Const(n)),
            (ComputeOperand.RESIDUAL, several, body.residual_row_stride[:bits]),
            (ComputeOperand.OUTPUT, 1, Const(n)),
            (ComputeOperand.OUTPUT, several, body.out_row_stride[:bits]),
        ]

    def _beyond_ring(self, m: Module, command: data.View, operand: data.View, at_hand: Value) -> Value:
        """Whether the operand at hand (one bit of ``at_hand``) would lead the engine out of its ring."""
        ring_bytes = self.rings.ring_bytes
        beyond = Signal()
        m.d.comb += beyond.eq(operand.offset > ring_bytes)
        with m.Switch(command.header.opcode):
            for opcode in LEGAL_OPCODES[self._engine]:
                layout = BODIES[opcode]
                if layout is None or opcode == Opcode.RING_CONFIGURE:
                    continue
                body = _body(command, opcode)
                with m.Case(opcode):
                    here = at_hand & self._addressed(opcode, body)
                    for number, taken, step in self._steps(opcode, body):
                        with m.If(here[number] & taken & (step > ring_bytes)):
                            m.d.comb += beyond.eq(1)
        return beyond

    def _bad_body(self, m: Module, opcode: Opcode, body: data.View) -> Value:
        config = self._config
        size, bits = config.scratchpad.bytes, config.scratchpad_address_bits
        if opcode == Opcode.CONVOLVE:
            loops = (body.out_width, body.out_rows, body.kernel_width, body.kernel_height, body.in_blocks)
            strides = (body.in_row_stride, body.in_block_stride, body.out_row_stride, body.residual_row_stride)
            return (
                Cat(loop == 0 for loop in loops).any()
                | (body.out_width * body.out_rows > config.accumulator_half)
                | Cat(stride[bits + 1 :].any() for stride in strides).any()
                | (body.diagonal & body.maximum)
            )
        if opcode == Opcode.RING_CONFIGURE:
            product = body.slots[: MAX_SLOTS.bit_length()] * body.slot_bytes[: bits + 1]
            return (
                (body.ring >= config.rings.count)
                | (body.base >= size)
                | (body.base + body.ring_bytes > size)
                | (body.slots == 0)
                | (body.slots > MAX_SLOTS)
                | (body.slot_bytes > size)
                | body.consumer_mask[config.rings.consumers :].any()
                | (product != body.ring_bytes)
                | (body.base[: (config.word_bytes - 1).bit_length()] != 0)
            )
        strides = [body.scratchpad_stride[k] > size for k in range(3)]
        return (
            (body.run_bytes == 0)
            | (body.run_bytes > size)
            | (body.base >= BASE_REGISTERS)
            | Cat(body.count[k] == 0 for k in range(3)).any()
            | Cat(strides).any()
        )

    def _configure(
        self, m: Module, command: data.View, state: Signal, index: Signal, due: Signal, due_index: Signal
    ) -> None:
        body = _body(command, Opcode.RING_CONFIGURE)
        configure = self.configure
        # The ring itself too, whatever the mask says: a ring in use never changes its shape.
        m.d.comb += configure.drained_mask.eq(body.drained_mask | (1 << body.ring[:5]))
        with m.If(self.stop):
            m.d.comb += self.flags.pipeline.eq(1)
            m.d.sync += state.eq(_State.EMPTY)
        with m.Elif(configure.drained):
            m.d.comb += [self.flags.pipeline.eq(1), configure.valid.eq(1)]
            m.d.sync += [due.eq(1), due_index.eq(index), state.eq(_State.EMPTY)]
        with m.Else():
            m.d.comb += [self.blocked.eq(1), self.flags.wait_free.eq(1)]

    def _offer(self, m: Module, command: data.View, index: Signal, operand: data.View, todo: Signal) -> None:
        """The places of operands, kept as they are taken; and the fields that go out as they came in."""
        rings, o = self.rings, self.o.payload
        m.d.comb += [o.command.eq(command), o.index.eq(index)]
        first = todo & ~(todo - 1)
        start = wrap(rings.start + operand.offset[: len(rings.ring_bytes)], rings.ring_bytes)
        for k in range(OPERANDS):
            base = Signal.like(rings.base, name=f"base_{k}")
            offset = Signal.like(rings.start, name=f"start_{k}")
            ring_bytes = Signal.like(rings.ring_bytes, name=f"ring_bytes_{k}")
            with m.If(rings.take & first[k]):
                m.d.sync += [base.eq(rings.base), offset.eq(start), ring_bytes.eq(rings.ring_bytes)]
            m.d.comb += [
                o.operand[k].ring.eq(command.operand[k].ring),
                o.operand[k].cursor.eq(command.operand[k].cursor),
                o.operand[k].advance.eq(command.operand[k].advance),
                o.operand[k].base.eq(base),
                o.operand[k].start.eq(offset),
                o.operand[k].ring_bytes.eq(ring_bytes),
            ]
        if self._engine == Engine.LOAD:
            body, configure = _body(command, Opcode.RING_CONFIGURE), self.configure
            for name in ("ring", "base", "slots", "slot_bytes", "ring_bytes", "consumer_mask"):
                m.d.comb += getattr(configure, name).eq(body[name])
            for k in range(self._config.rings.consumers):
                m.d.comb += configure.follows[k].eq(body.follows[k])


def _body(command: data.View, opcode: Opcode) -> data.View:
    layout = BODIES[opcode]
    assert layout is not None
    return data.View(layout, command.body[: layout.size])
