"""Strides, dilations and paddings of windows, beside the shapes and values of ONNX Runtime."""

import numpy as np
import pytest

from sw.operators import Padding, Tensor
from sw.reader.onnx_file import OnnxNode
from sw.reader.onnx_window import ints, kernel_of, window
from sw.reader.support import Unsupported


def node(**attributes):
    return OnnxNode(0, "Conv", ("x",), ("y",), attributes)


def image(height, width):
    return Tensor("t", (height, width, 3), 0.1, 0)


def test_what_is_left_out():
    assert window(node(), image(5, 6), image(3, 5), (3, 2)) == ((1, 1), (1, 1), Padding())
    assert ints(node(strides=[2, 3]), "strides", (1, 1)) == [2, 3]
    assert ints(node(), "strides", (1, 1)) == [1, 1]


def test_pads_are_top_left_bottom_right():
    found = window(node(pads=[1, 2, 3, 4], strides=[2, 1], dilations=[1, 2]), image(8, 9), image(5, 11), (3, 3))
    assert found == ((2, 1), (1, 2), Padding(1, 3, 2, 4))


@pytest.mark.parametrize(
    ("way", "padding"), [(b"SAME_UPPER", Padding(0, 1, 1, 2)), (b"SAME_LOWER", Padding(1, 0, 2, 1))]
)
def test_automatic_padding(way, padding):
    made = window(node(auto_pad=way, strides=[2, 1], dilations=[1, 3]), image(7, 8), image(4, 8), (2, 2))
    assert made[2] == padding


def test_no_automatic_padding_where_the_stride_is_longer_than_the_kernel():
    assert window(node(auto_pad=b"SAME_UPPER", strides=[3, 3]), image(6, 8), image(2, 3), (1, 1))[2] == Padding()


def test_valid_drops_pads():
    assert window(node(auto_pad=b"VALID", pads=[1, 1, 1, 1]), image(5, 5), image(3, 3), (3, 3))[2] == Padding()


def test_rows_that_ceil_mode_adds_are_padding_at_the_end():
    attributes = node(strides=[2, 2], ceil_mode=1)
    assert window(attributes, image(6, 5), image(3, 2), (3, 3), ceils=True)[2] == Padding(0, 1, 0, 0)
    with pytest.raises(Unsupported, match=r"^its window makes 2 along axis 2, its output has 3$"):
        window(attributes, image(6, 5), image(3, 2), (3, 3))


@pytest.mark.parametrize(
    ("attributes", "kernel", "text"),
    [
        ({"strides": [0, 1]}, (1, 1), r"its stride is 0x1; it can be 1 to 255"),
        ({"dilations": [1, 256]}, (1, 1), r"its dilation is 1x256; it can be 1 to 255"),
        ({}, (256, 1), r"its kernel is 256x1; it can be 1 to 255"),
        ({"strides": [1]}, (1, 1), r"its window has other than two dimensions"),
        ({"pads": [0, 0]}, (1, 1), r"its window has other than two dimensions"),
        ({"pads": [-1, 0, 1, 0]}, (1, 1), r"it pads \[-1, 0, 1, 0\]"),
        ({"pads": [1, 0, 0, 0]}, (1, 1), r"its window makes 5 along axis 2, its output has 4"),
    ],
)
def test_what_is_refused(attributes, kernel, text):
    with pytest.raises(Unsupported, match=f"^{text}"):
        window(node(**attributes), image(4, 4), image(4, 4), kernel)


def test_kernel_of_a_pool():
    assert kernel_of(node(kernel_shape=np.array([2, 3]))) == (2, 3)
    with pytest.raises(Unsupported, match=r"^its window has other than two dimensions$"):
        kernel_of(node(kernel_shape=[3]))
