"""Faults of TFLite files that `test_tflite_file` lacks: order, numbers out of range, control flow, custom operators."""

import re

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from sim.testing.tflite_files import FileBuilder, pack, unpack
from sw.reader.model import ModelError, read_model
from sw.reader.tflite_file import TfliteFile


def builder():
    """Two layers: x, a constant each, middle, y."""
    b = FileBuilder()
    x = b.input("x", (1, 4), "int8", 0.1, 0)
    middle = dense(b, x, "middle")
    b.output(dense(b, middle, "y"))
    return b


def dense(b, x, name):
    weights = np.arange(16, dtype=np.int8).reshape(4, 4)
    w = b.constant(f"{name}/w", weights, [0.1], [0])
    c = b.constant(f"{name}/b", np.zeros(4, np.int32), [0.01], [0])
    y = b.tensor(name, (1, 4), "int8", 0.1, 0)
    b.operator("FULLY_CONNECTED", [x, w, c], [y])
    return y


X, MIDDLE_W, MIDDLE_B, MIDDLE, Y_W, Y_B, Y = range(7)


def edited(edit):
    model = unpack(builder().serialise())
    edit(model, model.subgraphs[0])
    return pack(model)


def refusal(content):
    with pytest.raises(ModelError) as caught:
        TfliteFile(content, "net")
    text = str(caught.value)
    assert text.isprintable() and len(text) <= 400
    return text


def set_(place, name, value):
    """An edit of a field of the model, of a tensor or of an operator."""

    def edit(model, graph):
        kind, *number = place
        owner = {"model": model, "graph": graph, "buffer": None, "tensor": None, "operator": None}[kind]
        if kind == "buffer":
            owner = model.buffers[graph.tensors[number[0]].buffer]
        elif kind == "tensor":
            owner = graph.tensors[number[0]]
        elif kind == "operator":
            owner = graph.operators[number[0]]
        setattr(owner, name, value)

    return edit


def reversed_order(model, graph):
    graph.operators.reverse()


def cyclic(model, graph):
    graph.operators[0].inputs = np.array([Y, MIDDLE_W, MIDDLE_B], np.int32)


def bytes_missing(model, graph):
    buffer = model.buffers[graph.tensors[MIDDLE_W].buffer]
    buffer.data = buffer.data[:-1]


def sparse(model, graph):
    graph.tensors[MIDDLE_W].sparsity = schema.SparsityParametersT()


def more_points_than_scales(model, graph):
    graph.tensors[MIDDLE].quantization.zeroPoint = np.array([0, 1, 2], np.int64)


FAULTS = {
    "data size": (bytes_missing, "refuses|bytes of data"),
    "order": (reversed_order, "reads tensor 'middle' before it is made"),
    "cycle": (cyclic, "reads tensor 'y' before it is made"),
    "sparse": (sparse, "'middle/w' is sparse|refuses"),
    "zero points": (more_points_than_scales, "'middle' has 1 scales and 3 zero points|refuses"),
    "no subgraph": (set_(("model",), "subgraphs", []), "no subgraph|refuses"),
    "constant as output": (set_(("graph",), "outputs", [Y_W]), "output 'y/w' is made by no operator"),
    "no such output": (set_(("graph",), "outputs", [99]), "crashes|refuses|no tensor 99"),
    "no such tensor": (set_(("operator", 0), "inputs", [99, MIDDLE_W, MIDDLE_B]), "crashes|refuses|tensor 99"),
    "no such code": (set_(("operator", 0), "opcodeIndex", 7), "crashes|refuses|code 7"),
    "makes nothing": (set_(("operator", 1), "outputs", []), "makes nothing|refuses|crashes"),
    "free size": (set_(("tensor", X), "shape", [-1, 4]), "."),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(name):
    edit, expected = FAULTS[name]
    text = refusal(edited(edit))
    print(name, "->", text)
    assert re.search(expected, text), text


def test_a_name_that_is_no_text():
    content = builder().serialise()
    assert content.count(b"middle/w") == 1
    text = refusal(content.replace(b"middle/w", b"middle\xff\xfe"))
    assert text == f"the name of tensor {MIDDLE_W} is not UTF-8" or "utf-8" in text


def test_control_flow():
    b = FileBuilder()
    condition = b.input("condition", (1,), "bool")
    x = b.input("x", (1, 4), "int8", 0.1, 0)
    y = b.tensor("y", (1, 4), "int8", 0.1, 0)
    b.operator("IF", [condition, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 1})
    b.output(y)
    b.subgraph("branch")
    inner = b.input("x", (1, 4), "int8", 0.1, 0)
    made = b.tensor("y", (1, 4), "int8", 0.1, 0)
    b.operator("ABS", [inner], [made])
    b.output(made)
    assert refusal(b.serialise()) == "IF (operator 0): control flow is not supported"


def test_a_custom_operator():
    b = FileBuilder()
    x = b.input("x", (1, 4), "int8", 0.1, 0)
    y = b.tensor("y", (1, 4), "int8", 0.1, 0)
    b.custom("NobodyKnowsIt", [x], [y], b"\1\2")
    b.output(y)
    assert re.search("^the TFLite runtime refuses it: .*NobodyKnowsIt", refusal(b.serialise()))


def test_a_shape_that_an_input_decides(tmp_path):
    b = FileBuilder()
    x, shape = b.input("x", (1, 4), "int8", 0.1, 0), b.input("shape", (2,), "int32")
    y = b.tensor("y", (2, 2), "int8", 0.1, 0, signature=(-1, -1))
    b.operator("RESHAPE", [x, shape], [y])
    b.output(y)
    path = tmp_path / "net.tflite"
    path.write_bytes(b.serialise())
    for host_fallback in (False, True):
        with pytest.raises(ModelError):
            read_model(path, host_fallback=host_fallback)
