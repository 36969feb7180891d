"""The static check: proves for a program that the hardware refuses none of its commands, that it cannot deadlock,
overflow a ring, read what was not written, or let two engines race for a byte, on chip or in DRAM.

Fields are checked as ``hw/issue.py`` does, order by `sw.replay`, bytes here. Every access lies within the slots that
its command acquired, so within one length of the ring from where it starts, and no step is longer than the ring: that
is all that the address generators need, which wrap by one subtraction (window, line walker, weight loader, DMA).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import (
    BASE_REGISTERS,
    BODIES,
    DMA_DATA_OPERAND,
    LEGAL_OPCODES,
    MAX_SLOTS,
    PARAMETER_LINES,
    TABLE_BYTES,
    ComputeOperand,
    Cursor,
    Engine,
    Opcode,
)
from hw.spec.config import NpuConfig
from sw.decode import Command, decode_stream
from sw.program import BASE_ARENA, BASE_CONSTANTS, BASE_INPUT, BASE_OUTPUT, Program
from sw.replay import Event, Place, Replay, ReplayError

BUFFERS = {BASE_CONSTANTS: "constants", BASE_ARENA: "arena", BASE_INPUT: "input", BASE_OUTPUT: "output"}
READ_ONLY = (BASE_CONSTANTS, BASE_INPUT)


class CheckError(ValueError):
    """A program that the check refuses; the message is one line and names the command."""


def check_program(program: Program, config: NpuConfig, jobs: int = 2) -> None:
    """Check ``program`` as ``jobs`` consecutive jobs over the same buffers. Raises ``CheckError``."""
    if program.config_hash != config.hash:
        raise CheckError(
            f"the program is for configuration {program.config_hash:08x}, not {config.hash:08x} ({config.name})"
        )
    streams = {engine: decode_stream(program, engine) for engine in Engine}
    check_streams(streams, program.buffer_bytes, config, jobs)
    check_command_lengths(streams, config)


def check_streams(
    streams: dict[Engine, list[Command]], buffer_bytes: dict[str, int], config: NpuConfig, jobs: int = 1
) -> None:
    """Check decoded streams against buffers of the given sizes. Raises ``CheckError``."""
    for engine, commands in streams.items():
        fields = _Fields(config, engine)
        for index, command in enumerate(commands):
            fields.check(index, command)
            if command.opcode == Opcode.END and index != len(commands) - 1:
                raise CheckError(f"{engine.name.lower()} command {index}: END before the end of the stream")
    checker = _Checker(config, buffer_bytes)
    replay = Replay(config, streams, jobs)
    try:
        for event in replay:
            checker.visit(event)
    except ReplayError as error:
        raise CheckError(str(error)) from None
    for number, ring in enumerate(replay.rings):
        if not ring.drained():
            raise CheckError(f"ring {number} is not drained at the end of the program")


def check_command_lengths(streams: dict[Engine, list[Command]], config: NpuConfig) -> None:
    """Check that nothing takes longer than ``command_cycles_max`` on an ideal memory. Raises ``CheckError``.

    A chain of CONVOLVE counts as one, by docs/timing/compute.md. A transfer takes a beat for each ``bus_bytes`` bytes,
    and one more a run.
    """
    most = config.command_cycles_max
    for engine, commands in streams.items():
        cycles = 0
        for index, command in enumerate(commands):
            body = command.body
            if command.opcode == Opcode.CONVOLVE:
                pixels = body["out_width"] * body["out_rows"]
                tiles = body["in_blocks"] * body["kernel_height"] * body["kernel_width"]
                fewest = 2 if body["maximum"] or body["diagonal"] else config.array.n + 1
                cycles = 0 if body["accumulate_first"] else cycles
                cycles += tiles * max(pixels, fewest)
                what = "cycles with the commands that it goes on from"
            elif command.opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
                count = int(np.prod(body["count"], dtype=np.int64))
                cycles = -(-count * body["run_bytes"] // config.bus_bytes) + count
                what = "beats"
            else:
                continue
            if cycles > most:
                raise CheckError(
                    f"{engine.name.lower()} command {index} ({command.name}) takes {cycles} {what}; "
                    f"command_cycles_max allows {most}"
                )


class _Fields:
    """What can be said of one engine's commands without their rings: the rules of ``hw/issue.py``, and chains."""

    def __init__(self, config: NpuConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._chain: int | None = None
        """Pixels of the chain that goes on; None between chains."""

    def check(self, index: int, command: Command) -> None:
        self._where = f"{self._engine.name.lower()} command {index} ({command.name})"
        self._require(
            command.opcode in LEGAL_OPCODES[self._engine],
            f"does not belong into the {self._engine.name.lower()} stream",
        )
        opcode = Opcode(command.opcode)
        used = [operand for operand in command.operands if operand is not None]
        cursors = {(operand.ring, operand.cursor) for operand in used}
        self._require(len(cursors) == len(used), "names one cursor of a ring twice")
        if opcode in (Opcode.END, Opcode.RING_CONFIGURE):
            self._require(not used, "has an operand, which the hardware ignores")
        if opcode == Opcode.RING_CONFIGURE:
            self._configure(command.body)
        elif opcode == Opcode.CONVOLVE:
            self._convolve(command)
        elif BODIES[opcode] is not None:
            self._transfer(opcode, command)

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            raise CheckError(f"{self._where} {message}")

    def _configure(self, body: dict[str, Any]) -> None:
        config = self._config
        size, slots, consumers = config.scratchpad.bytes, body["slots"], config.rings.consumers
        number = body["ring"]
        self._require(number < config.rings.count, f"configures ring {number}; there are {config.rings.count}")
        self._require(0 < slots <= MAX_SLOTS, f"has {slots} slots; a ring may have 1 to {MAX_SLOTS}")
        self._require(
            body["ring_bytes"] == slots * body["slot_bytes"],
            f"gives {body['ring_bytes']} bytes to {slots} slots of {body['slot_bytes']}",
        )
        self._require(
            body["base"] < size and body["base"] + body["ring_bytes"] <= size,
            f"places ring {number} beyond the scratchpad",
        )
        self._require(
            body["base"] % config.word_bytes == 0,
            f"places ring {number} at {body['base']}, which is no multiple of {config.word_bytes}",
        )
        self._require(
            not body["consumer_mask"] >> consumers, f"names a consumer that does not exist; rings have {consumers}"
        )
        for consumer, followed in enumerate(body["follows"]):
            if body["consumer_mask"] >> consumer & 1:
                self._require(
                    followed == Cursor.PRODUCER or (followed < consumers and body["consumer_mask"] >> followed & 1),
                    f"lets consumer {consumer} follow {followed}, which is not active",
                )

    def _transfer(self, opcode: Opcode, command: Command) -> None:
        body = command.body
        size = self._config.scratchpad.bytes
        operand = command.operands[DMA_DATA_OPERAND]
        self._require(operand is not None, "has no data operand")
        self._require(body["run_bytes"] > 0, "moves nothing: run_bytes is 0")
        self._require(body["base"] < BASE_REGISTERS, f"names base register {body['base']}")
        self._require(min(body["count"]) > 0, "moves nothing: a count is 0")
        for field in (body["run_bytes"], *body["scratchpad_stride"]):
            self._require(field <= size, f"steps {field} bytes in a scratchpad of {size}")
        if opcode == Opcode.STORE:
            self._require(body["base"] not in READ_ONLY, f"stores into the {BUFFERS[body['base']]} buffer")

    def _convolve(self, command: Command) -> None:
        body = command.body
        loops = ("out_width", "out_rows", "kernel_width", "kernel_height", "in_blocks")
        for loop in loops:
            self._require(body[loop] > 0, f"has {loop} 0")
        pixels = body["out_width"] * body["out_rows"]
        half = self._config.accumulator_half
        self._require(pixels <= half, f"computes {pixels} pixels; half the accumulator holds {half}")
        for stride in ("in_row_stride", "in_block_stride", "out_row_stride", "residual_row_stride"):
            size = 2 * self._config.scratchpad.bytes
            self._require(body[stride] < size, f"has {stride} {body[stride]}; it must be less than {size}")
        self._require(not (body["diagonal"] and body["maximum"]), "has diagonal weights for a maximum")
        last = body["accumulate_last"]
        needed = {
            ComputeOperand.INPUT: True,
            ComputeOperand.WEIGHTS: last or not body["maximum"],
            ComputeOperand.TABLE: last and body["load_table"],
            ComputeOperand.RESIDUAL: last and body["residual"],
            ComputeOperand.OUTPUT: last,
        }
        for which, need in needed.items():
            operand = command.operands[which]
            self._require(not need or operand is not None, f"has no {which.name.lower()} operand")
            if not last and which in (ComputeOperand.RESIDUAL, ComputeOperand.OUTPUT):
                self._require(
                    operand is None or operand.advance == 0,
                    f"moves its {which.name.lower()} operand, which only a chain's last command commits",
                )
        if not body["accumulate_first"]:
            self._require(self._chain is not None, "goes on with a chain that no command began")
            self._require(self._chain == pixels, f"computes {pixels} pixels in a chain of {self._chain}")
        self._chain = None if last else pixels


def runs(body: dict) -> list[tuple[int, int]]:
    """(DRAM offset, scratchpad delta) of every run of a transfer, in order."""
    result = []
    for i2 in range(body["count"][2]):
        for i1 in range(body["count"][1]):
            for i0 in range(body["count"][0]):
                steps = (i0, i1, i2)
                dram = sum(i * s for i, s in zip(steps, body["dram_stride"], strict=True))
                delta = sum(i * s for i, s in zip(steps, body["scratchpad_stride"], strict=True))
                result.append((body["dram_offset"] + dram, delta))
    return result


class _Dram:
    """Who last wrote and read each granule of one buffer (indices of store and load commands, plus one)."""

    GRANULE = 4

    def __init__(self, size: int, written: bool) -> None:
        granules = -(-size // self.GRANULE)
        self.size = size
        self._stored: NDArray[np.int32] = np.zeros(granules, np.int32) if written else np.full(granules, -1, np.int32)
        self._loaded: NDArray[np.int32] = np.zeros(granules, np.int32)

    def _span(self, offset: int, size: int) -> slice:
        return slice(offset // self.GRANULE, -(-(offset + size) // self.GRANULE))

    def store(self, offset: int, size: int, index: int) -> int:
        """Note a store; the last load of the bytes before. A granule is written once all of it is, by one store."""
        span = self._span(offset, size)
        stored = self._stored[span]
        stored[stored >= 0] = index + 1
        self._stored[-(-offset // self.GRANULE) : (offset + size) // self.GRANULE] = index + 1
        return int(self._loaded[span].max())

    def load(self, offset: int, size: int, index: int) -> tuple[bool, int]:
        """Note a load; whether all of the bytes are written, and the last store of them."""
        span = self._span(offset, size)
        self._loaded[span] = index + 1
        stored = self._stored[span]
        return int(stored.min()) >= 0, int(stored.max())


class _Checker:
    def __init__(self, config: NpuConfig, buffer_bytes: dict[str, int]) -> None:
        self.config = config
        self.n = config.array.n
        self.written = np.zeros(config.scratchpad.bytes, bool)
        self.dram = {base: _Dram(buffer_bytes[name], written=base in READ_ONLY) for base, name in BUFFERS.items()}

    def visit(self, event: Event) -> None:
        self._where = f"{event.engine.name.lower()} command {event.index} ({event.command.name})"
        for operand, place in zip(event.command.operands, event.places, strict=True):
            if (
                operand is not None
                and place is not None
                and operand.cursor == Cursor.PRODUCER
                and operand.need
                and place.ring.slot_bytes
            ):
                # Newly reserved slots hold nothing yet.
                reserved = place.ring.reserved - place.ring.producer.issue + operand.advance
                first = (reserved - operand.need) * place.ring.slot_bytes
                base = Place(place.ring, place.start - operand.offset, 0)
                for start, end in base.pieces(first, operand.need * place.ring.slot_bytes):
                    self.written[start:end] = False
        opcode = event.command.opcode
        if opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
            self._transfer(event)
        elif opcode == Opcode.CONVOLVE:
            self._convolve(event)

    def _fail(self, message: str) -> CheckError:
        return CheckError(f"{self._where} {message}")

    def _reads(self, place: Place, delta: int, size: int, what: str, lines: Sequence[int] = ()) -> None:
        """``size`` bytes from ``delta`` on are read; ``lines`` begin at these offsets from there, and do not wrap."""
        if place.produces:
            raise self._fail(f"reads {what} through a producer cursor")
        if delta + size > place.room:
            raise self._fail(f"reads {what} beyond the slots that it acquired")
        for first, last in place.pieces(delta, size):
            if not self.written[first:last].all():
                raise self._fail(f"reads {what} that nothing has written")
        self._lines(place, delta, size, lines, f"reads {what}")

    def _writes(self, place: Place, delta: int, size: int, lines: Sequence[int] = ()) -> None:
        if not place.produces:
            raise self._fail("writes through a consumer cursor")
        if delta + size > place.room:
            raise self._fail("writes beyond the slots that it reserved")
        for first, last in place.pieces(delta, size):
            self.written[first:last] = True
        self._lines(place, delta, size, lines, "writes")

    def _lines(self, place: Place, delta: int, size: int, lines: Sequence[int], what: str) -> None:
        """The compute engine wraps where a line begins, not inside of it."""
        end = place.ring.bytes - place.ring.wrap(place.start + delta)
        if end < size and any(line < end < line + self.n for line in lines):
            raise self._fail(f"{what} across the end of its ring, inside a line")

    def _operand(self, event: Event, index: int, *steps: int) -> Place:
        """An operand's place. Addresses wrap by one subtraction: no step may be longer than the ring."""
        place = event.places[index]
        assert place is not None
        for step in steps:
            if step > place.ring.bytes:
                raise self._fail(f"steps {step} bytes, which passes the end of a ring of {place.ring.bytes} bytes")
        return place

    def _transfer(self, event: Event) -> None:
        body = event.command.body
        opcode = event.command.opcode
        size = body["run_bytes"]
        strides = [s for s, count in zip(body["scratchpad_stride"], body["count"], strict=True) if count > 1]
        place = self._operand(event, DMA_DATA_OPERAND, size, *strides)
        dram = self.dram[body["base"]]
        for offset, delta in runs(body):
            if opcode != Opcode.FILL and not 0 <= offset <= offset + size <= dram.size:
                raise self._fail(f"reaches from byte {offset} to byte {offset + size} of a buffer of {dram.size}")
            if opcode == Opcode.STORE:
                self._reads(place, delta, size, "scratchpad")
                if dram.store(offset, size, event.index) > event.started[Engine.LOAD]:
                    raise self._fail("may overwrite DRAM that an earlier load has not read yet")
                continue
            self._writes(place, delta, size)
            if opcode == Opcode.LOAD:
                written, stored = dram.load(offset, size, event.index)
                if not written:
                    raise self._fail("reads DRAM that nothing has written")
                if stored > event.started[Engine.STORE]:
                    raise self._fail("may read DRAM before an earlier store has written it")

    def _convolve(self, event: Event) -> None:
        body = event.command.body
        n = self.n
        width, rows = body["out_width"], body["out_rows"]
        place = self._operand(event, ComputeOperand.INPUT, 1, body["in_block_stride"] if body["in_blocks"] > 1 else 1)
        halve = body["upsample"]

        def touched(origin: int, count: int, stride: int, taps: int, dilation: int, limit: int) -> list[int]:
            found = {origin + o * stride + k * dilation for o in range(count) for k in range(taps)}
            return sorted({position >> halve for position in found if 0 <= position < limit})

        columns = touched(
            body["x_origin"], width, body["stride_x"], body["kernel_width"], body["dilation_x"], body["in_width"]
        )
        lines = touched(
            body["y_origin"], rows, body["stride_y"], body["kernel_height"], body["dilation_y"], body["in_rows"]
        )
        if columns and lines:
            pixel = body["in_pixel_stride"]
            first, size = columns[0] * pixel, (columns[-1] - columns[0]) * pixel + n
            starts = [(column - columns[0]) * pixel for column in columns]
            for block in range(body["in_blocks"]):
                for line in lines:
                    delta = block * body["in_block_stride"] + line * body["in_row_stride"] + first
                    self._reads(place, delta, size, "input", starts)
        tiles = 0 if body["maximum"] else body["in_blocks"] * body["kernel_height"] * body["kernel_width"]
        size = tiles * (n if body["diagonal"] else n * n) + (PARAMETER_LINES * n if body["accumulate_last"] else 0)
        if size:
            self._reads(self._operand(event, ComputeOperand.WEIGHTS), 0, size, "weights", range(0, size, n))
        if not body["accumulate_last"]:
            return
        if body["load_table"]:
            table = self._operand(event, ComputeOperand.TABLE)
            self._reads(table, 0, TABLE_BYTES, "a table", range(0, TABLE_BYTES, n))
        line = range(0, width * n, n)
        if body["residual"]:
            stride = body["residual_row_stride"]
            residual = self._operand(event, ComputeOperand.RESIDUAL, stride if rows > 1 else n)
            for row in range(rows):
                self._reads(residual, row * stride, width * n, "a residual", line)
        stride = body["out_row_stride"]
        output = self._operand(event, ComputeOperand.OUTPUT, stride if rows > 1 else n)
        for row in range(rows):
            self._writes(output, row * stride, width * n, line)
