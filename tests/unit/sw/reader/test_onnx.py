"""Which nodes of an ONNX file the NPU runs and which the host, and what is said when neither may."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from sim import golden
from sim.testing.onnx_files import QdqBuilder, resnet, run_reference
from sw.reader.model import HostStage, ModelError, NpuStage, evaluate
from sw.reader.onnx import evaluate_onnx, read_onnx
from sw.reader.onnx_runtime import OnnxRuntime

SHAPE = (1, 3, 4, 5)


def read(tmp_path, data, **options):
    path = tmp_path / "network.onnx"
    path.write_bytes(data)
    return read_onnx(path, **options)


def refusal(tmp_path, data, **options):
    """The message without the path, checked to be one line."""
    with pytest.raises(ModelError) as caught:
        read(tmp_path, data, **options)
    text = str(caught.value)
    assert text.isprintable() and len(text) <= 400
    return text.removeprefix(f"{tmp_path / 'network.onnx'}: ")


def stages(model):
    """``npu`` for a program, and the kinds of nodes for a stage of the host."""
    return ["npu" if isinstance(s, NpuStage) else [name.split()[0] for name in s.operators] for s in model.stages]


def numbers(builder, shape):
    name = f"w{len(builder.nodes)}"
    return builder.weights(name, np.random.default_rng(len(builder.nodes)).integers(-127, 128, shape, np.int8), 0.01)


def conv(builder, x, cin=3, cout=4):
    return builder.node("Conv", [x, numbers(builder, (cout, cin, 1, 1))])


def start(opset=17, dtype="int8"):
    builder = QdqBuilder(opset)
    return builder, builder.input("x", SHAPE, 0.05, 3, dtype)


# ---- Stages and ports ------------------------------------------------------------------------------------------------


def test_real_numbers_at_both_ends(tmp_path):
    builder = QdqBuilder()
    x = builder.between(builder.float_input("x", ("n", *SHAPE[1:])), 0.05, 100, "uint8")
    y = builder.between(conv(builder, x), 0.1, 128, "uint8")
    y = builder.between(builder.node("GlobalAveragePool", [y]), 0.1, 128, "uint8")
    y = builder.node("Softmax", [builder.between(builder.node("Flatten", [y]), 0.1, 128, "uint8")])
    builder.float_output(y, ("n", 4))
    model = read(tmp_path, builder.serialise())
    # What moves nothing belongs to whoever reads it.
    flatten = ["DequantizeLinear", "Flatten", "QuantizeLinear"]
    assert stages(model) == [["QuantizeLinear"], "npu", [*flatten, "DequantizeLinear", "Softmax"]]
    assert [(p.name, p.shape, p.dtype, p.quantisation) for p in model.inputs] == [("x", SHAPE, "float32", None)]
    assert [(p.name, p.shape, p.dtype) for p in model.outputs] == [(y, (1, 4), "float32")]
    inputs = {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}
    found, expected = evaluate(model, inputs, golden.run)[y], run_reference(builder.serialise(), inputs)[y]
    assert np.abs(found - expected).max() < 0.05


@pytest.mark.parametrize(("dtype", "zero"), [("int8", -7), ("uint8", 121)])
def test_integers_at_both_ends(dtype, zero, tmp_path):
    builder = QdqBuilder()
    x = builder.input("x", SHAPE, 0.05, zero, dtype)
    builder.output("y", conv(builder, x), (1, 4, 4, 5), 0.1, zero, dtype)
    model = read(tmp_path, builder.serialise())
    assert stages(model) == ["npu"]
    (port,), (end,) = model.inputs, model.outputs
    assert (port.dtype, end.dtype) == (dtype, dtype) and port.channels_first and end.channels_first
    assert port.quantisation == (float(np.float32(0.05)), zero)
    (graph,) = model.graphs
    assert graph.tensors["x"].zero_point == graph.tensors["y"].zero_point == -7
    assert graph.tensors["x"].shape == (4, 5, 3)


def test_an_operator_in_the_middle_that_the_npu_lacks(tmp_path):
    builder, x = start()
    y = builder.between(conv(builder, x), 0.1, 0)
    y = builder.between(builder.node("LpNormalization", [y], axis=1), 0.1, 0)
    builder.output("y", conv(builder, y, 4), (1, 4, 4, 5), 0.1, 0)
    assert refusal(tmp_path, builder.serialise()) == (
        "LpNormalization (node 5, output 'lpnormalization_5'): the NPU has no such operator; its result is needed by "
        "Conv (node 9, output 'conv_9'): --host-fallback runs it on the host"
    )
    model = read(tmp_path, builder.serialise(), host_fallback=True)
    assert stages(model) == ["npu", ["DequantizeLinear", "LpNormalization", "QuantizeLinear"], "npu"]
    (host,) = (stage for stage in model.stages if isinstance(stage, HostStage))
    assert len(host.inputs) == len(host.outputs) == 1


def test_what_stands_behind_the_last_convolution_is_post_processing(tmp_path):
    builder, x = start()
    y = builder.between(conv(builder, x), 0.1, 0)
    y = builder.node("TopK", [builder.node("Flatten", [y]), builder.constant("k", np.int64([3]))], outputs=2)
    builder.float_output(y, (1, 3))
    builder.outputs.append(helper.make_tensor_value_info(f"{y}_1", TensorProto.INT64, (1, 3)))
    data = builder.serialise()
    model = read(tmp_path, data)
    assert stages(model) == ["npu", ["DequantizeLinear", "Flatten", "TopK"]]
    inputs = {"x": np.random.default_rng(2).integers(-128, 128, SHAPE, np.int8)}
    found, expected = evaluate(model, inputs, golden.run), run_reference(data, inputs)
    assert found[f"{y}_1"].dtype == np.int64 and np.abs(found[y] - expected[y]).max() <= 0.101


# ---- What is refused, by name ----------------------------------------------------------------------------------------


def test_a_file_that_is_not_quantised(tmp_path):
    text = refusal(tmp_path, resnet()[0].SerializeToString())
    assert text == "the network is not quantised: it has no QuantizeLinear with int8 or uint8 (QDQ form)"


def test_sixteen_bits(tmp_path):
    builder = QdqBuilder(21)
    builder.inputs.append(helper.make_tensor_value_info("x", TensorProto.INT16, SHAPE))
    x = builder.dequantised("x", 0.001, 0, "int16")
    y = builder.node("QuantizeLinear", [conv(builder, x), "x_scale_0", "x_zero_0"])
    builder.outputs.append(helper.make_tensor_value_info(y, TensorProto.INT16, (1, 4, 4, 5)))
    assert refusal(tmp_path, builder.serialise()) == (
        "the network is not quantised: it has no QuantizeLinear with int8 or uint8 (QDQ form): "
        "'x' is int16 with 1 scales"
    )


@pytest.mark.parametrize(
    ("code", "name"),
    [(TensorProto.INT4, "int4"), (TensorProto.INT16, "int16"), (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn")],
)
def test_weights_of_other_types(code, name, tmp_path):
    builder, x = start(21)
    builder.initializers.append(helper.make_tensor("w", code, (4, 3, 1, 1), [1] * 12))
    builder.initializers.append(helper.make_tensor("z", code, (), [0]))
    w = builder.node("DequantizeLinear", ["w", builder.constant("s", np.float32(0.1)), "z"])
    builder.output("y", builder.node("Conv", [x, w]), (1, 4, 4, 5), 0.1, 0)
    assert f"its weights 'dequantizelinear_1' are {name} [4, 3, 1, 1]" in refusal(tmp_path, builder.serialise())


def test_operators_on_integers(tmp_path):
    builder = QdqBuilder()
    builder.float_input("x", SHAPE)
    s, z = builder.constant("s", np.float32(0.1)), builder.constant("z", np.int8(0))
    x = builder.node("QuantizeLinear", ["x", s, z])
    w = builder.constant("w", np.ones((4, 3, 1, 1), np.int8))
    y = builder.node("QLinearConv", [x, s, z, w, s, z, s, z])
    builder.float_output(builder.node("DequantizeLinear", [y, s, z]), (1, 4, 4, 5))
    assert refusal(tmp_path, builder.serialise(), host_fallback=True) == (
        "QLinearConv (node 1, output 'qlinearconv_1'): the file is in QOperator form; only QDQ form is read"
    )


def test_quantised_dynamically(tmp_path):
    builder = QdqBuilder()
    builder.float_input("x", (1, 8))
    x = builder.node("DynamicQuantizeLinear", ["x"], outputs=3)
    builder.float_output(builder.node("DequantizeLinear", [x, f"{x}_1", f"{x}_2"]), (1, 8))
    assert refusal(tmp_path, builder.serialise()).endswith("the file is quantised dynamically; only QDQ form is read")


def test_real_numbers_between_two_operators(tmp_path):
    """What is not quantised in the middle is said of the first that is concerned."""
    builder, x = start()
    y = conv(builder, x)
    builder.output("y", builder.node("Mul", [y, builder.node("Sigmoid", [y])]), (1, 4, 4, 5), 0.1, 0)
    text = refusal(tmp_path, builder.serialise())
    assert "Conv (node 2, output 'conv_2'): its result is not quantised before Sigmoid (node 3" in text


@pytest.mark.parametrize("code", [TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2, TensorProto.STRING, TensorProto.INT4])
def test_outputs_are_plain_numbers(code, tmp_path):
    builder, x = start(21)
    y = builder.node("Cast", [builder.between(conv(builder, x), 0.1, 0)], to=code)
    builder.outputs.append(helper.make_tensor_value_info(y, code, (1, 4, 4, 5)))
    assert "inputs and outputs must be numbers of NumPy's own types" in refusal(tmp_path, builder.serialise())


def test_other_batches_than_one(tmp_path):
    builder = QdqBuilder()
    x = builder.input("x", (2, *SHAPE[1:]), 0.05, 3)
    builder.output("y", conv(builder, x), (2, 4, 4, 5), 0.1, 0)
    text = refusal(tmp_path, builder.serialise())
    assert "has shape [2, 4, 4, 5], which is neither [1, c, h, w] nor [1, c]" in text


# ---- The evaluator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda a: a.reshape(1, -1), lambda a: a.astype(np.float64)])
def test_a_result_of_another_shape_or_type_than_is_due(change, tmp_path, monkeypatch):
    """The evaluator may be wrong: better said than passed on."""
    builder, x = start()
    y = builder.node("LpNormalization", [builder.between(conv(builder, x), 0.1, 0)], axis=1)
    builder.float_output(y, (1, 4, 4, 5))
    model = read(tmp_path, builder.serialise())
    inputs = {"x": np.ones(SHAPE, np.int8)}
    evaluate(model, inputs, golden.run)
    run = OnnxRuntime.run
    monkeypatch.setattr(OnnxRuntime, "run", lambda *arguments: [change(array) for array in run(*arguments)])
    for compute in (
        lambda: evaluate(model, inputs, golden.run),
        lambda: evaluate_onnx(tmp_path / "network.onnx", inputs),
    ):
        with pytest.raises(ModelError, match=r"ONNX's evaluator makes .* where float32 \[1, 4, 4, 5\] is due$"):
            compute()


def test_the_host_names_the_nodes_that_fail(tmp_path):
    builder, x = start()
    y = builder.node("Flatten", [builder.between(conv(builder, x), 0.1, 0)])
    y = builder.node("Gather", [y, builder.constant("i", np.int64([500]))], axis=1)
    builder.float_output(y, (1, 1))
    model = read(tmp_path, builder.serialise())
    with pytest.raises(ModelError, match=r"^nodes DequantizeLinear 4 to Gather 6 on the host: ONNX refuses it: "):
        evaluate(model, {"x": np.zeros(SHAPE, np.int8)}, golden.run)
