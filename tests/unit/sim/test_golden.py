"""The golden model against slow and obvious loops."""

import numpy as np
import pytest

from sim import golden
from sim.testing.random_graphs import KINDS, random_graph, random_inputs
from sw.graph import Convolution, Graph, MaxPool, Padding, Tensor


def naive_accumulators(op: Convolution, x: np.ndarray, zero_point: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Six nested loops over the definition, but for the innermost sum."""
    kh, kw = op.kernel
    out = np.empty(shape, np.int64)
    for i, j in np.ndindex(shape[0], shape[1]):
        total = op.bias.astype(np.int64)
        for a, b in np.ndindex(kh, kw):
            row = i * op.stride[0] + a * op.dilation[0] - op.padding.top
            column = j * op.stride[1] + b * op.dilation[1] - op.padding.left
            if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]:
                total = total + op.weights[:, a, b].astype(np.int64) @ (x[row, column].astype(np.int64) - zero_point)
        out[i, j] = total
    return out


@pytest.mark.parametrize("seed", range(12))
def test_accumulators(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, "convolution", max_size=10)
    (op,) = graph.operators
    assert isinstance(op, Convolution)
    source = graph.tensors[op.inputs[0]]
    x = random_inputs(rng, graph)[source.name]
    expected = naive_accumulators(op, x, source.zero_point, graph.output_shape(op))
    assert np.array_equal(golden.accumulators(op, x, source.zero_point), expected)


def test_accumulators_are_exact_at_the_extremes() -> None:
    """Every product is the largest possible, and there are more than float32 could sum."""
    weights = np.full((1, 3, 3, 512), -127, np.int8)
    weights[0, 1, 1, ::2] = 126
    op = Convolution("c", ("x",), "y", weights, np.ones(1, np.float32), np.array([1], np.int32))
    x = np.full((3, 3, 512), -128, np.int8)
    expected = 1 + int((weights.astype(np.int64) * (-128 - 127)).sum())
    assert golden.accumulators(op, x, 127).ravel().tolist() == [expected]


def test_rows_are_split_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    graph = random_graph(rng, "convolution")
    inputs = random_inputs(rng, graph)
    whole = golden.run(graph, inputs)
    monkeypatch.setattr(golden, "_PATCH_VALUES", 1)
    assert np.array_equal(golden.run(graph, inputs)["conv"], whole["conv"])


def test_padding_of_a_pool_never_wins() -> None:
    op = MaxPool("pool", ("x",), "y", (3, 3), (2, 1), Padding(1, 1, 2, 0))
    tensors = {"x": Tensor("x", (5, 4, 2), 1.0, 100), "y": Tensor("y", (3, 4, 2), 1.0, 100)}
    x = np.random.default_rng(5).integers(-128, 0, (5, 4, 2)).astype(np.int8)
    out = golden.run(Graph("pool", ("x",), ("y",), tensors, (op,)), {"x": x})["y"]
    for i, j in np.ndindex(3, 4):
        rows, columns = slice(max(2 * i - 1, 0), 2 * i + 2), slice(max(j - 2, 0), j + 1)
        assert np.array_equal(out[i, j], x[rows, columns].max(axis=(0, 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_returned(kind: str) -> None:
    rng = np.random.default_rng(6)
    graph = random_graph(rng, kind)
    values = golden.run(graph, random_inputs(rng, graph))
    assert {name: value.shape for name, value in values.items()} == {t.name: t.shape for t in graph.tensors.values()}
    assert all(value.dtype == np.int8 for value in values.values())


def test_refuses_wrong_inputs() -> None:
    rng = np.random.default_rng(7)
    graph = random_graph(rng, "upsample")
    x = random_inputs(rng, graph)["input0"]
    with pytest.raises(ValueError, match=r"inputs must be \['input0'\], not \[\]"):
        golden.run(graph, {})
    with pytest.raises(ValueError, match="input input0 must be int8"):
        golden.run(graph, {"input0": x[:, :, :0]})
    with pytest.raises(ValueError, match="not int64"):
        golden.run(graph, {"input0": x.astype(np.int64)})  # pyright: ignore[reportArgumentType]


def test_random_graphs_refuse_a_kind() -> None:
    with pytest.raises(ValueError, match=r"must be one of convolution, .*, not 'lstm'"):
        random_graph(np.random.default_rng(0), "lstm")


def test_random_graphs_repeat() -> None:
    first, second = (random_graph(np.random.default_rng(8), "c3") for _ in range(2))
    assert first.tensors == second.tensors
