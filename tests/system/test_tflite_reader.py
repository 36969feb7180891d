"""TFLite files: what Rondo makes of them is what the runtime's reference kernels make of them, byte for byte.

Golden model and compiled RTL of networks of the usual kinds, and of every operator in odd shapes.
"""

import os
from functools import partial

import numpy as np
import pytest

from hw.spec.config import load_config
from sim.functional import Functional
from sim.pipeline import compile_model, run_golden, run_model
from sim.testing.random_files import random_file
from sim.testing.tflite_files import FileBuilder, run_reference
from sim.testing.tflite_layers import random_inputs
from sim.testing.tflite_zoo import FALLBACK, NETWORKS, mobilenet_v1
from sim.verify import check_tensors
from sw.layout import TensorLayout
from sw.policy import policy
from sw.reader.model import ModelError, read_model

SEED = int(os.environ.get("RONDO_SEED", "1"))


def written(tmp_path, data):
    path = tmp_path / "network.tflite"
    path.write_bytes(data)
    return path


def read(tmp_path, data, **options):
    return read_model(written(tmp_path, data), **options)


def equal(found, expected):
    assert set(found) <= set(expected)
    for name, values in found.items():
        assert values.dtype == expected[name].dtype
        assert np.array_equal(values, expected[name]), f"{name}, seed {SEED}"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_usual_kinds(name, tmp_path):
    data = NETWORKS[name](SEED)
    model = read(tmp_path, data, host_fallback=name in FALLBACK)
    inputs = random_inputs(data, np.random.default_rng(SEED))
    equal(run_golden(model, inputs)[0], run_reference(data, inputs))
    kinds = [len(model.graphs), len(model.stages) - len(model.graphs)]
    assert (kinds[0] > 1) == (name in FALLBACK)


@pytest.mark.parametrize("name", sorted(FALLBACK))
def test_an_operator_in_the_middle_is_refused_by_name_and_place(name, tmp_path):
    with pytest.raises(ModelError, match=r"\((operator \d+), output '.*'\): .*--host-fallback runs it on the host$"):
        read(tmp_path, NETWORKS[name](SEED))


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_random_networks(first, tmp_path):
    accepted = 0
    for seed in range(first, first + 40):
        data = random_file(1000 * SEED + seed)
        try:
            model = read(tmp_path, data, host_fallback=True)
        except ModelError:
            continue
        accepted += 1
        inputs = random_inputs(data, np.random.default_rng(seed))
        found, expected = run_golden(model, inputs)[0], run_reference(data, inputs)
        for name, values in found.items():
            assert np.array_equal(values, expected[name], equal_nan=values.dtype.kind == "f"), f"seed {seed}: {name}"
    assert accepted > 20


# ---- Single operators in odd shapes ----------------------------------------------------------------------------------


class One:
    """A file of one operator with random numbers."""

    def __init__(self, rng, shape, scale=0.05):
        self.rng = rng
        self.builder = FileBuilder()
        self.zero = int(rng.integers(-128, 128))
        self.scale = float(np.float32(scale * rng.uniform(0.5, 2)))
        self.x = self.builder.input("x", shape, "int8", self.scale, self.zero)

    def weights(self, shape, dimension, *, per_channel):
        count = shape[dimension] if per_channel else 1
        values = self.rng.integers(-128 if self.rng.random() < 0.3 else -127, 128, shape, np.int8)
        scales = self.rng.uniform(0.001, 0.02, count).astype(np.float32)
        number = self.builder.constant(
            "w", values, scales=scales, zero_points=np.zeros(count, np.int64), dimension=dimension
        )
        return number, scales

    def bias(self, channels, scales):
        values = self.rng.integers(-20000, 20000, channels).astype(np.int32)
        return self.builder.constant(
            "b", values, scales=scales * np.float32(self.scale), zero_points=np.zeros(len(scales), np.int64)
        )

    def output(self, kind, inputs, shape, options, scale=None, zero=None):
        zero = int(self.rng.integers(-128, 128)) if zero is None else zero
        y = self.builder.tensor("y", shape, "int8", scale or float(self.rng.uniform(0.05, 1)), zero)
        self.builder.operator(kind, inputs, [y], options)
        self.builder.output(y)
        return self.builder.serialise()


