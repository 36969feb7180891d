"""Folding paddings, element-wise functions and reshapes into a graph: the same bytes as one node after the other gives.

The random tests draw a new seed every time and print it; the environment variable RONDO_SEED gives it back.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hw.spec.numerics import (
    Int8Array,
    all_int8,
    apply_table,
    quantize_multiplier,
    requantise,
    sigmoid_table,
    silu_table,
)
from sim import golden
from sw.graph import (
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    MaxPool,
    Padding,
    Requantisation,
    Tensor,
    window_output,
)
from sw.reader.fold import Folded, Roots, Unfoldable, fold
from sw.reader.model import ModelError
from sw.reader.nodes import Node, Pad, Pointwise, Reshape

RANDOM_NETWORKS = 300

SCALE, ZERO = 0.0625, -3
"""Quantisation of the tensors of the fixed cases."""


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one that RONDO_SEED gives; printed, so that a failure can be repeated."""
    value = int(os.environ.get("RONDO_SEED") or secrets.randbits(32))
    print(f"RONDO_SEED={value}")
    return value


def step_by_step(
    tensors: Mapping[str, Tensor], nodes: Sequence[Node], inputs: Mapping[str, Int8Array]
) -> dict[str, Int8Array]:
    """Every tensor, computed node by node as `sw.reader.nodes` describes them."""
    values = dict(inputs)
    for node in nodes:
        sources = [values[name] for name in node.inputs]
        out = tensors[node.output]
        match node:
            case Pad():
                p = node.padding
                edges = ((p.top, p.bottom), (p.left, p.right), (0, 0))
                values[node.output] = np.pad(sources[0], edges, constant_values=node.value)
            case Pointwise():
                values[node.output] = node.function(sources)
            case Reshape():
                values[node.output] = sources[0].reshape(out.shape)
            case _:
                names = tuple(dict.fromkeys(node.inputs))
                used = {name: replace(tensors[name], name=name) for name in (*names, node.output)}
                graph = Graph("one", names, (node.output,), used, [node])
                values[node.output] = golden.run(graph, {name: values[name] for name in names})[node.output]
        assert values[node.output].shape == out.shape, node
    return values


def same_bytes(folded: Folded, expected: Mapping[str, Int8Array], note: str = "") -> None:
    """The graph computes the requested outputs, and the tensors whose names it keeps."""
    graph = folded.graph
    assert set(folded.inputs) == set(graph.inputs)
    assert set(folded.outputs.values()) == set(graph.outputs)
    inputs = {name: expected[source].reshape(graph.tensors[name].shape) for name, source in folded.inputs.items()}
    values = golden.run(graph, inputs)
    for requested, name in folded.outputs.items():
        np.testing.assert_array_equal(values[name].ravel(), expected[requested].ravel(), f"{note} {requested}")
    for name, value in values.items():
        np.testing.assert_array_equal(value.ravel(), expected[name].ravel(), f"{note} {name}")


