"""The static check: proves for a program that it cannot deadlock, overflow a ring, read what was not written, or let
two engines race for a byte, on chip or in DRAM."""

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES, Engine, Opcode
from hw.spec.config import NpuConfig
from sw.decode import Command, decode_stream
from sw.program import BASE_ARENA, BASE_CONSTANTS, BASE_INPUT, BASE_OUTPUT, Program
from sw.replay import Event, Place, Replay, ReplayError

BUFFERS = {BASE_CONSTANTS: "constants", BASE_ARENA: "arena", BASE_INPUT: "input", BASE_OUTPUT: "output"}


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


def check_streams(
    streams: dict[Engine, list[Command]], buffer_bytes: dict[str, int], config: NpuConfig, jobs: int = 1
) -> None:
    """Check decoded streams against buffers of the given sizes. Raises ``CheckError``."""
    for engine, commands in streams.items():
        for index, command in enumerate(commands):
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
        self.stored: NDArray[np.int32] = np.zeros(granules, np.int32) if written else np.full(granules, -1, np.int32)
        self.loaded: NDArray[np.int32] = np.zeros(granules, np.int32)

    def span(self, offset: int, size: int) -> slice:
        return slice(offset // self.GRANULE, -(-(offset + size) // self.GRANULE))


class _Checker:
    def __init__(self, config: NpuConfig, buffer_bytes: dict[str, int]) -> None:
        self.config = config
        self.n = config.array.n
        self.written = np.zeros(config.scratchpad.bytes, bool)
        self.dram = {base: _Dram(buffer_bytes[name], name in ("constants", "input")) for base, name in BUFFERS.items()}

    def visit(self, event: Event) -> None:
        self._where = f"{event.engine.name.lower()} command {event.index} ({event.command.name})"
        for operand, place in zip(event.command.operands, event.places, strict=True):
            if (
                operand is not None
                and place is not None
                and operand.cursor == 4
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

    def _reads(self, place: Place, delta: int, size: int, what: str) -> None:
        if delta < 0 or delta + size > place.room:
            raise self._fail(f"reads {what} beyond the slots that it acquired")
        for first, last in place.pieces(delta, size):
            if not self.written[first:last].all():
                raise self._fail(f"reads {what} that nothing has written")

    def _writes(self, place: Place, delta: int, size: int) -> None:
        if delta < 0 or delta + size > place.room:
            raise self._fail("writes beyond the slots that it reserved")
        for first, last in place.pieces(delta, size):
            self.written[first:last] = True

    def _operand(self, event: Event, index: int, what: str) -> Place:
        place = event.places[index]
        if place is None:
            raise self._fail(f"has no {what} operand")
        return place

    def _transfer(self, event: Event) -> None:
        body = event.command.body
        place = self._operand(event, 0, "data")
        opcode = event.command.opcode
        size = body["run_bytes"]
        if body["base"] not in self.dram:
            raise self._fail(f"names base register {body['base']}")
        dram = self.dram[body["base"]]
        for offset, delta in runs(body):
            if opcode != Opcode.FILL and not 0 <= offset <= offset + size <= dram.size:
                raise self._fail(f"reaches byte {offset + size} of a buffer of {dram.size}")
            span = dram.span(offset, size)
            if opcode == Opcode.STORE:
                self._reads(place, delta, size, "scratchpad")
                if int(dram.loaded[span].max()) > event.started[Engine.LOAD]:
                    raise self._fail("may overwrite DRAM that an earlier load has not read yet")
                dram.stored[span] = event.index + 1
                continue
            self._writes(place, delta, size)
            if opcode == Opcode.LOAD:
                stored = dram.stored[span]
                if int(stored.min()) < 0:
                    raise self._fail("reads DRAM that nothing has written")
                if int(stored.max()) > event.started[Engine.STORE]:
                    raise self._fail("may read DRAM before an earlier store has written it")
                dram.loaded[span] = event.index + 1

    def _convolve(self, event: Event) -> None:
        body = event.command.body
        n = self.n
        place = self._operand(event, 0, "input")
        width, rows = body["out_width"], body["out_rows"]
        if width * rows > self.config.accumulator_half:
            raise self._fail("computes more pixels than half the accumulator holds")
        halve = body["upsample"]

        def touched(origin: int, count: int, stride: int, taps: int, dilation: int, limit: int) -> list[int]:
            found = {origin + o * stride + k * dilation for o in range(count) for k in range(taps)}
            return sorted({position >> halve for position in found if 0 <= position < limit})

        # The hardware wraps by one subtraction: no single step may pass the ring's end twice.
        steps = [
            (0, body["in_blocks"], body["in_block_stride"], "input block"),
            (4, rows, body["out_row_stride"], "output row"),
        ]
        for index, count, step, what in steps:
            ring = event.places[index]
            if ring is not None and count > 1 and step >= ring.ring.bytes:
                raise self._fail(f"has an {what} stride of {step} in a ring of {ring.ring.bytes} bytes")
        columns = touched(
            body["x_origin"], width, body["stride_x"], body["kernel_width"], body["dilation_x"], body["in_width"]
        )
        lines = touched(
            body["y_origin"], rows, body["stride_y"], body["kernel_height"], body["dilation_y"], body["in_rows"]
        )
        if columns and lines:
            pixel = body["in_pixel_stride"]
            first, size = columns[0] * pixel, (columns[-1] - columns[0]) * pixel + n
            for block in range(body["in_blocks"]):
                for line in lines:
                    self._reads(
                        place, block * body["in_block_stride"] + line * body["in_row_stride"] + first, size, "input"
                    )
        tiles = 0 if body["maximum"] else body["in_blocks"] * body["kernel_height"] * body["kernel_width"]
        size = tiles * n * n + (PARAMETER_LINES * n if body["accumulate_last"] else 0)
        if size:
            self._reads(self._operand(event, 1, "weights"), 0, size, "weights")
        if not body["accumulate_last"]:
            return
        if body["load_table"]:
            self._reads(self._operand(event, 2, "table"), 0, TABLE_BYTES, "a table")
        for row in range(rows):
            if body["residual"]:
                self._reads(
                    self._operand(event, 3, "residual"), row * body["residual_row_stride"], width * n, "a residual"
                )
        output = self._operand(event, 4, "output")
        for row in range(rows):
            self._writes(output, row * body["out_row_stride"], width * n)
