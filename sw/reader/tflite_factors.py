"""Factors from accumulators to outputs, for TFLite's operators that do not requantise as CONV_2D does."""

import math

from hw.spec.numerics import INT32_MAX, quantize_multiplier
from sw.operators import Pair
from sw.reader.support import Unsupported


def mean_factors(scale: float, scale_out: float, count: int) -> Pair:
    """Multiplier and shift from a sum of ``count`` values to their mean, as TFLite's MEAN folds the division in."""
    multiplier, shift = quantize_multiplier(scale / scale_out)
    # 63 less the leading zeros of the count: its bits but one; what remains of the shift must stay a right shift.
    bits = min(count.bit_length() - 1, 32, 31 + shift)
    return (multiplier << bits) // count, shift - bits


def fully_connected_factors(real: float, reach: int, steps: int) -> Pair:
    """Multiplier and shift with which one rounding, halves up, does what TFLite's FULLY_CONNECTED does.

    The runtime multiplies in double precision by the real factor itself and rounds halves away from zero.  A multiplier
    of 31 bits that is but near to the factor differs from that close to a half, and for negative halves; it can be
    chosen so that it does not for any accumulator that can occur.

    Parameters
    ----------
    real
        The factor.
    reach
        Greatest magnitude of an accumulator.
    steps
        How far a result can be from its zero point.

    Raises
    ------
    Unsupported
        If there is no such multiplier.
    """
    try:
        multiplier, shift = quantize_multiplier(real)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    if not multiplier:
        return 0, 0  # nothing within int32 comes to a half
    # Multipliers that take neither the last accumulator before a half (``below``), of either sign, to that half, nor
    # the first one on or past it short of it. They are whole multiples of 2^(shift - 31), a half of 2^(30 - shift).
    least, most = 0, INT32_MAX
    for step in range(steps):
        half = step + 0.5
        past = max(math.ceil(half / real) - 1, 1)
        while past * real < half:
            past += 1
        scaled = (2 * step + 1) << (30 - shift)
        below = min(past - 1, reach)
        if below:
            most = min(most, (scaled - 1) // below)
        if past > reach:
            break
        least = max(least, scaled // past + 1)
    if least > most:
        raise Unsupported(f"no multiplier of 31 bits rounds as {real:.9g} does for sums up to {reach}")
    return min(max(multiplier, least), most), shift
