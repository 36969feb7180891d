"""Checks of a TFLite file before anything else relies on it, and files made of some of its operators."""

import numpy as np
import pytest

from sim.testing.tflite_files import FileBuilder, pack, run_reference, unpack
from sim.testing.tflite_layers import Layers, quantised
from sw.reader.model import ModelError
from sw.reader.tflite_file import TfliteFile, read_file
from sw.reader.tflite_runtime import tflite_runtime


def chain() -> FileBuilder:
    """x → RELU → a → LEAKY_RELU → y; a tensor ``spare`` and the buffer 1, which nobody uses."""
    builder = FileBuilder()
    x = builder.input("x", (1, 2, 3, 4), "int8", 0.05, 3)
    a = builder.tensor("a", (1, 2, 3, 4), "int8", 0.05, 3)
    y = builder.tensor("y", (1, 2, 3, 4), "int8", 0.04, -7)
    builder.operator("RELU", [x], [a])
    builder.operator("LEAKY_RELU", [a], [y], {"alpha": 0.25})
    builder.output(y)
    builder.tensor("spare", (1, 2, 3, 4), "int8", 0.05, 3)
    builder.buffer(bytes(24))
    return builder


def changed(change) -> bytes:
    """The chain after a change to its object tree; tensors 0, 1, 2, 3 are x, a, y, spare."""
    model = unpack(chain().serialise())
    change(model, model.subgraphs[0])
    return pack(model)


def test_tensors_and_operators() -> None:
    file = TfliteFile(chain().serialise(), "chain")
    assert [(t.number, t.name, t.shape, t.dtype) for t in file.tensors] == [
        (0, "x", (1, 2, 3, 4), "int8"),
        (1, "a", (1, 2, 3, 4), "int8"),
        (2, "y", (1, 2, 3, 4), "int8"),
        (3, "spare", (1, 2, 3, 4), "int8"),
    ]
    assert file.tensors[2].zero_points == (-7,)
    assert file.tensors[2].scales == (float(np.float32(0.04)),)
    assert (file.inputs, file.outputs) == ((0,), (2,))
    assert [(op.kind, op.inputs, op.outputs) for op in file.operators] == [
        ("RELU", (0,), (1,)),
        ("LEAKY_RELU", (1,), (2,)),
    ]
    assert file.operators[1].option("alpha") == 0.25
    assert file.operators[1].option("nothing", 7) == 7
    assert file.place(file.operators[1]) == "LEAKY_RELU (operator 1, output 'y')"


def test_a_constant_has_its_shape_and_type() -> None:
    builder = FileBuilder()
    x = builder.input("x", (1, 4), "int8", 0.1, 0)
    values = np.arange(12, dtype=np.int8).reshape(3, 4)
    w = builder.constant("w", values, scales=[0.1, 0.2, 0.3], zero_points=[0, 0, 0])
    y = builder.tensor("y", (1, 3), "int8", 0.1, 0)
    builder.operator("FULLY_CONNECTED", [x, w, -1], [y])
    builder.output(y)
    file = TfliteFile(builder.serialise(), "dense")
    data = file.tensors[w].data
    assert data is not None and data.dtype == np.int8 and np.array_equal(data, values)
    assert len(file.tensors[w].scales) == len(file.tensors[w].zero_points) == 3
    assert file.operators[0].inputs == (x, w, -1)
    assert file.tensors[x].data is None


def test_names_become_unique_and_are_never_empty() -> None:
    def rename(_model, graph):
        graph.tensors[0].name, graph.tensors[1].name, graph.tensors[2].name = b"same", b"same", b""

    names = [tensor.name for tensor in TfliteFile(changed(rename), "names").tensors]
    assert names == ["same", "same (1)", "tensor 2", "spare"]


def setting(place, **fields):
    """A change: sets fields of the network, or of the object that ``place`` gives."""

    def change(_model, graph):
        for name, value in fields.items():
            setattr(place(graph), name, value)

    return change


def network(graph):
    return graph


def tensor(number):
    return lambda graph: graph.tensors[number]


def operator(number):
    return lambda graph: graph.operators[number]