class Builder:
    """Nodes over tensors with random values, then their graph, compared byte for byte."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def tensor(self, name: str, shape: tuple[int, int, int], scale: float = SCALE, zero_point: int = ZERO) -> str:
        self.tensors[name] = Tensor(name, shape, scale, zero_point)
        return name

    def input(self, name: str, *shape: int, scale: float = SCALE, zero_point: int = ZERO) -> str:
        height, width, channels = shape
        self.inputs.append(name)
        return self.tensor(name, (height, width, channels), scale, zero_point)

    def like(self, source: str, name: str, shape: tuple[int, int, int] | None = None) -> str:
        """A tensor with the quantisation of another."""
        before = self.tensors[source]
        return self.tensor(name, shape or before.shape, *before.quantisation)

    def pad(self, source: str, name: str, padding: Padding, value: int | None = None) -> str:
        height, width, channels = self.tensors[source].shape
        shape = (height + padding.top + padding.bottom, width + padding.left + padding.right, channels)
        value = self.tensors[source].zero_point if value is None else value
        self.nodes.append(Pad(f"op {name}", (source,), self.like(source, name, shape), padding, value))
        return name

    def reshape(self, source: str, name: str, *shape: int) -> str:
        height, width, channels = shape
        self.nodes.append(Reshape(f"op {name}", (source,), self.like(source, name, (height, width, channels))))
        return name

    def pointwise(
        self, sources: Sequence[str], name: str, function: Callable[..., Int8Array], kind: str = "table"
    ) -> str:
        self.tensor(name, self.tensors[sources[0]].shape)
        self.nodes.append(Pointwise(f"op {name}", tuple(sources), name, kind, lambda values: function(*values)))
        return name

    def table(self, source: str, name: str, kind: str = "table") -> str:
        table = self.rng.integers(-128, 128, 256).astype(np.int8)
        return self.pointwise([source], name, lambda x: apply_table(table, x), kind)

    def sigmoid(self, source: str, name: str) -> str:
        table = sigmoid_table(*self.tensors[source].quantisation)
        self.pointwise([source], name, lambda x: apply_table(table, x), "sigmoid")
        self.tensors[name] = Tensor(name, self.tensors[source].shape, 1 / 256, -128)
        return name

    def product(self, a: str, b: str, name: str) -> str:
        za, zb = self.tensors[a].zero_point, self.tensors[b].zero_point
        scale_a, scale_b = np.float32(self.tensors[a].scale), np.float32(self.tensors[b].scale)

        def function(x: Int8Array, y: Int8Array) -> Int8Array:
            factors = (x.astype(np.int64) - za) * (y.astype(np.int64) - zb)
            return requantise(factors, *quantize_multiplier(float(scale_a * scale_b / np.float32(SCALE))), ZERO)

        return self.pointwise([a, b], name, function)

    def convolution(self, source: str, name: str, cout: int = 3, kernel: int = 3, **fields: Any) -> str:
        height, width, cin = self.tensors[source].shape
        shape = (cout, kernel, kernel, cin // fields.get("groups", 1))
        op = Convolution(
            f"op {name}",
            (source,),
            name,
            self.rng.integers(-127, 128, shape).astype(np.int8),
            self.rng.uniform(0.001, 0.01, cout).astype(np.float32),
            self.rng.integers(-1000, 1000, cout).astype(np.int32),
            **fields,
        )
        p = op.padding
        height = window_output(height, kernel, op.stride[0], op.dilation[0], p.top, p.bottom)
        width = window_output(width, kernel, op.stride[1], op.dilation[1], p.left, p.right)
        self.tensor(name, (height, width, cout))
        self.nodes.append(op)
        return name

    def pool(self, source: str, name: str, kind: type = MaxPool, kernel: int = 2, **fields: Any) -> str:
        op = kind(f"op {name}", (source,), name, (kernel, kernel), **fields)
        height, width, channels = self.tensors[source].shape
        p = op.padding
        height = window_output(height, kernel, op.stride[0], 1, p.top, p.bottom)
        width = window_output(width, kernel, op.stride[1], 1, p.left, p.right)
        self.like(source, name, (height, width, channels))
        self.nodes.append(op)
        return name

    def addition(self, a: str, b: str, name: str) -> str:
        self.tensor(name, self.tensors[a].shape)
        self.nodes.append(Addition(f"op {name}", (a, b), name))
        return name

    def fold(self, *outputs: str) -> Folded:
        return fold("test", self.inputs, outputs, self.tensors, self.nodes)

    def compare(self, *outputs: str, note: str = "") -> Folded:
        folded = self.fold(*outputs)
        values = {name: self.rng.integers(-128, 128, self.tensors[name].shape).astype(np.int8) for name in self.inputs}
        same_bytes(folded, step_by_step(self.tensors, self.nodes, values), note)
        return folded


def operators(folded: Folded) -> list[str]:
    """What the graph consists of, for example ``Convolution a``."""
    return [f"{type(op).__name__} {op.output}" for op in folded.graph.operators]


# ---- Paddings --------------------------------------------------------------------------------------------------------


def test_a_convolution_takes_in_a_padding() -> None:
    b = Builder()
    b.input("x", 5, 7, 4)
    b.pad("x", "p", Padding(1, 0, 2, 1))
    b.convolution("p", "y", padding=Padding(0, 1, 0, 0), stride=(2, 1))
    folded = b.compare("y")
    assert operators(folded) == ["Convolution y"]
    (op,) = folded.graph.operators
    assert isinstance(op, Convolution)
    assert op.padding == Padding(1, 1, 2, 1)
    assert folded.inputs == {"x": "x"}
    assert folded.outputs == {"y": "y"}


def test_paddings_add_up_where_their_values_agree() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.pad("x", "p", Padding(1, 0, 0, 2))
    b.pad("p", "q", Padding(0, 1, 1, 1))
    b.convolution("q", "y")
    b.convolution("p", "z")
    assert operators(b.compare("y", "z")) == ["Convolution y", "Convolution z"]


def test_a_padding_without_effect_vanishes() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.pad("x", "p", Padding(), value=99)
    b.addition("p", "x", "y")
    assert operators(b.compare("y")) == ["Addition y"]


def test_a_max_pool_takes_in_a_padding_that_never_wins() -> None:
    b = Builder()
    b.input("x", 5, 5, 3)
    b.pad("x", "p", Padding(1, 0, 0, 1), value=-128)
    b.pool("p", "y", kernel=3, padding=Padding(1, 0, 1, 1), stride=(2, 2))
    folded = b.compare("y")
    (op,) = folded.graph.operators
    assert isinstance(op, MaxPool)
    assert op.padding == Padding(2, 0, 1, 2)


def test_a_max_pool_does_not_take_in_a_padding_that_may_win() -> None:
    b = Builder()
    b.input("x", 5, 5, 3)
    b.pad("x", "p", Padding.all(1))
    b.pool("p", "y", kernel=3)
    assert operators(b.compare("y")) == ["Convolution p", "MaxPool y"]


@pytest.mark.parametrize("zero_point", [-128, 5])
def test_a_max_pool_does_not_take_in_more_than_its_kernel(zero_point: int) -> None:
    """Such a window would see nothing but padding: with a value that stands for zero, a convolution pads instead."""
    b = Builder()
    b.input("x", 5, 5, 3, zero_point=zero_point)
    b.pad("x", "p", Padding(2, 0, 0, 0), value=-128)
    b.pool("p", "y", kernel=2)
    if zero_point == -128:
        assert operators(b.compare("y")) == ["Convolution p", "MaxPool y"]
    else:
        with pytest.raises(Unfoldable, match=r"^op p pads with -128, but only 5 stands for zero$"):
            b.fold("y")


@pytest.mark.parametrize("zero_point", [-128, -7, 0, 127])
@pytest.mark.parametrize("channels", [1, 5])
def test_a_padding_that_nobody_takes_in(zero_point: int, channels: int) -> None:
    """Every value comes through the convolution that pads, at every zero point."""
    b = Builder()
    b.input("x", 16, 16, channels, scale=0.3, zero_point=zero_point)
    b.pad("x", "p", Padding(1, 2, 3, 4))
    b.pool("p", "y", AveragePool, kernel=3)
    b.convolution("p", "z")
    folded = b.fold("p", "y", "z")
    assert operators(folded) == ["Convolution p", "AveragePool y", "Convolution z"]
    assert folded.graph.operators[2].inputs == ("x",), "who can take it in still does"
    x = np.repeat(all_int8().astype(np.int8).reshape(16, 16, 1), channels, axis=2)
    same_bytes(folded, step_by_step(b.tensors, b.nodes, {"x": x}))


def test_paddings_of_two_values() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.pad("x", "p", Padding.all(1))
    b.pad("p", "q", Padding(0, 0, 1, 0), value=-128)
    b.pool("q", "y")
    assert operators(b.compare("y")) == ["Convolution p", "MaxPool y"]
    b.convolution("q", "z")
    with pytest.raises(Unfoldable, match=r"^op q pads with -128, but only -3 stands for zero$"):
        b.fold("y", "z")


def test_a_padding_before_a_table_before_a_convolution() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.pad("x", "p", Padding.all(1))
    b.table("p", "t")
    b.pad("t", "q", Padding.all(1))
    b.convolution("q", "y")
    assert operators(b.compare("y")) == ["Convolution p", "Activation t", "Convolution y"]


# ---- Element-wise functions ------------------------------------------------------------------------------------------


def test_a_silu_is_one_table() -> None:
    for swap in (False, True):
        b = Builder()
        b.input("x", 16, 16, 1)
        b.sigmoid("x", "s")
        b.product(*(("s", "x") if swap else ("x", "s")), "y")
        folded = b.compare("y")
        (op,) = folded.graph.operators
        assert isinstance(op, Activation)
        assert op.kind == "silu"
        assert op.name == "op y"
        np.testing.assert_array_equal(op.table, silu_table(SCALE, ZERO, SCALE, ZERO))


def test_kinds_of_tables() -> None:
    b = Builder()
    b.input("x", 16, 16, 1)
    b.sigmoid("x", "s")
    b.pointwise(["x", "s"], "sum", lambda x, y: (x // 2 + y // 2).astype(np.int8))
    b.table("s", "chain")
    b.table("x", "other", kind="hard_swish")
    b.product("x", "other", "no silu")
    b.product("x", "x", "square")
    b.product("s", "s", "no silu either")
    outputs = ("s", "sum", "chain", "other", "no silu", "square", "no silu either")
    folded = b.compare(*outputs)
    kinds = {op.output: op.kind for op in folded.graph.operators if isinstance(op, Activation)}
    assert kinds == dict.fromkeys(outputs, "table") | {"s": "sigmoid", "other": "hard_swish"}
    assert all(op.inputs == ("x",) for op in folded.graph.operators)


def test_only_tensors_that_others_read_are_made() -> None:
    b = Builder()
    b.input("x", 4, 4, 3)
    b.convolution("x", "c", padding=Padding.all(1))
    b.table("c", "a")
    b.table("a", "b")
    b.product("a", "b", "d")
    b.product("d", "c", "e")
    b.addition("b", "e", "y")
    assert operators(b.compare("y")) == ["Convolution c", "Activation b", "Activation e", "Addition y"]


def test_a_function_of_two_tensors() -> None:
    b = Builder()
    b.input("x", 4, 4, 3)
    b.input("u", 4, 4, 3)
    b.table("x", "a")
    b.product("a", "u", "y")
    with pytest.raises(Unfoldable, match=r"^op y combines 'x' and 'u', which are no functions of one tensor$"):
        b.fold("y")


def test_a_function_that_broadcasts() -> None:
    b = Builder()
    b.input("x", 1, 1, 3)
    b.table("x", "y")
    b.like("x", "y", (4, 4, 3))
    with pytest.raises(Unfoldable, match=r"^op y makes \(4, 4, 3\) of \(1, 1, 3\), so it is no function"):
        b.fold("y")


def test_roots_know_what_will_fold() -> None:
    b = Builder()
    b.input("x", 4, 4, 3)
    b.input("u", 4, 4, 3)
    b.reshape("x", "same", 4, 4, 3)
    b.pad("same", "still", Padding())
    b.table("still", "a")
    b.product("a", "x", "p")
    b.product("p", "u", "q")
    b.convolution("p", "c")
    b.reshape("p", "r", 1, 1, 48)
    roots = Roots(b.tensors)
    for node in b.nodes:
        roots.add(node)
    assert {name: roots.root(name) for name in b.tensors} == {
        **{name: name for name in ("x", "u", "q", "c", "r")},
        **dict.fromkeys(("same", "still", "a", "p"), "x"),
    }
    assert roots.common(["a", "p", "x"]) == "x"
    assert roots.common(["a", "u"]) is None
    b.nodes = [node for node in b.nodes if node.output in ("same", "still", "a", "p")]
    assert operators(b.compare("p")) == ["Activation p"]


# ---- Reshapes --------------------------------------------------------------------------------------------------------


def test_a_fully_connected_layer_takes_in_what_flattens() -> None:
    b = Builder()
    b.input("x", 5, 4, 2)
    b.convolution("x", "c")
    b.table("c", "t")
    b.reshape("t", "f", 1, 1, 18)
    factors = Requantisation(np.full(7, 1 << 30, np.int32), np.full(7, -9, np.int32))
    b.convolution("f", "y", 7, kernel=1, dilation=(2, 2), clamp=(-100, 90), requantisation=factors)
    b.reshape("y", "g", 1, 1, 7)
    b.convolution("g", "z", 3, kernel=1)
    folded = b.compare("y", "z")
    assert operators(folded) == ["Convolution c", "Activation t", "Convolution y", "Convolution z"]
    op = folded.graph.operators[2]
    assert isinstance(op, Convolution)
    assert op.weights.shape == (7, 3, 2, 3)
    assert folded.graph.multipliers(op) == (factors.multiplier, factors.shift)


def test_a_padding_before_what_flattens() -> None:
    b = Builder()
    b.input("x", 3, 2, 3)
    b.convolution("x", "c", 2, kernel=1)
    b.pad("c", "p", Padding(0, 1, 1, 0))
    b.reshape("p", "f", 1, 1, 24)
    b.convolution("f", "y", 7, kernel=1)
    assert operators(b.compare("y")) == ["Convolution c", "Convolution y"]


def test_an_input_under_two_shapes_and_a_third() -> None:
    b = Builder()
    b.input("x", 1, 1, 24)
    b.input("unread", 1, 1, 24)
    b.reshape("x", "image", 4, 3, 2)
    b.reshape("x", "again", 4, 3, 2)
    b.reshape("again", "back", 1, 1, 24)
    b.reshape("image", "wide", 2, 3, 4)
    b.addition("image", "again", "i")
    b.addition("x", "back", "j")
    b.convolution("wide", "k", kernel=1)
    folded = b.compare("i", "j", "k")
    assert folded.inputs == {"x": "x", "image": "x", "wide": "x"}
    assert [op.inputs for op in folded.graph.operators] == [("image", "image"), ("x", "x"), ("wide",)]


def test_an_output_under_another_shape() -> None:
    b = Builder()
    b.input("x", 4, 3, 2)
    b.table("x", "t")
    b.reshape("t", "flat", 1, 1, 24)
    b.reshape("flat", "wide", 2, 3, 4)
    b.reshape("wide", "same", 4, 3, 2)
    b.addition("same", "x", "y")
    folded = b.compare("flat", "t", "wide", "y")
    assert folded.outputs == {"flat": "t", "t": "t", "wide": "t", "y": "y"}
    assert folded.graph.outputs == ("t", "y")
    assert operators(folded) == ["Activation t", "Addition y"]


@pytest.mark.parametrize("reader", ["pool", "table", "padded", "image", "groups"])
def test_a_reshape_that_nobody_takes_in(reader: str) -> None:
    b = Builder()
    b.input("x", 3, 4, 2)
    b.table("x", "t")
    b.reshape("t", "f", *((4, 6, 1) if reader in ("pool", "image") else (1, 1, 24)))
    match reader:
        case "pool":
            b.pool("f", "y")
        case "table":
            b.table("f", "y")
        case "padded":
            b.convolution("f", "y", kernel=1, padding=Padding.all(1))
        case "image":
            b.convolution("f", "y", kernel=1)
        case "groups":
            b.convolution("f", "y", 24, kernel=1, groups=24)
    message = r"^op f makes \(.*\) of \(3, 4, 2\), but op y is no fully connected layer that takes it in$"
    with pytest.raises(Unfoldable, match=message):
        b.fold("y")


def test_a_reshape_that_fits_nothing() -> None:
    b = Builder()
    b.input("x", 3, 4, 2)
    b.reshape("x", "f", 1, 1, 25)
    b.convolution("f", "y", kernel=1)
    with pytest.raises(ModelError, match=r"^op f makes \(1, 1, 25\) of \(3, 4, 2\), which has another size$"):
        b.fold("y")


@pytest.mark.parametrize("kind", ["reshape", "pad"])
def test_a_node_that_changes_the_quantisation(kind: str) -> None:
    b = Builder()
    b.input("x", 3, 3, 2)
    if kind == "reshape":
        b.reshape("x", "f", 3, 3, 2)
    else:
        b.pad("x", "f", Padding.all(1))
    b.tensors["f"] = replace(b.tensors["f"], zero_point=4)
    b.convolution("f", "y")
    with pytest.raises(Unfoldable, match=r"^op f changes the quantisation from \(0\.0625, -3\) to \(0\.0625, 4\)$"):
        b.fold("y")


@pytest.mark.parametrize("padding", [Padding(), Padding.all(1)])
def test_a_padding_whose_shape_is_wrong(padding: Padding) -> None:
    b = Builder()
    b.input("x", 4, 3, 2)
    b.pad("x", "p", padding)
    b.like("x", "p", (3, 4, 2))
    b.convolution("p", "y")
    with pytest.raises(ModelError, match=r"^op p makes \(3, 4, 2\) of \(4, 3, 2\) with Padding"):
        b.fold("y")


# ---- Names, ends, refusals -------------------------------------------------------------------------------------------


def test_names_that_come_twice() -> None:
    """Keys tell tensors apart where their names do not; "a_2" is somebody's own name."""
    b = Builder()
    b.input("x", 4, 4, 2)
    for source, name in (("x", "k1"), ("k1", "k2"), ("k2", "k3"), ("k3", "k4")):
        b.table(source, name)
        b.addition(name, source, f"{name} sum")
    names = {"x": "x", "k1": "a", "k2": "a", "k3": "a_2", "k4": "a"}
    for key, name in names.items():
        b.tensors[key] = replace(b.tensors[key], name=name)
    b.nodes = [replace(node, name="" if node.output == "k4" else "op") for node in b.nodes]
    sums = [f"k{i} sum" for i in range(1, 5)]
    folded = b.fold("k4", *sums)
    assert folded.outputs == {"k4": "a_4", **{name: name for name in sums}}
    assert [op.output for op in folded.graph.operators if isinstance(op, Activation)] == ["a", "a_3", "a_2", "a_4"]
    assert [op.name for op in folded.graph.operators] == [
        "op",
        "op_2",
        "op_3",
        "op_4",
        "op_5",
        "op_6",
        "a_4",
        "op_7",
    ]
    x = b.rng.integers(-128, 128, (4, 4, 2)).astype(np.int8)
    expected = step_by_step(b.tensors, [replace(node, name="op") for node in b.nodes], {"x": x})
    values = golden.run(folded.graph, {"x": x})
    for requested, name in folded.outputs.items():
        np.testing.assert_array_equal(values[name], expected[requested])


