"""Integer arithmetic of TFLite's int8 *reference* kernels, on NumPy arrays.

The reference kernels round twice: once when the 64-bit product is cut to its high half, and once more when the result
is shifted right.  The default (optimised) kernels round once and differ in about one value of a thousand.  Everything
that computes a number (gateware, golden model, compiler tables) takes its arithmetic from here.

Source: TensorFlow Lite, ``kernels/internal/common.h``, ``reference/integer_ops/{conv,add,mul}.h`` and gemmlowp's
``fixedpoint.h``; equality with the runtime is tested byte for byte in ``tests/system/test_reference.py``.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int8Array = NDArray[np.int8]
Int64Array = NDArray[np.int64]

INT8_MIN = -128
INT8_MAX = 127
INT32_MIN = -(1 << 31)
INT32_MAX = (1 << 31) - 1

ADD_LEFT_SHIFT = 20
"""Bits by which ADD raises both operands before it scales them."""

SIGMOID_SCALE = 1.0 / 256.0
"""Output scale that TFLite demands of an int8 LOGISTIC."""

SIGMOID_ZERO_POINT = -128
"""Output zero point that TFLite demands of an int8 LOGISTIC."""


def saturating_rounding_doubling_high_mul(a: ArrayLike, b: ArrayLike) -> Int64Array:
    """High half of the doubled product of two int32 values, rounded to nearest, halves towards plus infinity.

    Parameters
    ----------
    a, b
        Integers within int32, of shapes that broadcast.

    Returns
    -------
    numpy.ndarray
        ``floor((a * b + 2**30) / 2**31)`` as int64, within int32.  The one overflow, -2**31 times itself, saturates.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    return np.minimum((product + (1 << 30)) >> 31, INT32_MAX)


def rounding_divide_by_pot(x: ArrayLike, exponent: ArrayLike) -> Int64Array:
    """Divide by ``2**exponent``, rounded to nearest, halves away from zero.

    Parameters
    ----------
    x
        Integers within int32.
    exponent
        Integers from 0 to 31, of a shape that broadcasts with `x`.
    """
    value = np.asarray(x, np.int64)
    power = np.asarray(exponent, np.int64)
    half = (np.int64(1) << power) >> 1
    # Adding a half and flooring rounds halves up; one less for negative values rounds them away from zero instead.
    # Without a shift there is nothing to round, so the correction must not apply.
    return (value + half - ((value < 0) & (power > 0))) >> power


