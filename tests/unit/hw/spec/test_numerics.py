"""The arithmetic against a literal, scalar transcription of its definition, and against real numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.spec import numerics as n

INT32 = st.integers(n.INT32_MIN, n.INT32_MAX)
MULTIPLIER = st.integers(1 << 30, n.INT32_MAX)
SCALE = st.floats(2.0**-12, 8.0).map(lambda x: float(np.float32(x)))
ZERO_POINT = st.integers(-128, 127)


def high_mul(a: int, b: int) -> int:
    """As gemmlowp writes it: a nudge with the product's sign, then C's division, which truncates."""
    if a == b == n.INT32_MIN:
        return n.INT32_MAX
    product = a * b
    nudged = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    quotient = abs(nudged) >> 31
    return quotient if nudged >= 0 else -quotient


def divide(x: int, exponent: int) -> int:
    """As gemmlowp writes it: a shift, and a correction from the remainder."""
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (1 if x < 0 else 0)
    return (x >> exponent) + (1 if (x & mask) > threshold else 0)


@given(INT32, INT32)
def test_high_mul_is_gemmlowps(a: int, b: int) -> None:
    assert int(n.saturating_rounding_doubling_high_mul(a, b)) == high_mul(a, b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (n.INT32_MIN, n.INT32_MIN, n.INT32_MAX),
        (1 << 30, 1, 1),  # a half goes up
        (-(1 << 30), 1, 0),  # also below zero
        (-(1 << 30) - 1, 1, -1),
        (0, n.INT32_MIN, 0),
    ],
)
def test_high_mul_corners(a: int, b: int, expected: int) -> None:
    assert int(n.saturating_rounding_doubling_high_mul(a, b)) == expected == high_mul(a, b)


@given(INT32, st.integers(0, 31))
def test_division_is_gemmlowps(x: int, exponent: int) -> None:
    assert int(n.rounding_divide_by_pot(x, exponent)) == divide(x, exponent)


@pytest.mark.parametrize(("x", "exponent", "expected"), [(6, 2, 2), (-6, 2, -2), (5, 2, 1), (-5, 2, -1), (-7, 0, -7)])
def test_division_rounds_halves_away_from_zero(x: int, exponent: int, expected: int) -> None:
    assert int(n.rounding_divide_by_pot(x, exponent)) == expected


@given(st.integers(-(1 << 24), 1 << 24), MULTIPLIER, st.integers(-31, 6))
def test_multiplication_rounds_twice(x: int, multiplier: int, shift: int) -> None:
    expected = divide(high_mul(x << max(shift, 0), multiplier), max(-shift, 0))
    assert int(n.multiply_by_quantized_multiplier(x, multiplier, shift)) == expected


def test_two_roundings_differ_from_one() -> None:
    """3 / 8 is nearer to 0, but rounds to 2 / 4 and then up to 1."""
    assert int(n.multiply_by_quantized_multiplier(3, 1 << 30, -2)) == 1


def test_multipliers_broadcast_over_channels() -> None:
    acc = np.arange(-60, 60, dtype=np.int32).reshape(5, 8, 3) * 1000
    multipliers, shifts = np.array([1 << 30, 3 << 29, n.INT32_MAX]), np.array([-3, 0, 1])
    whole = n.multiply_by_quantized_multiplier(acc, multipliers, shifts)
    for channel in range(3):
        alone = n.multiply_by_quantized_multiplier(acc[..., channel], multipliers[channel], shifts[channel])
        assert np.array_equal(whole[..., channel], alone)


@given(st.floats(2.0**-31, 2.0**29))
def test_quantised_multiplier_is_near(real: float) -> None:
    multiplier, shift = n.quantize_multiplier(real)
    assert 1 << 30 <= multiplier <= n.INT32_MAX
    assert multiplier * 2.0 ** (shift - 31) == pytest.approx(real, rel=2.0**-31)


@pytest.mark.parametrize(
    ("real", "expected"),
    [(0.0, (0, 0)), (1.0, (1 << 30, 1)), (0.5, (1 << 30, 0)), (1 - 2.0**-40, (1 << 30, 1)), (2.0**-40, (0, 0))],
)
def test_quantised_multiplier_corners(real: float, expected: tuple[int, int]) -> None:
    assert n.quantize_multiplier(real) == expected


@pytest.mark.parametrize("real", [-0.1, math.inf, math.nan, 2.0**30])
def test_quantised_multiplier_refuses(real: float) -> None:
    with pytest.raises(ValueError, match=f"not {real!r}".replace("+", r"\+")):
        n.quantize_multiplier(real)


def test_one_rounding_takes_halves_up_and_sees_what_the_first_rounding_hides() -> None:
    # 0.375 rounds to 1 by way of 0.5.
    assert n.multiply_by_quantized_multiplier([3, -3, 1], [1 << 30] * 3, [-2, -2, -1]).tolist() == [1, 0, 1]
    assert n.multiply_with_single_rounding([3, -3, 1], [1 << 30] * 3, [-2, -2, -1]).tolist() == [0, 0, 0]
    assert n.multiply_with_single_rounding([2, -2, 6, -6], [1 << 30] * 4, [-1] * 4).tolist() == [1, 0, 2, -1]
    assert n.multiply_with_single_rounding([5], [1 << 30], [3]).tolist() == [20]


def test_requantise_clamps() -> None:
    acc = np.array([-(1 << 20), -256, 0, 256, 1 << 20], np.int32)
    assert n.requantise(acc, 1 << 30, 0, 3).tolist() == [-128, -125, 3, 127, 127]
    assert n.requantise(acc, 1 << 30, 0, 3, lo=3, hi=100).tolist() == [3, 3, 3, 100, 100]


@given(SCALE, ZERO_POINT, SCALE, ZERO_POINT, st.floats(1.0, 4.0), ZERO_POINT)
def test_addition_is_near_the_real_sum(sa: float, za: int, sb: float, zb: int, ratio: float, zo: int) -> None:
    so = float(np.float32(max(sa, sb) * ratio))
    values = n.all_int8().astype(np.int8)
    a, b = np.meshgrid(values[::5], values[::7])
    out = n.add(a, b, n.AddParameters.from_scales(sa, za, sb, zb, so, zo))
    real = (sa * (a.astype(float) - za) + sb * (b.astype(float) - zb)) / so + zo
    assert np.abs(out - np.clip(real, -128, 127)).max() <= 0.5 + 1e-3


def test_addition_clamps_to_its_bounds() -> None:
    parameters = n.AddParameters.from_scales(1.0, 0, 1.0, 0, 1.0, 0, lo=0, hi=100)
    a = np.array([-50, 60, 10], np.int8)
    assert n.add(a, a, parameters).tolist() == [0, 100, 20]


def test_addition_refuses_too_small_an_output_scale() -> None:
    with pytest.raises(ValueError, match="output scale 1e-07 is too small"):
        n.AddParameters.from_scales(1.0, 0, 1.0, 0, 1e-7, 0)


def test_identity_table() -> None:
    x = n.all_int8().astype(np.int8)
    assert np.array_equal(n.apply_table(n.identity_table(), x), x)


def test_a_table_is_indexed_by_the_value_plus_128() -> None:
    table = n.identity_table()[::-1]
    assert n.apply_table(table, np.array([[-128, 0], [1, 127]], np.int8)).tolist() == [[127, -1], [-2, -128]]


@given(SCALE, ZERO_POINT)
def test_sigmoid_table_is_near(scale: float, zero_point: int) -> None:
    table = n.sigmoid_table(scale, zero_point)
    real = 256 / (1 + np.exp(-np.clip(scale * (n.all_int8() - zero_point), -700, None))) - 128
    assert np.abs(table - np.clip(real, -128, 127)).max() <= 0.501
    assert np.all(np.diff(table.astype(int)) >= 0)


@given(SCALE, ZERO_POINT, st.floats(0.5, 2.0), ZERO_POINT)
def test_silu_table_is_near(scale: float, zero_point: int, ratio: float, zero_point_out: int) -> None:
    scale_out = scale * ratio
    table = n.silu_table(scale, zero_point, scale_out, zero_point_out)
    x = scale * (n.all_int8() - zero_point)
    real = x / (1 + np.exp(-np.clip(x, -700, None))) / scale_out + zero_point_out
    # The sigmoid's own rounding, half of 1/256, is multiplied by x; its largest value is 255/256.
    bound = 1.5 + np.abs(x) / 256 / scale_out
    assert np.all(np.abs(table - np.clip(real, -128, 127)) <= bound)


def test_relu_tables() -> None:
    relu = n.relu_table(0.5, 0, 0.5, -10)
    assert relu[:129].tolist() == [-10] * 129
    assert relu[129:].tolist() == [min(x - 10, 127) for x in range(1, 128)]
    assert int(n.relu_table(0.5, 0, 0.5, -10, ceiling=6.0).max()) == 2