def test_dead_nodes_are_dropped() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.input("u", 4, 4, 2)
    b.convolution("x", "y")
    b.product("x", "u", "cannot fold")
    b.pad("u", "cannot fold either", Padding.all(1), value=77)
    b.convolution("y", "dead", kernel=1)
    folded = b.compare("y")
    assert operators(folded) == ["Convolution y"]
    assert folded.graph.inputs == ("x",)


@pytest.mark.parametrize("view", ["itself", "copy", "shape", "padding"])
def test_an_output_that_is_an_input(view: str) -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.convolution("x", "y")
    b.reshape("x", "copy", 4, 4, 2)
    b.reshape("x", "shape", 1, 1, 32)
    b.pad("x", "padding", Padding())
    output = "x" if view == "itself" else view
    with pytest.raises(Unfoldable, match=f"^output '{output}' is input 'x': there is nothing to compute$"):
        b.fold("y", output)


def test_a_graph_that_is_none_is_refused_in_one_line() -> None:
    b = Builder()
    b.input("x", 4, 4, 2)
    b.convolution("x", "y")
    b.like("x", "y", (9, 9, 3))
    with pytest.raises(ModelError, match=r"^Convolution op y: output y has shape \(9, 9, 3\), but .*\(2, 2, 3\)$"):
        b.fold("y")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Reshape("r", ("z",), "y")], "^r reads tensor 'z' before it is made$"),
        ([Reshape("r", ("y",), "y")], "^r reads tensor 'y' before it is made$"),
        ([Reshape("r", ("x",), "x")], "^r makes tensor 'x', which is there already$"),
        ([Reshape("r", ("x",), "z")], "^tensor 'z' has no shape and no quantisation$"),
        ([Reshape("r", ("x", "x"), "y")], "^r has 2 inputs$"),
        ([Addition("a", (), "y")], "^a has 0 inputs$"),
        ([], "^output 'y' is made by no operator$"),
    ],
)
def test_nodes_that_do_not_fit_together(nodes: list[Node], message: str) -> None:
    tensors = {name: Tensor(name, (2, 2, 2), 1.0, 0) for name in "xy"}
    with pytest.raises(ModelError, match=message):
        fold("test", ["x"], ["z" if "'z' has" in message else "y"], tensors, nodes)


