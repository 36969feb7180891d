"""Carries out a program's commands on plain arrays: what the hardware computes, without its time.

It stands between the golden model (which sees only the graph) and the RTL (which sees only commands): a difference from
the golden model is a compiler's fault, one from the RTL is the hardware's.
"""

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import PARAMETER_LINES, Engine, Opcode
from hw.spec.config import NpuConfig
from hw.spec.numerics import AddParameters, add, multiply_by_quantized_multiplier
from sw.check import runs
from sw.decode import decode_stream
from sw.program import Program
from sw.replay import Event, Place, Replay

Bytes = NDArray[np.uint8]


class Functional:
    """Scratchpad and accumulators of one NPU; ``buffers`` are the four that base registers name."""

    def __init__(self, config: NpuConfig, buffers: dict[int, Bytes]) -> None:
        self.config = config
        self.n = config.array.n
        self.scratchpad: Bytes = np.zeros(config.scratchpad.bytes, np.uint8)
        self.buffers = buffers
        self._sums = np.zeros((0, self.n), np.int64)

    def run(self, program: Program) -> None:
        """Carry out one job of ``program``."""
        replay = Replay(self.config, {engine: decode_stream(program, engine) for engine in Engine})
        for event in replay:
            self.execute(event)

    def execute(self, event: Event) -> None:
        """Carry out one command whose operands are ready."""
        opcode = event.command.opcode
        if opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
            self._transfer(event)
        elif opcode == Opcode.CONVOLVE:
            self._convolve(event)

    def _place(self, event: Event, index: int) -> Place:
        place = event.places[index]
        assert place is not None
        return place

    def _read(self, place: Place, delta: int, size: int) -> Bytes:
        return np.concatenate([self.scratchpad[a:b] for a, b in place.pieces(delta, size)])

    def _write(self, place: Place, delta: int, data: Bytes) -> None:
        position = 0
        for first, last in place.pieces(delta, len(data)):
            self.scratchpad[first:last] = data[position : position + last - first]
            position += last - first

    def _transfer(self, event: Event) -> None:
        body = event.command.body
        place = self._place(event, 0)
        size = body["run_bytes"]
        buffer = self.buffers[body["base"]]
        for offset, delta in runs(body):
            if event.command.opcode == Opcode.FILL:
                self._write(place, delta, np.full(size, body["fill"], np.uint8))
            elif event.command.opcode == Opcode.LOAD:
                self._write(place, delta, buffer[offset : offset + size])
            else:
                buffer[offset : offset + size] = self._read(place, delta, size)

    def _convolve(self, event: Event) -> None:
        body = event.command.body
        n = self.n
        tiles = 0 if body["maximum"] else body["in_blocks"] * body["kernel_height"] * body["kernel_width"]
        header = PARAMETER_LINES * n if body["accumulate_last"] else 0
        raw = np.zeros(0, np.uint8)
        if event.places[1] is not None:
            raw = self._read(self._place(event, 1), 0, header + tiles * n * n)
        weights = raw[header:].view(np.int8).reshape(tiles, n, n).astype(np.float64)
        sums = self._sums
        if body["accumulate_first"]:
            sums = np.zeros((body["out_rows"] * body["out_width"], n), np.int64)
        tile = 0
        for block in range(body["in_blocks"]):
            for ky in range(body["kernel_height"]):
                for kx in range(body["kernel_width"]):
                    lines = self._pixels(event, block, ky, kx)
                    if body["maximum"]:
                        first = body["accumulate_first"] and block == ky == kx == 0
                        sums = lines.astype(np.int64) if first else np.maximum(sums, lines)
                    else:
                        # Exact: 64 products of 15 bits stay far below 2**53.
                        sums = sums + (lines.astype(np.float64) @ weights[tile]).astype(np.int64)
                    tile += 1
        self._sums = sums
        if body["accumulate_last"]:
            self._epilogue(event, raw[:header].reshape(PARAMETER_LINES, n))

    def _pixels(self, event: Event, block: int, ky: int, kx: int) -> NDArray[np.int8]:
        """Lines that one weight tile sees: int8 ``[pixels, n]``."""
        body = event.command.body
        place = self._place(event, 0)
        y = body["y_origin"] + np.arange(body["out_rows"]) * body["stride_y"] + ky * body["dilation_y"]
        x = body["x_origin"] + np.arange(body["out_width"]) * body["stride_x"] + kx * body["dilation_x"]
        exists = ((y >= 0) & (y < body["in_rows"]))[:, None] & ((x >= 0) & (x < body["in_width"]))[None, :]
        if body["upsample"]:
            y, x = y >> 1, x >> 1
        delta = (
            block * body["in_block_stride"]
            + (y * body["in_row_stride"])[:, None]
            + (x * body["in_pixel_stride"])[None, :]
        )
        size = place.ring.bytes
        offsets = (place.start + delta[exists])[:, None] + np.arange(self.n)[None, :]
        lines = np.full((*exists.shape, self.n), body["pad_value"], np.int8)
        lines[exists] = self.scratchpad[place.ring.base + offsets % size].view(np.int8)
        return lines.reshape(-1, self.n)

    def _epilogue(self, event: Event, parameters: Bytes) -> None:
        body = event.command.body
        words = parameters[:8].reshape(2, 4, self.n).transpose(0, 2, 1)
        bias = np.ascontiguousarray(words[0]).view("<i4").reshape(-1)
        multiplier = np.ascontiguousarray(words[1]).view("<i4").reshape(-1)
        shift = parameters[8].view(np.int8)
        sums = (self._sums + bias + (1 << 31)) % (1 << 32) - (1 << 31)
        scaled = multiply_by_quantized_multiplier(sums, multiplier, shift) + body["output_zero_point"]
        values = np.clip(scaled, body["clamp_low"], body["clamp_high"]).astype(np.int8)
        if body["load_table"]:
            table = self._read(self._place(event, 2), 0, 256).view(np.int8)
            values = table[values.astype(np.int64) + 128]
        width = body["out_width"] * self.n
        rows = values.reshape(body["out_rows"], body["out_width"], self.n)
        for row in range(body["out_rows"]):
            line = rows[row]
            if body["residual"]:
                other = self._read(self._place(event, 3), row * body["residual_row_stride"], width).view(np.int8)
                line = add(line, other.reshape(line.shape), _add_parameters(body))
            raw = np.ascontiguousarray(line).view(np.uint8).ravel()
            self._write(self._place(event, 4), row * body["out_row_stride"], raw)


def _add_parameters(body: dict[str, int]) -> AddParameters:
    return AddParameters(
        zero_point_a=body["add_zero_point_a"],
        multiplier_a=body["add_multiplier_a"],
        shift_a=body["add_shift_a"],
        zero_point_b=body["add_zero_point_b"],
        multiplier_b=body["add_multiplier_b"],
        shift_b=body["add_shift_b"],
        zero_point_out=body["add_zero_point_out"],
        multiplier_out=body["add_multiplier_out"],
        shift_out=body["add_shift_out"],
    )