def same(size, stride):
    return -(-size // stride)


def valid(size, kernel, stride, dilation=1):
    return (size - (kernel - 1) * dilation - 1) // stride + 1


ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


def random_convolution(rng, kind):
    height, width = int(rng.integers(1, 14)), int(rng.integers(1, 14))
    groups = int(rng.choice((1, 1, 2, 3))) if kind == "CONV_2D" else 1
    cin = groups * int(rng.choice((1, 3, 5, 17)))
    multiplier = int(rng.choice((1, 1, 2, 3)))
    cout = groups * int(rng.choice((1, 2, 6, 19))) if kind == "CONV_2D" else cin * multiplier
    kh, kw = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    dilation = (1, 1) if max(stride) > 1 else (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    padding = "SAME"
    if (kh - 1) * dilation[0] < height and (kw - 1) * dilation[1] < width and rng.random() < 0.5:
        padding = "VALID"
    sizes = [
        same(size, s) if padding == "SAME" else valid(size, k, s, d)
        for size, k, s, d in zip((height, width), (kh, kw), stride, dilation, strict=True)
    ]
    one = One(rng, (1, height, width, cin))
    shape, axis = ((cout, kh, kw, cin // groups), 0) if kind == "CONV_2D" else ((1, kh, kw, cout), 3)
    w, scales = one.weights(shape, axis, per_channel=rng.random() < 0.6)
    # The runtime takes CONV_2D with a bias only.
    bias = [one.bias(cout, scales)] if kind == "CONV_2D" or rng.random() < 0.7 else []
    options = {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "fused_activation_function": str(rng.choice(ACTIVATIONS)),
    }
    if kind == "DEPTHWISE_CONV_2D":
        options["depth_multiplier"] = multiplier
    return one.output(kind, [one.x, w, *bias], (1, *sizes, cout), options)


def random_dense(rng, _):
    rows, cin, cout = int(rng.choice((1, 1, 4))), int(rng.choice((1, 7, 33))), int(rng.choice((1, 5, 40)))
    shape = (1, 1, 1, cin) if rows == 1 and rng.random() < 0.3 else (rows, cin)
    keeps = len(shape) == 4 and rng.random() < 0.5
    one = One(rng, shape)
    w, scales = one.weights((cout, cin), 0, per_channel=rng.random() < 0.4)
    b = one.bias(cout, scales) if rng.random() < 0.7 else -1
    options = {"fused_activation_function": str(rng.choice(ACTIVATIONS)), "keep_num_dims": keeps}
    return one.output("FULLY_CONNECTED", [one.x, w, b], (1, 1, 1, cout) if keeps else (rows, cout), options)


def random_pool(rng, kind):
    height, width, channels = int(rng.integers(1, 14)), int(rng.integers(1, 14)), int(rng.choice((1, 3, 5, 17)))
    kernel = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    padding = "SAME"
    if kernel[0] <= height and kernel[1] <= width and rng.random() < 0.5:
        padding = "VALID"
    sizes = [
        same(size, s) if padding == "SAME" else valid(size, k, s)
        for size, k, s in zip((height, width), kernel, stride, strict=True)
    ]
    one = One(rng, (1, height, width, channels))
    options = {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "fused_activation_function": str(rng.choice(ACTIVATIONS)),
    }
    return one.output(kind, [one.x], (1, *sizes, channels), options, one.scale, one.zero)


def random_mean(rng, kind):
    height, width, channels = int(rng.integers(1, 20)), int(rng.integers(1, 20)), int(rng.choice((1, 3, 17)))
    one = One(rng, (1, height, width, channels))
    axes = one.builder.constant("axes", np.array([1, 2] if rng.random() < 0.7 else [2, 1], np.int32))
    keeps = bool(rng.random() < 0.5)
    scale = one.scale * float(rng.choice((1.0, rng.uniform(0.2, 5))))
    shape = (1, 1, 1, channels) if keeps else (1, channels)
    return one.output(kind, [one.x, axes], shape, {"keep_dims": keeps}, scale)


def random_addition(rng, kind):
    shape = (1, int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.choice((1, 3, 17))))
    one = One(rng, shape)
    other = one.builder.input("z", shape, "int8", float(rng.uniform(0.01, 0.2)), int(rng.integers(-128, 128)))
    options = {"fused_activation_function": str(rng.choice(ACTIVATIONS))}
    return one.output(kind, [one.x, other], shape, options, float(rng.uniform(0.05, 0.5)))


def random_unary(rng, kind):
    shape = (1, int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.choice((1, 3, 17))))
    one = One(rng, shape)
    fixed = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}.get(kind, (float(rng.uniform(0.02, 0.2)), None))
    options = {"alpha": 0.1} if kind == "LEAKY_RELU" else {}
    return one.output(kind, [one.x], shape, options, *fixed)


def random_scalar(rng, kind):
    shape = (1, int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.choice((1, 3, 17))))
    one = One(rng, shape)
    value = one.builder.constant(
        "c",
        rng.integers(-128, 128, [(), (1,), (1, 1, 1, 1)][rng.integers(3)]).astype(np.int8),
        scales=[float(rng.uniform(0.01, 0.1))],
        zero_points=[0],
    )
    options = {} if kind in ("MAXIMUM", "MINIMUM") else {"fused_activation_function": str(rng.choice(ACTIVATIONS))}
    inputs = [one.x, value] if rng.random() < 0.5 else [value, one.x]
    return one.output(kind, inputs, shape, options, float(rng.uniform(0.05, 0.3)))


