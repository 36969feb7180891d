"""What a CONVOLVE command does to scratchpad and accumulator, in plain NumPy: no time, no parallelism.

Written from the text of ``hw/spec/commands.py``, and the judge of the compute engine's gateware.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.spec import numerics
from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES, ComputeOperand
from hw.spec.config import NpuConfig

Int8Array = NDArray[np.int8]
Int64Array = NDArray[np.int64]
Scratchpad = bytearray | NDArray[np.uint8]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _int32(values: Int64Array) -> Int64Array:
    """Wrap to 32 bits, as the hardware's adders and shifters do."""
    return values.astype(np.int32).astype(np.int64)


def _scale(values: Int64Array, multiplier: Any, shift: Any, *, single_rounding: bool = False) -> Int64Array:
    """Multiply by a quantised multiplier, for any input: the left shift wraps."""
    shift = np.asarray(shift, np.int64)
    raised = _int32(values << np.maximum(shift, 0))
    if single_rounding:
        # Nothing saturates but the product of both least values, where nothing is shifted right.
        scaled = numerics.multiply_with_single_rounding(raised, multiplier, np.minimum(shift, 0))
        return np.minimum(scaled, numerics.INT32_MAX)
    return numerics.multiply_by_quantized_multiplier(raised, multiplier, np.minimum(shift, 0))


def _clamp(values: Int64Array, low: int, high: int) -> Int64Array:
    """Within bounds given in two's complement; the low one comes first, which counts if they cross."""
    low, high = _signed(low, 8), _signed(high, 8)
    return np.where(values < low, low, np.minimum(values, high))


class _Operand:
    """An operand's bytes in its ring."""

    def __init__(self, place: Mapping[str, int], scratchpad: Scratchpad):
        self._base = place["base"]
        self._start = place["start"]
        self._ring_bytes = place["ring_bytes"]
        self._bytes = np.frombuffer(scratchpad, np.uint8)

    def _first(self, offsets: Int64Array) -> Int64Array:
        return self._base + (self._start + offsets) % self._ring_bytes

    def read(self, offsets: Any, size: int) -> Int8Array:
        """``size`` values at each offset; an access does not wrap within itself."""
        first = self._first(np.asarray(offsets, np.int64))
        if first.max() + size > len(self._bytes):
            return self._bytes[(first[..., None] + np.arange(size)) % len(self._bytes)].view(np.int8)
        return np.lib.stride_tricks.sliding_window_view(self._bytes, size)[first].view(np.int8)

    def write(self, offsets: Int64Array, lines: Int64Array) -> None:
        where = self._first(offsets)[..., None] + np.arange(lines.shape[-1])
        self._bytes[where % len(self._bytes)] = lines.astype(np.int8).view(np.uint8)


def convolve(
    config: NpuConfig,
    command_fields: Mapping[str, int],
    operands: Sequence[Mapping[str, int]],
    scratchpad: Scratchpad,
    accumulator: NDArray[np.int32],
) -> None:
    """Execute one CONVOLVE.

    Parameters
    ----------
    config
        The NPU.
    command_fields
        Fields of the command's body, signed or in two's complement.
    operands
        ``base``, ``start`` and ``ring_bytes`` of each of the five operands; those that the command does not use are
        not looked at.
    scratchpad
        All of it; the output lines are written.
    accumulator
        Lines of N sums, at least as many as the command has output pixels: one half, the one in use. A chain of
        commands is given the same array.
    """
    n = config.array.n
    f = dict(command_fields)
    width, rows = f["out_width"], f["out_rows"]
    pixels = width * rows
    oy, ox = (index.ravel() for index in np.mgrid[0:rows, 0:width])

    source = _Operand(operands[ComputeOperand.INPUT], scratchpad)
    stationary = _Operand(operands[ComputeOperand.WEIGHTS], scratchpad) if not _loads_nothing(f) else None
    weight_offset = PARAMETER_LINES * n if f["accumulate_last"] else 0
    pad_value = _signed(f["pad_value"], 8)
    sums = accumulator[:pixels].copy()
    clear = bool(f["accumulate_first"])
    for block in range(f["in_blocks"]):
        for ky in range(f["kernel_height"]):
            for kx in range(f["kernel_width"]):
                x = _signed(f["x_origin"], 16) + ox * f["stride_x"] + kx * f["dilation_x"]
                y = _signed(f["y_origin"], 16) + oy * f["stride_y"] + ky * f["dilation_y"]
                inside = (x >= 0) & (x < f["in_width"]) & (y >= 0) & (y < f["in_rows"])
                x, y = x >> f["upsample"], y >> f["upsample"]
                offsets = block * f["in_block_stride"] + y * f["in_row_stride"] + x * f["in_pixel_stride"]
                lines = source.read(np.where(inside, offsets, 0), n)
                lines[~inside] = pad_value
                if f["maximum"]:
                    sums = lines.astype(np.int32) if clear else np.maximum(sums, lines)
                else:
                    assert stationary is not None
                    if f["diagonal"]:
                        products = lines.astype(np.int32) * stationary.read(np.array([weight_offset]), n)
                        weight_offset += n
                    else:
                        weights = stationary.read(weight_offset + np.arange(n) * n, n)
                        weight_offset += n * n
                        # Exact: N products of 15 bits stay within the 24 bits of a float32.
                        products = (lines.astype(np.float32) @ weights.astype(np.float32)).astype(np.int32)
                    sums = products if clear else sums + products
                clear = False
    accumulator[:pixels] = sums
    if not f["accumulate_last"]:
        return

    assert stationary is not None
    block = stationary.read(np.arange(PARAMETER_LINES) * n, n)
    words = np.ascontiguousarray(block[:8].reshape(2, 4, n).transpose(0, 2, 1))
    bias, multiplier = words.view("<i4")[..., 0].astype(np.int64)
    values = _scale(
        _int32(sums.astype(np.int64) + bias), multiplier, block[8], single_rounding=bool(f["single_rounding"])
    )
    values = values + _signed(f["output_zero_point"], 8)
    values = _clamp(values, f["clamp_low"], f["clamp_high"])
    if f["load_table"]:
        table = _Operand(operands[ComputeOperand.TABLE], scratchpad)
        lines_of_table = table.read(np.arange(0, TABLE_BYTES, n), n).ravel()
        values = lines_of_table[values + 128].astype(np.int64)
    if f["residual"]:
        residual = _Operand(operands[ComputeOperand.RESIDUAL], scratchpad)
        other = residual.read(oy * f["residual_row_stride"] + ox * n, n).astype(np.int64)
        total = np.zeros_like(values)
        for name, input_values in (("a", values), ("b", other)):
            raised = (input_values - _signed(f[f"add_zero_point_{name}"], 8)) << numerics.ADD_LEFT_SHIFT
            multiplier, shift = _signed(f[f"add_multiplier_{name}"], 32), _signed(f[f"add_shift_{name}"], 8)
            total = total + _scale(raised, multiplier, shift)
        values = _scale(_int32(total), _signed(f["add_multiplier_out"], 32), _signed(f["add_shift_out"], 8))
        values = _clamp(values + _signed(f["add_zero_point_out"], 8), f["add_clamp_low"], f["add_clamp_high"])
    _Operand(operands[ComputeOperand.OUTPUT], scratchpad).write(oy * f["out_row_stride"] + ox * n, values)


def _loads_nothing(fields: Mapping[str, int]) -> bool:
    return bool(fields["maximum"]) and not fields["accumulate_last"]
