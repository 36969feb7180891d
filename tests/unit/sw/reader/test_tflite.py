"""Which operators of a TFLite file the NPU runs and which the host, and what is said when neither may."""

import itertools

import numpy as np
import pytest

from sim import golden
from sim.testing.tflite_files import FileBuilder, run_reference
from sim.testing.tflite_layers import Layers, quantised, random_inputs
from sw.operators import Activation, Convolution
from sw.reader.model import HostStage, ModelError, NpuStage, evaluate
from sw.reader.tflite import read_tflite
from sw.reader.tflite_file import read_file


def read(tmp_path, data, **options):
    path = tmp_path / "network.tflite"
    path.write_bytes(data)
    return read_tflite(path, **options)


def refusal(tmp_path, data, **options):
    """The message without the path, checked to be one line."""
    with pytest.raises(ModelError) as caught:
        read(tmp_path, data, **options)
    text = str(caught.value)
    assert text.isprintable() and len(text) <= 400
    return text.removeprefix(f"{tmp_path / 'network.tflite'}: ")


def check_equal(model, data, seed=0):
    inputs = random_inputs(data, np.random.default_rng(seed))
    found, expected = evaluate(model, inputs, golden.run), run_reference(data, inputs)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values.dtype == expected[name].dtype and np.array_equal(values, expected[name]), name


def stages(model):
    """``npu`` for a program, and the kinds of operators for a stage of the host."""
    return ["npu" if isinstance(s, NpuStage) else [name.split()[0] for name in s.operators] for s in model.stages]


def convolution(dtype="int8", *, batch=1, weights="int8", bias="int32", weight_scale=0.01, output_scale=None):
    """A file of one CONV_2D of eight rows and columns."""
    scale = {"int8": 0.05, "int16": 0.001}.get(dtype)
    builder = FileBuilder()
    x = builder.input("x", (batch, 8, 8, 3), dtype, scale, 0)
    numbers = np.ones((4, 3, 3, 3), weights)
    w = builder.constant("w", numbers, *(([weight_scale], [0]) if weights == "int8" else ()))
    b = builder.constant("b", np.zeros(4, bias), *(([scale * weight_scale], [0]) if scale else ()))
    y = builder.tensor("y", (batch, 8, 8, 4), dtype, output_scale or scale, 0)
    builder.operator("CONV_2D", [x, w, b], [y], {"padding": "SAME", "stride_h": 1, "stride_w": 1})
    builder.output(y)
    return builder.serialise()


# ---- Stages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ends", "expected"), [("int8", []), ("uint8", ["QUANTIZE"]), ("float32", ["QUANTIZE"])])
def test_the_host_runs_the_ends_without_being_asked(ends, expected, tmp_path):
    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 8, 8, 3), dtype=ends), 6, 3, activation="RELU")
        net.output(net.softmax(net.dense(net.reshape(x, (1, 384)), 5)), ends)

    data = quantised(build, "ends", 1, samples=2)
    model = read(tmp_path, data)
    last = {"int8": [], "uint8": ["QUANTIZE"], "float32": ["DEQUANTIZE"]}[ends]
    assert stages(model) == [*([expected] if expected else []), "npu", ["SOFTMAX", *last]]
    assert [port.dtype for port in (*model.inputs, *model.outputs)] == [ends, ends]
    assert [port.shape for port in (*model.inputs, *model.outputs)] == [(1, 8, 8, 3), (1, 5)]
    assert (model.inputs[0].quantisation is None) == (ends == "float32")
    check_equal(model, data)


def test_an_operator_in_the_middle(tmp_path):
    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 6, 6, 3)), 4, 3)
        net.output(net.conv(net.resize("RESIZE_BILINEAR", x, 2), 3, 1, name="last"))

    data = quantised(build, "middle", 2, samples=2)
    text = refusal(tmp_path, data)
    assert text == (
        "RESIZE_BILINEAR (operator 1, output 'resize_bilinear_2'): the NPU has no such operator; its result is needed "
        "by CONV_2D (operator 2, output 'last'): --host-fallback runs it on the host"
    )
    model = read(tmp_path, data, host_fallback=True)
    assert stages(model) == ["npu", ["RESIZE_BILINEAR"], "npu"]
    check_equal(model, data)


def test_a_tail_behind_the_last_convolution_needs_no_permission(tmp_path):
    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 6, 6, 3)), 8, 3)
        first, second = net.split_last(net.unary("LOGISTIC", x), (4, 4))
        net.output(net.concat([net.binary("MUL", first, second), second]))

    data = quantised(build, "tail", 3, samples=2)
    model = read(tmp_path, data)
    assert stages(model)[0] == "npu" and len(model.stages) == 2
    assert {"SPLIT_V", "MUL", "CONCATENATION"} <= set(stages(model)[1])
    check_equal(model, data)