def multiply_by_quantized_multiplier(x: ArrayLike, multiplier: ArrayLike, shift: ArrayLike) -> Int64Array:
    """Multiply by the real number ``multiplier * 2**(shift - 31)`` with the reference kernels' two roundings.

    Parameters
    ----------
    x
        Integers within int32; after a left shift they must still be within int32 (TFLite leaves the rest undefined).
    multiplier
        0, or integers from 2**30 to 2**31 - 1.
    shift
        Integers from -31 to 30: positive shifts left before the multiplication, negative shifts right after it.
    """
    shift = np.asarray(shift, np.int64)
    raised = np.asarray(x, np.int64) << np.maximum(shift, 0)
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(raised, multiplier), np.maximum(-shift, 0))


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Split a real factor into a 31-bit fraction and a power of two.

    Parameters
    ----------
    real
        The factor; at least 0 and less than 2**30.

    Returns
    -------
    multiplier, shift
        ``real`` is about ``multiplier * 2**(shift - 31)``.  Both are 0 when `real` is below 2**-32.

    Raises
    ------
    ValueError
        If `real` is negative, not finite or too large.
    """
    if not 0.0 <= real < float(1 << 30):
        raise ValueError(f"a multiplier must be at least 0 and less than 2**30, not {real!r}")
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)  # rounds halves up; the fraction is not negative
    if multiplier == 1 << 31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    return multiplier, shift


def multiply_with_single_rounding(x: ArrayLike, multiplier: ArrayLike, shift: ArrayLike) -> Int64Array:
    """Multiply by the real number ``multiplier * 2**(shift - 31)``, rounded once to nearest, halves up.

    FULLY_CONNECTED is made exact with it by `sw.reader.tflite_factors`.  Parameters as those of
    `multiply_by_quantized_multiplier`.
    """
    shift = np.asarray(shift, np.int64)
    raised = np.asarray(x, np.int64) << np.maximum(shift, 0)
    right = 31 + np.maximum(-shift, 0)
    return (raised * np.asarray(multiplier, np.int64) + (np.int64(1) << (right - 1))) >> right


def requantise(
    acc: ArrayLike,
    multiplier: ArrayLike,
    shift: ArrayLike,
    zero_point: int,
    lo: int = INT8_MIN,
    hi: int = INT8_MAX,
    *,
    single_rounding: bool = False,
) -> Int8Array:
    """Scale int32 accumulators to int8.

    Parameters
    ----------
    acc
        Accumulators within int32, bias included, channels last.
    multiplier, shift
        One pair, or one per channel, as `quantize_multiplier` gives them.
    zero_point
        Zero point of the result.
    lo, hi
        The result is clamped to ``lo .. hi``.
    single_rounding
        Round once, not twice.
    """
    scale = multiply_with_single_rounding if single_rounding else multiply_by_quantized_multiplier
    return np.clip(scale(acc, multiplier, shift) + zero_point, lo, hi).astype(np.int8)


@dataclass(frozen=True)
class AddParameters:
    """Constants of the addition of two int8 tensors, as TFLite's ADD uses them.  Shifts are never positive."""

    zero_point_a: int
    multiplier_a: int
    shift_a: int
    zero_point_b: int
    multiplier_b: int
    shift_b: int
    zero_point_out: int
    multiplier_out: int
    shift_out: int
    lo: int = INT8_MIN
    hi: int = INT8_MAX

    @classmethod
    def from_scales(
        cls,
        scale_a: float,
        zero_point_a: int,
        scale_b: float,
        zero_point_b: int,
        scale_out: float,
        zero_point_out: int,
        lo: int = INT8_MIN,
        hi: int = INT8_MAX,
    ) -> "AddParameters":
        """Derive the constants from the quantisation of the three tensors.

        Raises
        ------
        ValueError
            If the output scale is so small against the inputs' that the output multiplier would reach 1.
        """
        twice_max = float(2 * max(np.float32(scale_a), np.float32(scale_b)))
        real_out = twice_max / ((1 << ADD_LEFT_SHIFT) * float(np.float32(scale_out)))
        if real_out >= 1.0:
            raise ValueError(
                f"an addition's output scale {scale_out!r} is too small for inputs {scale_a!r}, {scale_b!r}"
            )
        multiplier_a, shift_a = quantize_multiplier(float(np.float32(scale_a)) / twice_max)
        multiplier_b, shift_b = quantize_multiplier(float(np.float32(scale_b)) / twice_max)
        multiplier_out, shift_out = quantize_multiplier(real_out)
        return cls(
            zero_point_a,
            multiplier_a,
            shift_a,
            zero_point_b,
            multiplier_b,
            shift_b,
            zero_point_out,
            multiplier_out,
            shift_out,
            lo,
            hi,
        )


def add(a: Int8Array, b: Int8Array, params: AddParameters) -> Int8Array:
    """Add two int8 tensors of the same shape but different scales, as TFLite's reference ADD does."""
    raised_a = (a.astype(np.int64) - params.zero_point_a) << ADD_LEFT_SHIFT
    raised_b = (b.astype(np.int64) - params.zero_point_b) << ADD_LEFT_SHIFT
    total = multiply_by_quantized_multiplier(
        raised_a, params.multiplier_a, params.shift_a
    ) + multiply_by_quantized_multiplier(raised_b, params.multiplier_b, params.shift_b)
    scaled = multiply_by_quantized_multiplier(total, params.multiplier_out, params.shift_out)
    return np.clip(scaled + params.zero_point_out, params.lo, params.hi).astype(np.int8)


