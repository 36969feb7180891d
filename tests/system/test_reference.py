"""Golden model against TFLite's reference kernels, byte for byte.

The random tests draw a new seed every time and print it; the environment variable RONDO_SEED gives it back.
"""

import os
import secrets
import sys
from dataclasses import replace

import numpy as np
import pytest

from hw.spec.numerics import SIGMOID_SCALE, Int8Array, all_int8, identity_table, relu_table, sigmoid_table, silu_table
from sim import golden, reference
from sim.testing.random_graphs import KINDS, random_graph, random_inputs
from sw.graph import Activation, Graph, GraphError, MaxPool, Padding, Tensor
from sw.images import photograph
from sw.tflite_writer import is_same, serialise
from sw.workloads import quantised_yolov5

GRAPHS_PER_KIND = 40


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one that RONDO_SEED gives; printed, so that a failure can be repeated."""
    value = int(os.environ.get("RONDO_SEED") or secrets.randbits(32))
    print(f"RONDO_SEED={value}")
    return value


def assert_equal(graph: Graph, inputs: dict[str, Int8Array], note: str) -> None:
    ours, theirs = golden.run(graph, inputs), reference.run(graph, inputs)
    assert set(ours) == set(theirs) == set(graph.tensors)
    for name in graph.tensors:  # in order, so that the first to differ is the one to look at
        wrong = int(np.count_nonzero(ours[name] != theirs[name]))
        assert ours[name].shape == theirs[name].shape, (note, name)
        assert wrong == 0, f"{note}: {wrong} of {ours[name].size} bytes of {name} differ"


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs(kind: str, seed: int) -> None:
    for i in range(GRAPHS_PER_KIND):
        rng = np.random.default_rng([seed, i])
        graph = random_graph(rng, kind)
        assert_equal(graph, random_inputs(rng, graph), f"RONDO_SEED={seed}, graph {i}")


def test_tables_on_every_input(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = all_int8().astype(np.int8).reshape(16, 16, 1)
    for _ in range(200):
        scale = float(np.float32(2.0 ** rng.uniform(-12, 3)))
        scale_out = float(np.float32(scale * 2.0 ** rng.uniform(-1.5, 1.5)))
        zero_point, zero_point_out = (int(z) for z in rng.integers(-128, 128, 2))
        before, after = (scale, zero_point), (scale_out, zero_point_out)
        tables = {
            "sigmoid": sigmoid_table(*before),
            "silu": silu_table(*before, *after),
            "relu": relu_table(*before, *after),
            "relu6": relu_table(*before, *after, 6.0),
        }
        tensors = {kind: Tensor(kind, x.shape, *after) for kind in tables}
        tensors["sigmoid"] = Tensor("sigmoid", x.shape, SIGMOID_SCALE, -128)
        tensors["x"] = Tensor("x", x.shape, *before)
        ops = [Activation(kind, ("x",), kind, kind, table) for kind, table in tables.items()]
        assert_equal(Graph("tables", ("x",), tuple(tables), tensors, ops), {"x": x}, f"{before} to {after}")


@pytest.mark.parametrize("name", ["chelsea", "rocket"])
def test_whole_network(name: str) -> None:
    graph = quantised_yolov5("n", 64, 64)
    assert_equal(graph, {"images": photograph(name, 64, 64)}, name)


def test_network_that_is_not_square() -> None:
    graph = quantised_yolov5("s", 64, 96)
    assert_equal(graph, {"images": photograph("coffee", 64, 96)}, "coffee")


def test_same_padding_is_used_only_where_it_is_exact() -> None:
    pool = MaxPool("pool", ("x",), "y", (5, 5), (1, 1), Padding.all(2))
    assert is_same(pool, (20, 20, 8))
    assert not is_same(replace(pool, padding=Padding(2, 1, 2, 2)), (20, 20, 8))
    assert not is_same(replace(pool, kernel=(3, 3), stride=(2, 2), padding=Padding.all(1)), (20, 20, 8))
    assert is_same(replace(pool, kernel=(3, 3), stride=(2, 2), padding=Padding(0, 1, 0, 1)), (20, 20, 8))


def one_activation(kind: str, table: Int8Array, scale_out: float, zero_point_out: int) -> Graph:
    tensors = {"x": Tensor("x", (2, 2, 1), 0.1, 0), "y": Tensor("y", (2, 2, 1), scale_out, zero_point_out)}
    return Graph("bad", ("x",), ("y",), tensors, (Activation("act", ("x",), "y", kind, table),))


def test_refuses_a_table_that_the_runtime_would_not_use() -> None:
    with pytest.raises(GraphError, match="act: the table is not that of silu"):
        serialise(one_activation("silu", identity_table(), 0.1, 0))


def test_refuses_a_sigmoid_of_another_scale() -> None:
    with pytest.raises(GraphError, match=r"act: TFLite wants quantisation \(1/256, -128\), not"):
        serialise(one_activation("sigmoid", sigmoid_table(0.1, 0), 0.1, 0))


def test_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ModuleNotFoundError, match="install it first"):
        serialise(random_graph(np.random.default_rng(0), "upsample"))
