"""Commands as text, and back: one command a line, every non-zero field by name.

    LOAD layer=3 0:r1.p need=1 advance=1 base=0 run_bytes=256 dram_offset=0x40 count=[4,1,1]

An operand is ``slot:rRING.CURSOR`` with the cursor ``c0`` to ``c3`` or ``p``, then its ``need``, ``advance`` and
``offset``.
"""

import ast
import re
from collections.abc import Iterable
from typing import Any

from hw.spec.commands import OPERANDS, Cursor, Opcode
from sw.decode import Command
from sw.emit import Operand, encode

_OPERAND = re.compile(r"(\d):r(\d+)\.(c[0-3]|p)$")


class AssemblyError(ValueError):
    """A line that is no command; the message is one line."""


def disassemble(command: Command) -> str:
    """One line of text. ``assemble`` of a legal command's line gives the command's bits back."""
    parts = [command.name]
    if command.layer:
        parts.append(f"layer={command.layer}")
    for index, operand in enumerate(command.operands):
        if operand is None:
            continue
        cursor = "p" if operand.cursor == Cursor.PRODUCER else f"c{int(operand.cursor)}"
        parts.append(f"{index}:r{operand.ring}.{cursor}")
        parts += [f"{key}={getattr(operand, key)}" for key in ("need", "advance", "offset") if getattr(operand, key)]
    for key, value in command.body.items():
        if isinstance(value, list):
            if any(value):
                parts.append(f"{key}=[{','.join(map(str, value))}]")
        elif value:
            parts.append(f"{key}={value}")
    return " ".join(parts)


def assemble(line: str) -> int:
    """Bits of one line. Raises ``AssemblyError``."""
    words = line.split()
    if not words or words[0] not in Opcode.__members__:
        raise AssemblyError(f"no such command: {line.strip()[:80]!r}")
    layer = 0
    operands: list[Operand | None] = [None] * OPERANDS
    body: dict[str, Any] = {}
    current = -1
    for word in words[1:]:
        match = _OPERAND.match(word)
        if match:
            current = int(match[1])
            if current >= OPERANDS:
                raise AssemblyError(f"there is no operand {current}: {line.strip()[:80]!r}")
            cursor = Cursor.PRODUCER if match[3] == "p" else Cursor(int(match[3][1]))
            operands[current] = Operand(int(match[2]), cursor)
            continue
        key, equals, text = word.partition("=")
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            equals = ""
            value = None
        if not equals or not isinstance(value, int | list):
            raise AssemblyError(f"{word!r} is neither an operand nor key=value: {line.strip()[:80]!r}")
        operand = operands[current] if current >= 0 else None
        if key == "layer" and isinstance(value, int):
            layer = value
        elif key in ("need", "advance", "offset") and operand is not None:
            operands[current] = Operand(**{**vars(operand), key: value})
        else:
            body[key] = value
    try:
        return encode(Opcode[words[0]], layer, operands, body)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise AssemblyError(f"{error}: {line.strip()[:80]!r}") from None


def assemble_lines(lines: Iterable[str]) -> list[int]:
    """Bits of each line; empty lines and those that begin with ``#`` are passed over."""
    return [assemble(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
