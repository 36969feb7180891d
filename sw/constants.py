"""What the array reads as weights: parameter blocks, weight tiles in the order of the loop nest, tables."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import PARAMETER_LINES
from sw.layout import blocks
from sw.lower import IDENTITY_MULTIPLIER, IDENTITY_SHIFT, ConvolveStep, divider

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
    """Tiles of one output block, for each source: uint8 ``[tiles, n, n]`` in loop order (block, row, column).

    Of a diagonal step only the diagonals: ``[tiles, n]``.
    """
    columns = step.weights[out_block * n : (out_block + 1) * n]
    cout, kh, kw, _ = columns.shape
    if step.diagonal:
        lines = np.zeros((kh, kw, n), np.int8)
        lines[:, :, :cout] = columns[:, :, :, 0].transpose(1, 2, 0)
        return [lines.reshape(-1, n).view(np.uint8)]
    if step.groups > 1:
        return [_block_tiles(_grouped(step, n, out_block), n)]
    result = []
    first = 0
    for source in step.sources:
        part = columns[:, :, :, first : first + source.channels]
        first += source.channels
        result.append(_packed_tiles(step, part, n) if source.packed else _block_tiles(part, n))
    return result


def _grouped(step: ConvolveStep, n: int, out_block: int) -> NDArray[np.int8]:
    """Dense weights of one output block over the input blocks that it reads: int8 ``[cout, kh, kw, cin]``."""
    columns = step.weights[out_block * n : (out_block + 1) * n]
    block, count = step.input_blocks(n, out_block)
    dense = np.zeros((*columns.shape[:3], count * n), np.int8)
    for channel in range(len(columns)):
        first, last = step.input_channels(out_block * n + channel, out_block * n + channel + 1)
        dense[channel, :, :, first - block * n : last - block * n] = columns[channel]
    return dense


def _block_tiles(weights: NDArray[np.int8], n: int) -> Bytes:
    cout, kh, kw, cin = weights.shape
    in_blocks = blocks(cin, n)
    full = np.zeros((cout, kh, kw, in_blocks * n), np.int8)
    full[:, :, :, :cin] = weights
    tiles = np.zeros((in_blocks, kh, kw, n, n), np.int8)
    tiles[..., :cout] = full.reshape(cout, kh, kw, in_blocks, n).transpose(3, 1, 2, 4, 0)
    return tiles.reshape(-1, n, n).view(np.uint8)


def _packed_tiles(step: ConvolveStep, weights: NDArray[np.int8], n: int) -> Bytes:
    cout, kh, kw, cin = weights.shape
    taps = packed_taps(n, cin, kw, step.dilation[1])
    groups = -(-kw // taps)
    full = np.zeros((cout, kh, groups * taps, cin), np.int8)
    full[:, :, :kw] = weights
    tiles = np.zeros((kh, groups, n, n), np.int8)
    tiles[:, :, : taps * cin, :cout] = full.reshape(cout, kh, groups, taps * cin).transpose(1, 2, 3, 0)
    return tiles.reshape(-1, n, n).view(np.uint8)


def weight_slot(step: ConvolveStep, n: int, out_block: int, averages: Sequence[int] = ()) -> tuple[Bytes, list[int]]:
    """One output block's slot, and the offset in it from which each source's command reads.

    The tiles of all sources but the last, then the parameter block, then the last source's tiles. Of an averaging step
    parameters and tiles once for each number of pixels in ``averages``, and an offset for each.
    """
    tiles = weight_tiles(step, n, out_block)
    channels = slice(out_block * n, (out_block + 1) * n)
    if step.average:
        bias = step.bias[channels]
        scales = [np.tile(np.array([divider(pixels)], np.int32).T, len(bias)) for pixels in averages]
        chunks = [
            np.concatenate([parameter_block(n, bias, multiplier, shift).ravel(), tiles[0].ravel()])
            for multiplier, shift in scales
        ]
        return np.concatenate(chunks), [index * chunks[0].size for index in range(len(chunks))]
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
