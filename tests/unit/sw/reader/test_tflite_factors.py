"""Multipliers that make the NPU round as the runtime does."""

import math
import os

import numpy as np
import pytest

from hw.spec.numerics import INT32_MAX, multiply_with_single_rounding
from sw.reader.support import Unsupported
from sw.reader.tflite_factors import fully_connected_factors, mean_factors

SEED = int(os.environ.get("RONDO_SEED", "1"))


def rounded(accumulators, real):
    """What FULLY_CONNECTED makes of accumulators: real numbers, halves away from zero."""
    products = accumulators.astype(np.float64) * real
    return (np.sign(products) * np.floor(np.abs(products) + 0.5)).astype(np.int64)


def clipped(values, steps):
    return np.clip(values, -steps, steps)


@pytest.mark.parametrize("real", [2.0, 1.0, 0.75, 0.5, 0.25, 0.375, 2.0**-9, 1 / 3, 0.0123, 1e-4, 3.3, 700.0])
@pytest.mark.parametrize("steps", [127, 255])
def test_every_accumulator(real, steps):
    reach = min(int((steps + 1) / real) + 2, 3_000_000)
    accumulators = np.arange(-reach, reach + 1)
    multiplier, shift = fully_connected_factors(real, reach, steps)
    found = clipped(multiply_with_single_rounding(accumulators, multiplier, shift), steps)
    assert np.array_equal(found, clipped(rounded(accumulators, real), steps))


def test_accumulators_next_to_a_half():
    print(f"RONDO_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    found = 0
    for _ in range(300):
        real = float(10 ** rng.uniform(-7, 2))
        reach = int(10 ** rng.uniform(0, 9))
        try:
            multiplier, shift = fully_connected_factors(real, reach, 255)
        except Unsupported:
            continue
        found += 1
        assert 0 <= multiplier <= INT32_MAX and -31 <= shift <= 30
        nearest = (np.arange(-255, 255) + 0.5) / real
        accumulators = np.concatenate([np.floor(nearest), np.ceil(nearest), [-reach, reach]])
        limit = min(reach, INT32_MAX >> max(shift, 0))
        accumulators = accumulators[np.abs(accumulators) <= limit].astype(np.int64)
        made = clipped(multiply_with_single_rounding(accumulators, multiplier, shift), 255)
        assert np.array_equal(made, clipped(rounded(accumulators, real), 255)), (real, reach)
    assert found > 150


def test_a_factor_too_small_for_any_accumulator():
    assert fully_connected_factors(2.0**-33, INT32_MAX, 255) == (0, 0)


@pytest.mark.parametrize("real", [2.0**30, math.inf, math.nan])
def test_factors_out_of_range(real):
    with pytest.raises(Unsupported, match="a multiplier must be"):
        fully_connected_factors(real, 1, 255)


def test_where_31_bits_do_not_suffice():
    with pytest.raises(Unsupported, match=r"no multiplier of 31 bits rounds as 0\.000288517023 does for sums up to 9+"):
        fully_connected_factors(1 / 3466, 9_999_999, 255)


def test_mean_factors():
    assert mean_factors(1.0, 1.0, 1) == (1 << 30, 1)
    assert mean_factors(1.0, 1.0, 4) == (1 << 30, -1)
    multiplier, shift = mean_factors(0.5, 0.25, 49)
    assert multiplier * 2.0 ** (shift - 31) == pytest.approx(2 / 49, rel=1e-8)