BROKEN = {
    "state": (setting(tensor(1), isVariable=True), "^tensor 'a' keeps its value from one run to the next"),
    "shape of an output": (
        setting(tensor(2), shape=[1, 2, 3, 5]),
        r"^tensor 'y' has shape \[1, 2, 3, 5\] in the file, but its operator makes \[1, 2, 3, 4\]$",
    ),
    "input twice": (setting(network, inputs=[0, 0]), "^an input of the network is named twice$"),
    "input with data": (setting(tensor(0), buffer=1), "^input 'x' has data of its own$"),
    "no output": (setting(network, outputs=[]), "^the network has no output$"),
    "no operators": (setting(network, operators=[]), "^the network has no operators$"),
    "intermediates": (
        setting(operator(1), intermediates=[0]),
        r"^LEAKY_RELU \(operator 1\) has intermediate tensors; that is not supported$",
    ),
    "reads what nobody makes": (
        setting(operator(0), inputs=[3]),
        r"^RELU \(operator 0, output 'a'\) reads tensor 'spare', which nobody makes$",
    ),
    "output that nobody makes": (setting(network, outputs=[3]), "^output 'spare' is made by no operator$"),
    "a tensor made twice": (
        setting(operator(1), inputs=[0], outputs=[1]),
        r"^LEAKY_RELU \(operator 1, output 'a'\) makes tensor 'a', which is there already$",
    ),
    "an input that is made": (
        setting(operator(1), outputs=[0]),
        r"^LEAKY_RELU \(operator 1, output 'x'\) makes tensor 'x', which is there already$",
    ),
    "a buffer that is not there": (setting(tensor(1), buffer=99), "buffer"),
    "a version to come": (lambda model, _graph: setattr(model, "version", 4), "version"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_refused_with_one_line(what: str) -> None:
    change, message = BROKEN[what]
    with pytest.raises(ModelError, match=message) as caught:
        TfliteFile(changed(change), "broken")
    assert str(caught.value).isprintable()


def test_the_file_without_a_change_is_sound() -> None:
    TfliteFile(changed(lambda _model, _graph: None), "sound")


def test_what_is_no_tflite_file() -> None:
    for content in (b"", b"TFL3", b"\0" * 4 + b"TFL", b"PK\3\4" + b"\0" * 100):
        with pytest.raises(ModelError, match=r"^it is no TFLite file: bytes 4 to 7 are not TFL3$"):
            TfliteFile(content, "none")
    with pytest.raises(ModelError, match=r"^the TFLite runtime (refuses|crashes)"):
        TfliteFile(b"\0\0\0\0TFL3" + bytes(range(200)), "none")


def test_reading_names_the_path(tmp_path) -> None:
    path = tmp_path / "a.tflite"
    with pytest.raises(ModelError, match=f"^cannot read {path}: No such file"):
        read_file(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=f"^{path}: it is no TFLite file"):
        read_file(path)
    path.write_bytes(chain().serialise())
    file = read_file(path)
    assert file.name == "a" and read_file(path) is file


# ---- Files of some of the operators ----------------------------------------------------------------------------------


def small() -> bytes:
    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 6, 6, 3)), 8, 3, 2, activation="RELU", name="conv")
        x = net.binary("ADD", x, net.depthwise(x, 3, name="depthwise"))
        net.output(net.softmax(net.dense(net.reshape(x, (1, 72)), 5, name="dense")))

    return quantised(build, "small", 3, samples=2)


def test_two_halves_of_a_network_are_the_whole() -> None:
    data = small()
    file = TfliteFile(data, "small")
    image = np.random.default_rng(5).integers(-128, 128, (1, 6, 6, 3)).astype(np.int8)
    (expected,) = run_reference(data, {"image": image}).values()
    for cut in range(1, len(file.operators)):
        first, second = range(cut), range(cut, len(file.operators))
        made = {n for i in first for n in file.operators[i].outputs} | set(file.inputs)
        crossing = sorted({n for i in second for n in file.operators[i].inputs} & made)
        values = tflite_runtime().run(file.submodel(first, file.inputs, crossing), [image])
        (result,) = tflite_runtime().run(file.submodel(second, crossing, file.outputs), values)
        assert np.array_equal(result, expected), f"cut before operator {cut}"


def test_a_part_holds_nothing_that_it_does_not_need() -> None:
    file = TfliteFile(small(), "small")
    (number,) = (op.number for op in file.operators if op.kind == "ADD")
    op = file.operators[number]
    model = unpack(file.submodel([number], op.inputs, op.outputs))
    (graph,) = model.subgraphs
    assert [tensor.name.decode() for tensor in graph.tensors] == [
        file.tensors[n].name for n in sorted({*op.inputs, *op.outputs})
    ]
    assert len(graph.operators) == 1 and len(model.buffers) == 1
    # The whole file is as it was.
    assert len(file.operators) > 1 and file.operators[number].inputs == op.inputs


def test_a_part_with_other_shapes() -> None:
    file = TfliteFile(chain().serialise(), "chain")
    shape = (1, 1, 1, 256)
    model = file.submodel([1], [1], [2], {1: shape, 2: shape})
    values = np.arange(-128, 128).astype(np.int8).reshape(shape)
    (table,) = tflite_runtime().run(model, [values])
    whole = np.arange(-128, 128).astype(np.int8)[: 2 * 3 * 4].reshape(1, 2, 3, 4)
    (expected,) = tflite_runtime().run(file.submodel([1], [1], [2]), [whole])
    assert np.array_equal(table.ravel()[:24], expected.ravel())