def random_padding(rng, kind):
    height, width, channels = int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.choice((1, 3, 17)))
    one = One(rng, (1, height, width, channels))
    edges = rng.integers(0, 4, (2, 2))
    edges[0, 0] += not edges.any()  # a padding of nothing leaves nothing to compute
    amounts = [[0, 0], *edges.tolist(), [0, 0]]
    inputs = [one.x, one.builder.constant("amounts", np.array(amounts, np.int32))]
    if kind == "PADV2":
        inputs.append(one.builder.constant("v", np.int8(one.zero), scales=[one.scale], zero_points=[one.zero]))
    shape = (1, height + sum(amounts[1]), width + sum(amounts[2]), channels)
    return one.output(kind, inputs, shape, {}, one.scale, one.zero)


def random_resize(rng, kind):
    height, width, channels = int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.choice((1, 3, 17)))
    one = One(rng, (1, height, width, channels))
    size = one.builder.constant("size", np.array([2 * height, 2 * width], np.int32))
    options = {"half_pixel_centers": bool(rng.random() < 0.5)}
    return one.output(kind, [one.x, size], (1, 2 * height, 2 * width, channels), options, one.scale, one.zero)


SINGLE = {
    "CONV_2D": random_convolution,
    "DEPTHWISE_CONV_2D": random_convolution,
    "FULLY_CONNECTED": random_dense,
    "AVERAGE_POOL_2D": random_pool,
    "MAX_POOL_2D": random_pool,
    "MEAN": random_mean,
    "ADD": random_addition,
    **dict.fromkeys(("LOGISTIC", "TANH", "RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH", "LEAKY_RELU"), random_unary),
    "PAD": random_padding,
    "PADV2": random_padding,
    "RESIZE_NEAREST_NEIGHBOR": random_resize,
}


@pytest.mark.parametrize("kind", SINGLE)
def test_single_operators_in_odd_shapes(kind, tmp_path):
    """Run on the NPU's golden model, whole; nothing is left to the host."""
    rng = np.random.default_rng([SEED, list(SINGLE).index(kind)])
    different = 0
    for case in range(25):
        data = SINGLE[kind](rng, kind)
        model = read(tmp_path, data)
        assert len(model.graphs) == len(model.stages) == 1, f"case {case}, seed {SEED}"
        inputs = random_inputs(data, rng)
        expected = run_reference(data, inputs)
        equal(run_golden(model, inputs)[0], expected)
        different += len(np.unique(expected["y"])) > 2
    assert different > 5


@pytest.mark.parametrize("kind", ["ADD", "MUL", "SUB", "MAXIMUM", "MINIMUM"])
def test_a_constant_of_one_element_becomes_a_table(kind, tmp_path):
    rng = np.random.default_rng([SEED, 77])
    accepted = 0
    for _ in range(12):
        data = random_scalar(rng, kind)
        inputs = random_inputs(data, rng)
        try:
            expected = run_reference(data, inputs)
        except (RuntimeError, ValueError):
            continue  # scales that the runtime does not take
        model = read(tmp_path, data)
        accepted += len(model.graphs)
        equal(run_golden(model, inputs)[0], expected)
    assert accepted > 3


