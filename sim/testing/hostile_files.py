"""Whole TFLite files of kinds that a reader for int8 networks meets but does not run, or runs in part."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sim.testing.tflite_files import FileBuilder

_CONV = {"padding": "SAME", "stride_h": 1, "stride_w": 1}


def built_files() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each file."""
    yield from _arithmetic()
    yield from _control_flow()
    yield from _shapes()
    yield from _constants()
    yield "no operators, output is input", _identity()
    yield "two thousand operators in a row", _long()


def not_files(base: bytes) -> Iterator[tuple[str, bytes]]:
    """What is no TFLite file, or only almost one; `base` is a sound file, which comes first."""
    yield "the base", base
    yield "empty", b""
    yield "zeros", bytes(4096)
    yield "ones", b"\xff" * 4096
    yield "text", b"[bold]not a model[/]\n" * 50
    yield "an identifier alone", b"\x08\0\0\0TFL3"
    yield "an archive", b"PK\x03\x04" + bytes(100)
    yield "another identifier", base[:4] + b"TFL2" + base[8:]
    yield "something in front", b"\0\0\0\0" + base
    yield "something behind", base + bytes(1000)
    yield "the root behind the end", (2**31 - 4).to_bytes(4, "little") + base[4:]
    yield "the root at itself", bytes(4) + base[4:]


def _arithmetic() -> Iterator[tuple[str, bytes]]:
    """A convolution in other arithmetic than int8."""
    for name, x, w, scale in (
        ("float32", "float32", "float32", None),
        ("hybrid", "float32", "int8", None),
        ("float16 weights", "float32", "float16", None),
        ("int16 activations", "int16", "int8", 0.001),
        ("uint8 activations", "uint8", "uint8", 0.05),
        ("uint8 activations with int8 weights", "uint8", "int8", 0.05),
        ("int8 without scales", "int8", "int8", None),
    ):
        b = FileBuilder(name)
        source = b.input("x", (1, 4, 4, 3), x, scale)
        quantised = w in ("int8", "uint8")
        weights = b.constant("w", np.ones((2, 3, 3, 3), w), [0.02, 0.03] if quantised else None)
        if w == "float16":
            wide = b.tensor("w32", (2, 3, 3, 3), "float32")
            b.operator("DEQUANTIZE", [weights], [wide])
            weights = wide
        kind = {"float32": np.float32, "int16": np.int64}.get(x, np.int32)
        bias = b.constant("b", np.zeros(2, kind), None if scale is None else [scale * 0.02, scale * 0.03])
        y = b.tensor("y", (1, 4, 4, 2), x, scale)
        b.operator("CONV_2D", [source, weights, bias], [y], _CONV)
        b.output(y)
        yield name, b.serialise()
    b = FileBuilder("custom operator")
    x, y = b.input("x", (1, 4, 4, 3), "int8", 0.1), b.tensor("y", (1, 4, 4, 3), "int8", 0.1)
    b.custom("TFLite_[red]\x1b[2J\nDetection", [x], [y], b"\1\2\3")
    b.output(y)
    yield "custom operator", b.serialise()