# ---- Random networks -------------------------------------------------------------------------------------------------


def random_network(rng: np.random.Generator) -> tuple[Builder, list[str]]:
    """A network of nodes that fold in every combination, and its outputs."""
    b = Builder(int(rng.integers(1 << 32)))

    def size() -> int:
        return int(rng.integers(2, 6))

    def padding(most: int = 2) -> Padding:
        return Padding(*(int(n) for n in rng.integers(0, most, 4)))

    x = b.input("x", size(), size(), size(), zero_point=int(rng.integers(-128, 128)))
    tensors = [x, b.reshape(x, "x flat", 1, 1, b.tensors[x].size)]
    made: list[str] = []
    for i in range(rng.integers(1, 12)):
        source = str(rng.choice(tensors[-4:]))
        shape, zero_point = b.tensors[source].shape, b.tensors[source].zero_point
        name = f"t{i}"
        match rng.choice(
            ["pad", "conv", "depthwise", "pool", "table", "product", "same", "connected", "add", "concat"]
        ):
            case "pad":
                # Chains, and readers of every kind; a max-pool follows at once where only that takes in the value.
                b.pad(source, name, replace(padding(3), left=1), zero_point)
            case "conv":
                kernel = int(rng.integers(1, 1 + min(3, *shape[:2])))
                b.convolution(source, name, size(), kernel, padding=padding(), stride=(1, int(rng.integers(1, 3))))
            case "depthwise":
                b.convolution(source, name, shape[2] * 2, 1, groups=shape[2], padding=padding())
            case "pool":
                b.pad(source, f"{name} padded", Padding(1, 0, 1, 1), -128)
                b.pool(f"{name} padded", name, kernel=2 if min(shape) < 3 else 3)
            case "product":
                b.sigmoid(source, f"{name} sigmoid")
                b.product(source, f"{name} sigmoid", name)
            case "same" if source in made:
                b.reshape(source, name, *shape)
            case "connected":
                b.reshape(source, f"{name} flat", 1, 1, b.tensors[source].size)
                b.convolution(f"{name} flat", name, size(), 1)
            case "add":
                b.addition(source, source, name)
            case "concat":
                b.like(source, name, (*shape[:2], 2 * shape[2]))
                b.nodes.append(Concatenation(f"op {name}", (source, source), name))
            case _:
                b.table(source, name)
        tensors.append(name)
        made.append(name)
    outputs = [str(name) for name in dict.fromkeys([made[-1], *rng.choice(made, 2)])]
    outputs.append(b.reshape(outputs[0], "last", 1, 1, b.tensors[outputs[0]].size))
    return b, outputs


def test_random_networks(seed: int) -> None:
    for k in range(RANDOM_NETWORKS):
        b, outputs = random_network(np.random.default_rng([seed, k]))
        folded = b.compare(*outputs, note=f"RONDO_SEED={seed}, network {k}")
        assert not any(isinstance(op, Pad | Pointwise | Reshape) for op in folded.graph.operators)
