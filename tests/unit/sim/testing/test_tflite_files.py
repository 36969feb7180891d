import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from sim.testing.tflite_files import FileBuilder, dtype_of, pack, run_reference, unpack


def convolution(**options: object) -> FileBuilder:
    b = FileBuilder("one convolution")
    x = b.input("x", (1, 5, 4, 2), "int8", 0.5, -3)
    w = b.constant("w", np.arange(-8, 10, dtype=np.int8).reshape(1, 3, 3, 2), [0.25], [0])
    bias = b.constant("bias", [100], [0.125])
    y = b.tensor("y", (1, 3, 2, 1), "int8", 1.0, 7)
    b.operator("CONV_2D", [x, w, bias], [y], {"padding": "SAME", "stride_h": 2, "strideW": 2, **options})
    b.output(y)
    return b


def test_a_convolution_computes_what_arithmetic_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (1, 5, 4, 2)).astype(np.int8)
    padded = np.pad(x[0].astype(np.int64) + 3, ((1, 1), (0, 1), (0, 0)))
    w = np.arange(-8, 10).reshape(3, 3, 2)
    sums = np.array([[(padded[r : r + 3, c : c + 3] * w).sum() for c in (0, 2)] for r in (0, 2, 4)]) + 100
    expected = np.clip(np.rint(sums * 0.125) + 7, -128, 127).astype(np.int8)
    result = run_reference(convolution().serialise(), {"x": x})["y"]
    assert np.abs(result[0, :, :, 0].astype(int) - expected).max() <= 1  # halves may go either way
    assert np.unique(result).size > 2


def test_a_file_comes_back_as_it_was_built() -> None:
    model = unpack(convolution().serialise())
    graph = model.subgraphs[0]
    assert [t.name for t in graph.tensors] == [b"x", b"w", b"bias", b"y"]
    assert [dtype_of(t.type) for t in graph.tensors] == ["int8", "int8", "int32", "int8"]
    x = graph.tensors[0]
    assert (list(x.shape), list(x.quantization.scale), list(x.quantization.zeroPoint)) == ([1, 5, 4, 2], [0.5], [-3])
    options = graph.operators[0].builtinOptions
    assert (options.padding, options.strideH, options.strideW, options.dilationHFactor) == (0, 2, 2, 1)
    assert unpack(pack(model)).description == b"one convolution"


@pytest.mark.parametrize(
    ("kind", "inputs", "options", "version"),
    [
        ("CONV_2D", ["x", "w", "b"], {}, 3),
        ("CONV_2D", ["x", "grouped", "b"], {}, 6),
        ("DEPTHWISE_CONV_2D", ["x", "w", "b"], {}, 3),
        ("FULLY_CONNECTED", ["x", "w", "b"], {}, 4),
        ("FULLY_CONNECTED", ["x", "w", "b"], {"keep_num_dims": True}, 5),
        ("FULLY_CONNECTED", ["x", "w", None], {}, 6),
        ("FULLY_CONNECTED", ["x", "per channel", "b"], {}, 12),
        ("ADD", ["x", "x"], {}, 2),
        ("ADD", ["float", "float"], {}, 1),
        ("RESHAPE", ["x"], {}, 1),
        ("QUANTIZE", ["float"], {}, 1),
        ("QUANTIZE", ["x"], {}, 2),
        ("TRANSPOSE_CONV", ["b", "w", "x"], {}, 2),
        ("TRANSPOSE_CONV", ["b", "w", "x", "b"], {}, 3),
        ("RESIZE_NEAREST_NEIGHBOR", ["x", "b"], {"half_pixel_centers": True}, 3),
    ],
)
def test_versions(kind: str, inputs: list[str | None], options: dict[str, object], version: int) -> None:
    b = FileBuilder()
    numbers = {
        "x": b.input("x", (1, 4, 4, 4), "int8", 0.1),
        "float": b.input("float", (1, 4, 4, 4), "float32"),
        "w": b.constant("w", np.zeros((2, 1, 1, 4), np.int8), 0.1),
        "grouped": b.constant("grouped", np.zeros((2, 1, 1, 2), np.int8), 0.1),
        "per channel": b.constant("per channel", np.zeros((2, 4), np.int8), [0.1, 0.2]),
        "b": b.constant("b", [0, 0]),
    }
    y = b.tensor("y", (1, 4, 4, 2), "float32" if version == 1 else "int8")
    b.operator(kind, [-1 if name is None else numbers[name] for name in inputs], [y], options)
    assert b.model.operatorCodes[0].version == version


def test_the_highest_version_counts_for_the_whole_file() -> None:
    b = FileBuilder()
    x, y = b.input("x", (1, 2), "int8", 0.1), b.tensor("y", (1, 2), "int8", 0.1)
    b.operator("RELU", [x], [y], version=1)
    b.operator("RELU", [y], [x], version=2)
    b.operator("RELU", [x], [y], version=1)
    assert [code.version for code in b.model.operatorCodes] == [2]


def test_per_channel_quantisation_and_signatures() -> None:
    b = FileBuilder()
    b.constant("w", np.zeros((1, 2, 2, 3), np.int8), [1, 2, 3], [0, 0, 0], 3)
    b.tensor("x", (1, 4), "uint8", signature=(-1, 4))
    w, x = unpack(b.serialise()).subgraphs[0].tensors
    assert (list(w.quantization.scale), list(w.quantization.zeroPoint)) == ([1, 2, 3], [0, 0, 0])
    assert w.quantization.quantizedDimension == 3
    assert list(x.shapeSignature) == [-1, 4]
    assert x.quantization.scale is None


def test_subgraphs_and_custom_operators() -> None:
    b = FileBuilder("first")
    x = b.input("x", (1,))
    b.custom("Mine", [x], [x], b"abc")
    assert b.subgraph("second") == 1
    b.operator("RELU", [b.input("y", (1,))], [0])
    model = unpack(b.serialise())
    assert [graph.name for graph in model.subgraphs] == [b"first", b"second"]
    assert [code.customCode for code in model.operatorCodes] == [b"Mine", None]
    assert model.operatorCodes[0].builtinCode == schema.BuiltinOperator.CUSTOM
    assert bytes(model.subgraphs[0].operators[0].customOptions) == b"abc"
    assert [t.name for t in model.subgraphs[1].tensors] == [b"y"]


def test_names_that_do_not_exist_are_refused() -> None:
    b = FileBuilder()
    with pytest.raises(ValueError, match="TFLite has no operator CONV_9D"):
        b.operator("CONV_9D", [], [])
    with pytest.raises(ValueError, match="Conv2DOptions has no field stide"):
        b.operator("CONV_2D", [], [], {"stide": 1})
    with pytest.raises(ValueError, match="LOGISTIC has no options"):
        b.operator("LOGISTIC", [], [], {"beta": 1})


def test_all_tensors_and_wrong_inputs() -> None:
    data = convolution().serialise()
    x = np.zeros((1, 5, 4, 2), np.int8)
    assert set(run_reference(data, {"x": x}, all_tensors=True)) == {"x", "w", "bias", "y"}
    with pytest.raises(ValueError, match=r"the file's inputs are \['x'\], not \['z'\]"):
        run_reference(data, {"z": x})
