"""What the array reads as weights: parameter blocks, weight tiles in the order of the loop nest, tables."""

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import PARAMETER_LINES
from sw.layout import blocks
from sw.lower import IDENTITY_MULTIPLIER, IDENTITY_SHIFT, ConvolveStep

Bytes = NDArray[np.uint8]


def parameter_block(n: int, bias: NDArray[np.int64], multiplier: NDArray[np.int32], shift: NDArray[np.int32]) -> Bytes:
    """``PARAMETER_LINES`` lines of ``n`` bytes for up to ``n`` channels: uint8 ``[PARAMETER_LINES, n]``."""
    channels = len(bias)
    result = np.zeros((PARAMETER_LINES, n), np.uint8)
    for column, values in ((0, bias), (4, multiplier)):
        raw = (np.asarray(values, np.int64) & 0xFFFFFFFF).astype("<u4")
        result[column : column + 4, :channels] = raw.view(np.uint8).reshape(channels, 4).T
    result[8, :channels] = np.asarray(shift, np.int8).view(np.uint8)
    return result


def identity_parameter_block(n: int) -> Bytes:
    """Parameters that pass values unchanged."""
    return parameter_block(
        n, np.zeros(n, np.int64), np.full(n, IDENTITY_MULTIPLIER, np.int32), np.full(n, IDENTITY_SHIFT, np.int32)
    )


def packed_taps(n: int, channels: int, kernel_width: int, dilation_x: int) -> int:
    """Neighbouring kernel taps of a packed input that share one line."""
    return 1 if dilation_x > 1 else min(kernel_width, n // channels)


def weight_tiles(step: ConvolveStep, n: int, out_block: int) -> list[Bytes]:
    """Tiles of one output block, for each source: uint8 ``[tiles, n, n]`` in loop order (block, row, column)."""
    if step.weights is None:
        return [np.eye(n, dtype=np.uint8)[None]]
    columns = step.weights[out_block * n : (out_block + 1) * n]
    cout, kh, kw, _ = columns.shape
    result = []
    first = 0
    for source in step.sources:
        part = columns[:, :, :, first : first + source.channels]
        first += source.channels
        if source.packed:
            taps = packed_taps(n, source.channels, kw, step.dilation[1])
            groups = -(-kw // taps)
            full = np.zeros((cout, kh, groups * taps, source.channels), np.int8)
            full[:, :, :kw] = part
            lanes = full.reshape(cout, kh, groups, taps * source.channels)
            tiles = np.zeros((1, kh, groups, n, n), np.int8)
            tiles[0, :, :, : taps * source.channels, :cout] = lanes.transpose(1, 2, 3, 0)
        else:
            in_blocks = blocks(source.channels, n)
            full = np.zeros((cout, kh, kw, in_blocks * n), np.int8)
            full[:, :, :, : source.channels] = part
            tiles = np.zeros((in_blocks, kh, kw, n, n), np.int8)
            tiles[..., :cout] = full.reshape(cout, kh, kw, in_blocks, n).transpose(3, 1, 2, 4, 0)
        result.append(tiles.reshape(-1, n, n).view(np.uint8))
    return result


def weight_slot(step: ConvolveStep, n: int, out_block: int) -> tuple[Bytes, list[int]]:
    """One output block's slot, and the offset in it from which each source's command reads.

    The tiles of all sources but the last, then the parameter block, then the last source's tiles.
    """
    tiles = weight_tiles(step, n, out_block)
    channels = slice(out_block * n, (out_block + 1) * n)
    parameters = parameter_block(n, step.bias[channels], step.multiplier[channels], step.shift[channels])
    parts: list[Bytes] = []
    offsets = []
    position = 0
    for index, part in enumerate(tiles):
        offsets.append(position)
        if index == len(tiles) - 1:
            parts.append(parameters.ravel())
            position += parameters.size
        parts.append(part.ravel())
        position += part.size
    return np.concatenate(parts), offsets