def test_functions_of_one_tensor_become_one_table(tmp_path):
    """SiLU, and hard-swish as exporters write it: x * relu6(x + 3) / 6."""

    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 6, 6, 3)), 8, 3)
        x = net.conv(net.binary("MUL", x, net.unary("LOGISTIC", x)), 8, 3)
        gate = net.binary("MUL", net.binary("ADD", x, 3.0, "RELU6"), 1 / 6)
        net.output(net.conv(net.binary("MUL", x, gate), 4, 1))

    data = quantised(build, "tables", 4, samples=2)
    model = read(tmp_path, data)
    assert stages(model) == ["npu"]
    operators = model.graphs[0].operators
    assert [type(op) for op in operators] == [Convolution, Activation, Convolution, Activation, Convolution]
    assert [op.kind for op in operators if isinstance(op, Activation)] == ["silu", "table"]
    check_equal(model, data)


def test_a_long_file_takes_time_in_proportion(tmp_path):
    """What the runtime is asked for a table does not grow with the file."""
    sizes = []
    for count in (2, 40):
        builder = FileBuilder()
        x = builder.input("x", (1, 2, 2, 3), "int8", 0.05, 0)
        for i in range(count):
            y = builder.tensor(f"y{i}", (1, 2, 2, 3), "int8", 0.05, 0)
            builder.operator("LEAKY_RELU", [x], [y], {"alpha": 0.5})
            x = y
        builder.output(x)
        path = tmp_path / "network.tflite"
        path.write_bytes(builder.serialise())
        file = read_file(path)
        op = file.operators[-1]
        sizes.append(len(file.submodel([op.number], op.inputs, op.outputs)))
    assert sizes[1] < sizes[0] + 16  # names differ in length


# ---- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_fallback", [False, True])
@pytest.mark.parametrize(
    ("dtype", "weights", "bias"),
    [("float32", "float32", "float32"), ("float32", "int8", "float32"), ("int16", "int8", "int64")],
)
def test_networks_that_are_not_int8(dtype, weights, bias, host_fallback, tmp_path):
    text = refusal(tmp_path, convolution(dtype, weights=weights, bias=bias), host_fallback=host_fallback)
    place = "CONV_2D (operator 0, output 'y')"
    assert text == f"the network is not quantised to int8: {place} reads tensor 'x', which is {dtype}"


def test_a_batch(tmp_path):
    text = refusal(tmp_path, convolution(batch=2))
    place = "CONV_2D (operator 0, output 'y')"
    assert text.endswith(f"{place}: tensor 'x' has shape [2, 8, 8, 3]; the batch must be 1")


def test_a_range_that_the_accumulators_lack(tmp_path):
    text = refusal(tmp_path, convolution(weight_scale=1e6, output_scale=1e-4))
    assert text.startswith(
        "the network has nothing for the NPU to compute: CONV_2D (operator 0, output 'y'): channel 0"
    )
    assert text.endswith("beyond the int32 accumulator")


def test_a_range_that_the_accumulators_lack_is_the_hosts(tmp_path):
    """Beside layers that the NPU can run, in the middle of the network."""
    builder = FileBuilder()
    x = builder.input("x", (1, 4, 4, 2), "int8", 0.05, 0)
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    rng = np.random.default_rng(6)
    scales = [0.05, 0.05, 1e-6, 1e-6]  # of tensors; the second layer multiplies by 5000: a left shift of 13
    for i, (before, after) in enumerate(itertools.pairwise(scales)):
        w = builder.constant(f"w{i}", rng.integers(-9, 9, (2, 3, 3, 2), np.int8), [0.1], [0])
        # Below 2^18, as are the sums that come up here, but not the largest that some image could give.
        b = builder.constant(f"b{i}", np.full(2, 256_000, np.int32), [before * 0.1], [0])
        y = builder.tensor(f"y{i}", (1, 4, 4, 2), "int8", after, 0)
        builder.operator("CONV_2D", [x, w, b], [y], options)
        x = y
    builder.output(x)
    data = builder.serialise()
    text = refusal(tmp_path, data)
    assert text.startswith("CONV_2D (operator 1, output 'y1'): channel 0 may reach")
    model = read(tmp_path, data, host_fallback=True)
    assert stages(model) == ["npu", ["CONV_2D"], "npu"]
    check_equal(model, data)


def test_a_failure_on_the_host_names_the_operators(tmp_path):
    def build(net: Layers) -> None:
        net.output(net.softmax(net.conv(net.input("image", (1, 4, 4, 3)), 4, 3)))

    model = read(tmp_path, quantised(build, "failure", 7, samples=2))
    stage = model.stages[-1]
    assert isinstance(stage, HostStage)
    (name,) = stage.inputs
    with pytest.raises(ModelError, match=r"^operators SOFTMAX 1 to SOFTMAX 1 on the host: the TFLite runtime refuses"):
        stage.run({name: np.zeros((1, 2, 2, 4), np.int8)})


def test_the_path_begins_the_message(tmp_path):
    path = tmp_path / "none.tflite"
    with pytest.raises(ModelError, match=f"^cannot read {path}: No such file"):
        read_tflite(path)
    path.write_bytes(convolution(batch=2))
    with pytest.raises(ModelError, match=f"^{path}: the network has nothing"):
        read_tflite(path)
