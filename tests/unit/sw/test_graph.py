"""Graphs, and what makes one invalid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hw.spec.numerics import identity_table, quantize_multiplier
from sw.graph import (
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    GraphError,
    MaxPool,
    Padding,
    Requantisation,
    Tensor,
    Upsample,
    window_output,
)


def tensor(name: str, *shape: int, scale: float = 0.5, zero_point: int = 0) -> Tensor:
    height, width, channels = shape
    return Tensor(name, (height, width, channels), scale, zero_point)


def convolution(**changes: Any) -> Convolution:
    weights = np.ones((4, 3, 3, 2), np.int8)
    scales = np.full(4, 0.25, np.float32)
    base = Convolution("conv", ("x",), "y", weights, scales, np.zeros(4, np.int32), padding=Padding.all(1))
    return replace(base, **changes)


def factors(channels: int, shift: int, multiplier: int = 1 << 30) -> Requantisation:
    return Requantisation(np.full(channels, multiplier, np.int32), np.full(channels, shift, np.int32))


def graph(
    *ops: Any, tensors: list[Tensor], inputs: tuple[str, ...] = ("x",), outputs: tuple[str, ...] = ("y",)
) -> Graph:
    return Graph("test", inputs, outputs, {t.name: t for t in tensors}, ops)


X = tensor("x", 6, 8, 2)
Y = tensor("y", 6, 8, 4)


def test_queries() -> None:
    out = tensor("sum", 6, 8, 4)
    ops = (convolution(), Addition("add", ("y", "y"), "sum"))
    g = graph(*ops, tensors=[X, Y, out], outputs=("sum", "y"))
    assert g.producer("x") is None
    assert g.producer("y") is ops[0]
    assert g.consumers("y") == (ops[1],)  # once, though it reads the tensor twice
    assert g.consumers("sum") == ()
    with pytest.raises(KeyError):
        g.producer("z")
    assert g.macs(ops[0]) == 6 * 8 * 4 * 9 * 2 == g.total_macs()
    assert g.macs(ops[1]) == 0
    assert g.weight_bytes() == 72
    assert g.output_shape(ops[1]) == (6, 8, 4)
    assert ops[0].kernel == (3, 3)


def test_multipliers_are_those_of_the_scales() -> None:
    scales = np.array([0.25, 0.5, 1.0, 4.0], np.float32)
    op = convolution(weight_scales=scales)
    g = graph(op, tensors=[X, replace(Y, scale=0.3)])
    multipliers, shifts = g.multipliers(op)
    expected = [quantize_multiplier(0.5 * float(s) / float(np.float32(0.3))) for s in scales]
    assert list(zip(multipliers.tolist(), shifts.tolist(), strict=True)) == expected


def test_a_scale_is_what_a_file_holds() -> None:
    assert tensor("x", 1, 1, 1, scale=0.1).scale == float(np.float32(0.1)) != 0.1


def test_sizes_of_a_tensor() -> None:
    assert (X.height, X.width, X.channels, X.size) == (6, 8, 2, 96)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "before", "after", "expected"),
    [
        (640, 6, 2, 1, 2, 2, 320),
        (5, 3, 1, 2, 0, 0, 1),
        (5, 3, 1, 3, 0, 0, -1),
        (20, 5, 1, 1, 2, 2, 20),
        (7, 2, 3, 1, 0, 1, 3),
    ],
)
def test_window_output(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int, expected: int
) -> None:
    assert window_output(size, kernel, stride, dilation, before, after) == expected


BAD_VALUES: list[tuple[Callable[[], object], str]] = [
    (lambda: tensor("", 1, 1, 1), "a tensor needs a name"),
    (lambda: tensor("t", 0, 1, 1), r"tensor t: the shape must be three positive sizes, not \(0, 1, 1\)"),
    (lambda: tensor("t", 1, 1, 1, scale=0.0), "tensor t: the scale must be positive and finite, not 0.0"),
    (lambda: tensor("t", 1, 1, 1, scale=float("nan")), "tensor t: the scale .* not nan"),
    (lambda: tensor("t", 1, 1, 1, zero_point=128), "tensor t: the zero point must be in -128..127, not 128"),
    (lambda: Padding(0, -1), "padding must not be negative: .*bottom=-1"),
]


@pytest.mark.parametrize(("make", "message"), BAD_VALUES)
def test_bad_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": np.ones((4, 3, 3, 3), np.int8)}, "weights for 3 channels, but x has 2"),
        ({"weights": np.ones((4, 3, 3, 2), np.float32)}, r"weights must be int8 \[cout, kh, kw, cin\], not float32"),
        ({"weights": np.ones((4, 3, 3, 1), np.int8)}, "weights for 1 channels, but x has 2"),
        ({"groups": 3}, "4 output channels are not to be cut into 3 groups"),
        ({"groups": 0}, "4 output channels are not to be cut into 0 groups"),
        ({"groups": 2}, r"weights for 4 channels, but x has 2 \(2 groups\)"),
        ({"clamp": (-129, 0)}, r"the clamp must be two bounds in order within -128..127, not \(-129, 0\)"),
        ({"clamp": (5, 4)}, r"the clamp must be two bounds in order within -128..127, not \(5, 4\)"),
        ({"requantisation": factors(3, 0)}, r"multipliers must be int32 \[4\], not int32 \[3\]"),
        ({"requantisation": factors(4, 31)}, "a shift is not in -31..30"),
        ({"requantisation": factors(4, 0, -1)}, "a multiplier is not in 0..2147483647"),
        ({"requantisation": factors(4, 25)}, "channel 0 may reach .* beyond the int32 accumulator"),
        ({"bias": np.zeros(3, np.int32)}, r"bias must be int32 \[4\], not int32 \[3\]"),
        ({"bias": np.full(4, 2**31 - 1, np.int32)}, "channel 0 may reach 2147485951, beyond the int32 accumulator"),
        ({"weight_scales": np.zeros(4, np.float32)}, "a weight scale is not positive"),
        ({"weight_scales": np.ones(4)}, r"weight scales must be float32 \[4\], not float64"),
        ({"weight_scales": np.full(4, 2.0**31, np.float32)}, "a multiplier must be"),
        ({"stride": (0, 1)}, r"stride must be two positive numbers, not \(0, 1\)"),
        ({"dilation": (9, 1)}, r"kernel \(3, 3\) with dilation \(9, 1\) does not fit input \(6, 8, 2\)"),
        ({"stride": (2, 1)}, r"output y has shape \(6, 8, 4\), but the operator makes \(3, 8, 4\)"),
        ({"inputs": ("x", "x")}, "2 inputs where 1 are needed"),
        ({"inputs": ("z",)}, "input 'z' is not a tensor"),
        ({"inputs": ("y",)}, "input 'y' is read before it is made"),
        ({"output": "z"}, "output 'z' is not a tensor"),
        ({"output": "x"}, "output 'x' is made twice"),
        ({"name": ""}, "an operator that makes 'y' has no name"),
    ],
)
def test_bad_convolution(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(convolution(**changes), tensors=[X, Y])


SAME = tensor("y", 6, 8, 2)


@pytest.mark.parametrize(
    ("op", "out", "message"),
    [
        (Activation("a", ("x",), "y", "swiglu", identity_table()), SAME, "kind 'swiglu' is not one of silu, sigmoid"),
        (Activation("a", ("x",), "y", "silu", identity_table()[:9]), SAME, r"must be int8 \[256\], not int8 \[9\]"),
        (Addition("a", ("x",), "y"), SAME, "1 inputs where 2 are needed"),
        (Addition("a", ("x", "x"), "y"), replace(SAME, scale=1e-9), "output scale .* is too small"),
        (MaxPool("p", ("x",), "y", (2, 2), padding=Padding(2)), SAME, "is not smaller than the kernel"),
        (
            MaxPool("p", ("x",), "y", (1, 1)),
            replace(SAME, scale=1.0),
            r"quantisation \(0.5, 0\) of x is not \(1.0, 0\)",
        ),
        (Addition("a", ("x", "x"), "y", clamp=(0, 128)), SAME, r"Addition a: the clamp must be .* not \(0, 128\)"),
        (MaxPool("p", ("x",), "y", (1, 1), clamp=(1, 0)), SAME, r"MaxPool p: the clamp must be .* not \(1, 0\)"),
        (AveragePool("p", ("x",), "y", (2, 2), padding=Padding(0, 0, 2)), SAME, "is not smaller than the kernel"),
        (AveragePool("p", ("x",), "y", (54, 54)), SAME, "does not fit input"),
        (
            AveragePool("p", ("x",), "y", (54, 54), padding=Padding.all(53)),
            replace(SAME, shape=(59, 61, 2)),
            "has more than 2895 pixels",
        ),
        (
            AveragePool("p", ("x",), "y", (1, 1)),
            replace(SAME, zero_point=9),
            r"quantisation \(0.5, 0\) of x is not \(0.5, 9\)",
        ),
        (Concatenation("c", (), "y"), SAME, "0 inputs where 1 are needed"),
        (Concatenation("c", ("x", "x"), "y"), SAME, r"has shape \(6, 8, 2\), but the operator makes \(6, 8, 4\)"),
        (Upsample("u", ("x",), "y", 0), SAME, "the factor must be at least 1, not 0"),
        (Upsample("u", ("x",), "y"), replace(SAME, zero_point=1), "Upsample u: quantisation"),
    ],
)
def test_bad_operator(op: Any, out: Tensor, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(op, tensors=[X, out])


def test_shapes_that_do_not_match() -> None:
    other = tensor("w", 6, 4, 2)
    tensors = [X, other, SAME]
    with pytest.raises(GraphError, match=r"shapes differ: \(6, 8, 2\) and \(6, 4, 2\)"):
        graph(Addition("a", ("x", "w"), "y"), tensors=tensors, inputs=("x", "w"))
    with pytest.raises(GraphError, match=r"sizes differ: \(6, 8, 2\) and \(6, 4, 2\)"):
        graph(Concatenation("a", ("x", "w"), "y"), tensors=tensors, inputs=("x", "w"))


def test_groups_cut_the_weights_and_the_multiply_accumulates() -> None:
    op = convolution(weights=np.full((4, 3, 3, 1), -128, np.int8), groups=2)
    g = graph(op, tensors=[X, Y])
    assert g.macs(op) == 6 * 8 * 4 * 9
    multipliers, shifts = g.multipliers(op)
    assert [(int(m), int(s)) for m, s in zip(multipliers, shifts, strict=True)] == [quantize_multiplier(0.25)] * 4


def test_factors_of_its_own_replace_those_of_the_scales() -> None:
    own = factors(4, -3)
    assert graph(convolution(requantisation=own), tensors=[X, Y]).multipliers(convolution(requantisation=own)) == (
        own.multiplier,
        own.shift,
    )


def test_bad_graph() -> None:
    op = convolution()
    with pytest.raises(GraphError, match="there is no input"):
        graph(op, tensors=[X, Y], inputs=())
    with pytest.raises(GraphError, match="output 'z' is not a tensor"):
        graph(op, tensors=[X, Y], outputs=("z",))
    with pytest.raises(GraphError, match="named twice"):
        graph(op, tensors=[X, Y], outputs=("y", "y"))
    with pytest.raises(GraphError, match="two operators are called 'conv'"):
        graph(op, op, tensors=[X, Y])
    with pytest.raises(GraphError, match="tensor 'lost' is made by no operator"):
        graph(op, tensors=[X, Y, tensor("lost", 1, 1, 1)])
    with pytest.raises(GraphError, match="filed under another name, 'q'"):
        Graph("test", ("x",), ("y",), {"x": X, "q": Y}, (op,))
