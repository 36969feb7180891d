"""Commands as Python values, from the bits of a program's streams."""

import dataclasses
from typing import Any

from hw.spec.commands import BODIES, BODY_BITS, HEADER, OPERAND, OPERANDS, Cursor, Engine, Opcode, unpack
from sw.emit import Operand
from sw.program import Program


@dataclasses.dataclass(frozen=True)
class Command:
    """A decoded command; unused operands are None; ``body`` holds the fields by name."""

    opcode: int
    layer: int
    operands: tuple[Operand | None, ...]
    body: dict[str, Any]

    @property
    def name(self) -> str:
        try:
            return Opcode(self.opcode).name
        except ValueError:
            return f"ILLEGAL_{self.opcode}"


def decode(bits: int) -> Command:
    """Decode a command of any opcode; an unknown one has an empty body."""
    header = unpack(HEADER, bits & ((1 << HEADER.size) - 1))
    operands: list[Operand | None] = []
    for index in range(OPERANDS):
        fields = unpack(OPERAND, bits >> (HEADER.size + index * OPERAND.size) & ((1 << OPERAND.size) - 1))
        fields.pop("reserved")
        if fields["cursor"] == Cursor.NONE:
            operands.append(None)
        else:
            operands.append(Operand(**fields))
    body: dict[str, Any] = {}
    try:
        layout = BODIES[Opcode(header["opcode"])]
    except ValueError:
        layout = None
    if layout is not None:
        raw = bits >> (HEADER.size + OPERANDS * OPERAND.size) & ((1 << BODY_BITS) - 1)
        body = unpack(layout, raw & ((1 << layout.size) - 1))
    return Command(header["opcode"], header["layer"], tuple(operands), body)


def decode_stream(program: Program, engine: Engine) -> list[Command]:
    """Every command of one stream."""
    return [decode(program.command(engine, index)) for index in range(program.commands(engine))]