def _control_flow() -> Iterator[tuple[str, bytes]]:
    def relu(b: FileBuilder) -> None:
        x, y = b.input("x", (1, 2, 2, 4), "int8", 0.1), b.tensor("y", (1, 2, 2, 4), "int8", 0.1)
        b.operator("RELU", [x], [y])
        b.output(y)

    b = FileBuilder("if")
    choice, x = b.input("choice", (), "bool"), b.input("x", (1, 2, 2, 4), "int8", 0.1)
    y = b.tensor("y", (1, 2, 2, 4), "int8", 0.1)
    b.operator("IF", [choice, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    b.output(y)
    for name in ("then", "else"):
        b.subgraph(name)
        relu(b)
    yield "if", b.serialise()
    for condition in (1, 0, 7):
        b = FileBuilder("while")
        x, y = b.input("x", (1, 2, 2, 4), "int8", 0.1), b.tensor("y", (1, 2, 2, 4), "int8", 0.1)
        b.operator("WHILE", [x], [y], {"cond_subgraph_index": condition, "body_subgraph_index": 2})
        b.output(y)
        b.subgraph("condition")
        b.input("x", (1, 2, 2, 4), "int8", 0.1)
        b.output(b.constant("always", np.ones(1, bool)))
        b.subgraph("body")
        relu(b)
        yield f"endless while with condition {condition}", b.serialise()
    b = FileBuilder("call once")
    x, y = b.input("x", (1, 2, 2, 4), "int8", 0.1), b.tensor("y", (1, 2, 2, 4), "int8", 0.1)
    b.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    b.operator("RELU", [x], [y])
    b.output(y)
    b.subgraph("nothing")
    yield "call once", b.serialise()
    b = FileBuilder("unused subgraph")
    relu(b)
    b.subgraph("unused")
    relu(b)
    yield "unused subgraph", b.serialise()
    b = FileBuilder("variable")
    x, y = b.input("x", (1, 2, 2, 4), "int8", 0.1), b.tensor("y", (1, 2, 2, 4), "int8", 0.1)
    state = b.tensor("state", (1, 2, 2, 4), "int8", 0.1, variable=True)
    b.operator("ADD", [x, state], [y])
    b.output(y)
    yield "variable tensor", b.serialise()


def _shapes() -> Iterator[tuple[str, bytes]]:
    """RELU and ADD in shapes of all kinds."""
    shapes: tuple[Sequence[int], ...] = (
        (),
        (1,),
        (7,),
        (1, 7),
        (3, 7),
        (1, 3, 7),
        (2, 3, 7),
        (1, 2, 3, 7),
        (2, 2, 3, 7),
        (1, 1, 2, 3, 7),
        (1, 2, 2, 3, 7),
        (1, 1, 1, 2, 3, 7),
        (1, 0, 3, 7),
        (0, 2, 3, 7),
        (1, 2, 3, 0),
        (1, 1, 1, 70000),
        (1, 70000, 1, 1),
        (1, 3000, 3000, 4),
    )
    for shape in shapes:
        for kind in ("RELU", "ADD"):
            b = FileBuilder("shape")
            x, y = b.input("x", shape, "int8", 0.1), b.tensor("y", shape, "int8", 0.1)
            b.operator(kind, [x] if kind == "RELU" else [x, x], [y])
            b.output(y)
            yield f"{kind} of shape {tuple(shape)}", b.serialise()
    for left, right in (
        ((1, 4, 4, 3), (1, 1, 1, 3)),
        ((1, 4, 4, 1), (1, 4, 4, 3)),
        ((1, 4, 4, 3), (3,)),
        ((4, 3), (3,)),
    ):
        b = FileBuilder("broadcast")
        x, z = b.input("x", left, "int8", 0.1), b.input("z", right, "int8", 0.2, 5)
        y = b.tensor("y", np.broadcast_shapes(left, right), "int8", 0.3)
        b.operator("ADD", [x, z], [y])
        b.output(y)
        yield f"ADD of {left} and {right}", b.serialise()
    for batch in (2, 5):
        b = FileBuilder("batch")
        x = b.input("x", (batch, 4, 4, 3), "int8", 0.1)
        w = b.constant("w", np.ones((2, 3, 3, 3), np.int8), [0.02, 0.03])
        y = b.tensor("y", (batch, 4, 4, 2), "int8", 0.5)
        b.operator("CONV_2D", [x, w, -1], [y], _CONV)
        b.output(y)
        yield f"batch {batch}", b.serialise()


def _constants() -> Iterator[tuple[str, bytes]]:
    """Operators whose constants are wrong, or no constants at all."""

    def file(kind: str, out: Sequence[int], constants: Sequence[Any], options: dict[str, Any] | None = None) -> bytes:
        b = FileBuilder(kind)
        x = b.input("x", (1, 4, 4, 3), "int8", 0.1, 3)
        numbers = [b.constant(f"c{i}", constant) for i, constant in enumerate(constants)]
        y = b.tensor("y", out, "int8", 0.1, 3)
        b.operator(kind, [x, *numbers], [y], options)
        b.output(y)
        return b.serialise()

    for edges in ([[0, 0], [1, -1], [0, 0], [0, 0]], [[0, 0], [-9, 0], [0, 0], [0, 0]], [[2**31 - 1, 1]] * 4, [[1, 1]]):
        yield f"PAD by {edges}", file("PAD", (1, 4, 4, 3), [edges])
    for size in ([0, 0], [-8, 8], [8], [2**31 - 1, 2**31 - 1], [8, 8, 8], [8, 8], [4, 4], [5, 7]):
        yield f"resize to {size}", file("RESIZE_NEAREST_NEIGHBOR", (1, 8, 8, 3), [size])
    for order in ([0, 0, 1, 2], [3, 2, 1, 9], [0, -1, 1, 2], [0, 1], [0, 2, 1, 3]):
        yield f"TRANSPOSE by {order}", file("TRANSPOSE", (1, 4, 4, 3), [order])
    for step in (0, -1, 2, 2**31 - 1, -(2**31)):
        slices = [[0] * 4, [1, 4, 4, 3], [1, 1, step, 1]]
        yield f"STRIDED_SLICE with step {step}", file("STRIDED_SLICE", (1, 4, 4, 3), slices)
    for size in (-1, 0, 2, 9, -7):
        yield f"SLICE of size {size}", file("SLICE", (1, 4, 4, 2), [[0, 0, 0, 1], [1, 4, 4, size]])
    for axes in ([1, 2], [2, 1], [1, 1, 2], [-2, -3], [9], [0, 1, 2, 3], []):
        yield f"MEAN over {axes}", file("MEAN", (1, 3), [np.array(axes, np.int32)])
    for index in (0, 3, 4, -1, 2**31 - 1):
        yield f"GATHER of {index}", file("GATHER", (1, 1, 4, 3), [[index]], {"axis": 1})
    for axis in (-1, 3, 0, 9, -9):
        b = FileBuilder("concatenation")
        x, z = b.input("x", (1, 4, 4, 3), "int8", 0.1, 3), b.input("z", (1, 4, 4, 3), "int8", 0.2, 3)
        shape = [1, 4, 4, 3]
        shape[axis % 4] *= 2
        y = b.tensor("y", shape, "int8", 0.1, 3)
        b.operator("CONCATENATION", [x, z], [y], {"axis": axis})
        b.output(y)
        yield f"CONCATENATION of two scales on axis {axis}", b.serialise()
    b = FileBuilder("convolution of inputs")
    x, w = b.input("x", (1, 4, 4, 3), "int8", 0.1), b.input("w", (2, 3, 3, 3), "int8", 0.02)
    y = b.tensor("y", (1, 4, 4, 2), "int8", 0.5)
    b.operator("CONV_2D", [x, w, -1], [y], _CONV)
    b.output(y)
    yield "weights that are an input", b.serialise()
    b = FileBuilder("reshape by an input")
    x, shape = b.input("x", (1, 4, 4, 3), "int8", 0.1), b.input("shape", (2,), "int32")
    y = b.tensor("y", (1, 48), "int8", 0.1)
    b.operator("RESHAPE", [x, shape], [y])
    b.output(y)
    yield "reshape by an input", b.serialise()


def _identity() -> bytes:
    b = FileBuilder("identity")
    b.output(b.input("x", (1, 4, 4, 3), "int8", 0.1))
    return b.serialise()


def _long() -> bytes:
    b = FileBuilder("long")
    x = b.input("x", (1, 2, 2, 3), "int8", 0.1)
    for i in range(2000):
        y = b.tensor(f"t{i}", (1, 2, 2, 3), "int8", 0.1)
        b.operator("RELU", [x], [y])
        x = y
    b.output(x)
    return b.serialise()