# ---- The functional engine -------------------------------------------------------------------------------------------


def carried_out(compiled, config, inputs, values):
    """Differences between what a program leaves in memory without hardware and `values`."""
    program = compiled.program
    names = ("constants", "arena", "input", "output")
    memory = {base: np.zeros(program.buffer_bytes[name], np.uint8) for base, name in enumerate(names)}
    memory[0][:] = np.frombuffer(program.constants, np.uint8)
    for name, tensor in inputs.items():
        stored = program.tensors[name]
        raw = TensorLayout(*stored.shape, program.n, stored.packed).pack(tensor)
        memory[stored.base][stored.offset : stored.offset + len(raw)] = np.frombuffer(raw, np.uint8)
    Functional(config, memory).run(program)

    def content(base, offset, size):
        return memory[base][offset : offset + size].tobytes()

    return [str(found) for _, found in check_tensors(compiled, values, content) if found is not None]


@pytest.mark.parametrize("kind", SINGLE)
def test_single_operators_on_the_functional_engine(kind, tmp_path):
    rng = np.random.default_rng([SEED, 200 + list(SINGLE).index(kind)])
    for case in range(4):
        data = SINGLE[kind](rng, kind)
        model = read(tmp_path, data)
        inputs = random_inputs(data, rng)
        outputs, (values,) = run_golden(model, inputs)
        equal(outputs, run_reference(data, inputs))
        config = load_config(("tiny", "ecp5", "edge")[case % 3])
        compiled = compile_model(model, config, policy(("pool", "pingpong")[case % 2]))
        (graph,) = model.graphs
        ends = {name: values[name] for name in graph.inputs}
        assert carried_out(compiled.programs[0], config, ends, values) == [], f"case {case}, seed {SEED}"


# ---- The RTL ---------------------------------------------------------------------------------------------------------


def on_rtl(tmp_path, data, npu, buffers="pingpong", **options):
    """Reference runtime = golden model = compiled RTL, byte for byte."""
    config = load_config(npu)
    model = read(tmp_path, data, **options)
    inputs = random_inputs(data, np.random.default_rng(SEED))
    expected = run_reference(data, inputs)
    golden_outputs, golden = run_golden(model, inputs)
    equal(golden_outputs, expected)
    compiled = compile_model(model, config, policy(buffers))
    done = run_model(compiled, config, inputs, title="test", engine="rtl", golden=golden)
    assert done.checked is not None and done.checked.difference is None, str(done.checked)
    equal(done.outputs, expected)
    assert len(done.host) == len(model.stages) - len(model.graphs)


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("resnet8_mean_uint8", "pingpong"),
        ("keyword_spotter", "pool"),
        ("autoencoder", "pingpong"),
        ("squeeze_and_excite", "pingpong"),
        ("segmenter_nearest", "pool"),
    ],
)
def test_networks_on_the_compiled_rtl(name, buffers, tmp_path):
    on_rtl(tmp_path, NETWORKS[name](SEED), "tiny", buffers, host_fallback=name in FALLBACK)


def test_a_small_mobilenet_on_the_compiled_rtl(tmp_path):
    build = partial(mobilenet_v1, channels=1, size=32, dtype="int8", output="int8")
    on_rtl(tmp_path, build(SEED), "tiny")


def test_random_networks_on_the_compiled_rtl(tmp_path):
    ran = 0
    for seed in range(40):
        data = random_file(5000 * SEED + seed)
        try:
            read(tmp_path, data, host_fallback=True)
        except ModelError:
            continue
        on_rtl(tmp_path, data, "tiny", ("pool", "pingpong")[seed % 2], host_fallback=True)
        ran += 1
    assert ran > 15


@pytest.mark.parametrize("kind", SINGLE)
def test_single_operators_on_the_compiled_rtl(kind, tmp_path):
    rng = np.random.default_rng([SEED, 100 + list(SINGLE).index(kind)])
    for _ in range(3):
        on_rtl(tmp_path, SINGLE[kind](rng, kind), "tiny", str(rng.choice(("pool", "pingpong"))))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_the_largest_preset(name, tmp_path):
    on_rtl(tmp_path, NETWORKS[name](SEED), "edge", host_fallback=name in FALLBACK)
