"""Tensors as bytes."""

import numpy as np
import pytest

from sw.layout import TensorLayout


@pytest.mark.parametrize(
    ("shape", "n", "packed"), [((3, 5, 7), 4, False), ((2, 3, 3), 4, True), ((1, 1, 64), 32, False)]
)
def test_pack_and_unpack_are_inverse(shape, n, packed):
    values = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    layout = TensorLayout(*shape, n, packed)
    raw = layout.pack(values)
    assert len(raw) == layout.size
    assert np.array_equal(layout.unpack(raw), values)


def test_order_is_row_block_pixel_channel():
    values = np.arange(2 * 3 * 8).reshape(2, 3, 8).astype(np.int8)
    raw = np.frombuffer(TensorLayout(2, 3, 8, 4).pack(values), np.int8).reshape(2, 2, 3, 4)
    assert np.array_equal(raw[1, 1, 2], values[1, 2, 4:8])


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="was expected"):
        TensorLayout(2, 3, 8, 4).pack(np.zeros((2, 3, 7), np.int8))