def all_int8() -> Int64Array:
    """Return the 256 int8 values in the order of a table's entries: -128 first."""
    return np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int64)


def apply_table(table: Int8Array, x: Int8Array) -> Int8Array:
    """Look up ``table[x + 128]`` for every element of `x`."""
    return table[x.astype(np.int16) + 128]


def identity_table() -> Int8Array:
    """Table that returns its input."""
    return all_int8().astype(np.int8)


def sigmoid_table(scale: float, zero_point: int) -> Int8Array:
    """Table of TFLite's reference int8 LOGISTIC, whose output has scale 1/256 and zero point -128.

    The runtime fills such a table itself, in float32 with round-half-away; only the exponential comes from a library.
    Here it is rounded from double precision, which agrees with a float32 exponential wherever that one is accurate.
    """
    x = np.float32(scale) * (all_int8() - zero_point).astype(np.float32)
    # A large negative input overflows to infinity, as it does in the runtime, and gives 0.
    with np.errstate(over="ignore"):
        exponential = np.exp(-x.astype(np.float64)).astype(np.float32)
    y = np.float32(1.0) / (np.float32(1.0) + exponential)
    scaled = np.floor(y * np.float32(256.0) + np.float32(0.5)).astype(np.int64)  # y is not negative
    return np.clip(scaled + SIGMOID_ZERO_POINT, INT8_MIN, INT8_MAX).astype(np.int8)


def silu_table(scale: float, zero_point: int, scale_out: float, zero_point_out: int) -> Int8Array:
    """Table of SiLU, ``x * logistic(x)``: LOGISTIC and then MUL on the same int8 input, exactly as the runtime does.

    Parameters
    ----------
    scale, zero_point
        Quantisation of the input.
    scale_out, zero_point_out
        Quantisation of the output.
    """
    sigmoid = sigmoid_table(scale, zero_point).astype(np.int64) - SIGMOID_ZERO_POINT
    # The runtime forms this factor in float32 before it widens it.
    real = float(np.float32(scale) * np.float32(SIGMOID_SCALE) / np.float32(scale_out))
    multiplier, shift = quantize_multiplier(real)
    return requantise((all_int8() - zero_point) * sigmoid, multiplier, shift, zero_point_out)


def activation_bounds(kind: str, scale: float, zero_point: int) -> tuple[int, int]:
    """Bounds that TFLite puts on an operator's output for a fused activation.

    Parameters
    ----------
    kind
        ``none``, ``relu``, ``relu6`` or ``relu_n1_to_1``.
    scale, zero_point
        Quantisation of the output.

    Raises
    ------
    KeyError
        For any other kind.
    """
    low, high = {"none": (None, None), "relu": (0.0, None), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}[kind]

    def quantised(real: float) -> int:
        # The quotient is float32; rounding takes halves away from zero.
        quotient = float(np.float32(real) / np.float32(scale))
        return zero_point + int(math.copysign(math.floor(abs(quotient) + 0.5), quotient))

    return (
        INT8_MIN if low is None else max(INT8_MIN, quantised(low)),
        INT8_MAX if high is None else min(INT8_MAX, quantised(high)),
    )


def relu_table(
    scale: float, zero_point: int, scale_out: float, zero_point_out: int, ceiling: float | None = None
) -> Int8Array:
    """Table of TFLite's RELU, or with a `ceiling` of 6 its RELU6, from one quantisation to another."""
    multiplier, shift = quantize_multiplier(float(np.float32(scale) / np.float32(scale_out)))
    lo = max(INT8_MIN, zero_point_out)
    hi = INT8_MAX
    if ceiling is not None:
        top = np.float32(ceiling) / np.float32(scale_out)
        hi = min(hi, zero_point_out + math.floor(float(top) + 0.5))
    return requantise(all_int8() - zero_point, multiplier, shift, zero_point_out, lo, hi)
