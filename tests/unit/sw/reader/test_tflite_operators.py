"""Every operator that the TFLite reader takes, in odd shapes and with any scales: the runtime's bytes, or refused."""

import os

import numpy as np
import pytest

from sim import golden
from sim.testing.tflite_files import FileBuilder
from sim.testing.tflite_layers import random_inputs
from sw.reader.model import ModelError, evaluate, read_model
from sw.reader.partition import Role
from sw.reader.tflite_operators import OPERATORS
from sw.reader.tflite_runtime import tflite_runtime

SEED = int(os.environ.get("RONDO_SEED", "1"))

SIZES = ((1, 1), (1, 7), (9, 5), (13, 13))
CHANNELS = (1, 3, 5, 17, 33)
CASES = 16
ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


class Draw:
    """A file in the making with random numbers.

    With `wild`, scales differ by a factor of up to a million, and biases reach the limits of int32: not all such files
    can be run. Output scales fit what comes out, more or less, so that not everything saturates. In a third of all
    files they are powers of two: then halves are to be rounded, which with other scales hardly ever happens.
    """

    def __init__(self, rng, wild):
        self.rng, self.wild = rng, wild
        self.builder = FileBuilder()
        self.count = 0
        self.powers = bool(rng.random() < 1 / 3)

    def pick(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def rounded(self, scales):
        return np.float32(2.0 ** np.round(np.log2(scales)) if self.powers else scales)

    def scale(self):
        return float(self.rounded(10 ** self.rng.uniform(-3, 3) if self.wild else self.rng.uniform(0.02, 0.2)))

    def point(self):
        return int(self.pick(-128, 127, 0, *self.rng.integers(-128, 128, 4)))

    def quantisation(self):
        return self.scale(), self.point()

    def image(self):
        return (1, *self.pick(*SIZES), self.pick(*CHANNELS))

    def input(self, shape, quantisation=None):
        self.count += 1
        return self.builder.input(f"x{self.count}", shape, "int8", *(quantisation or self.quantisation()))

    def integers(self, values):
        self.count += 1
        return self.builder.constant(f"c{self.count}", np.array(values, np.int32))

    def scalar(self, quantisation=None):
        self.count += 1
        scale, point = quantisation or self.quantisation()
        shape = self.pick((), (1,), (1, 1, 1, 1))
        return self.builder.constant(
            f"c{self.count}", self.rng.integers(-128, 128, shape).astype(np.int8), [scale], [point]
        )

    def activation(self):
        return {"fused_activation_function": self.pick(*ACTIVATIONS)}

    def spread(self, scale, low=-1.0, high=1.0):
        """A quantisation whose scale is about another one, ``10**low`` to ``10**high`` times as large."""
        if self.wild and self.chance(0.2):
            return self.quantisation()
        return float(self.rounded(scale * 10 ** self.rng.uniform(low, high))), self.point()

    def operator(self, kind, inputs, shape, options=None, quantisation=None):
        self.count += 1
        y = self.builder.tensor(f"y{self.count}", shape, "int8", *(quantisation or self.quantisation()))
        self.builder.operator(kind, inputs, [y], options)
        return y

    def quantisation_of(self, number):
        q = self.builder.graph.tensors[number].quantization
        return float(q.scale[0]), int(q.zeroPoint[0])

    def shape_of(self, number):
        return tuple(int(n) for n in self.builder.graph.tensors[number].shape)

    def weights(self, x, shape, axis):
        """Numbers of weights and bias, and a quantisation for what comes of them."""
        self.count += 1
        cout, scale = shape[axis], self.quantisation_of(x)[0]
        most = self.pick(1, 3, 127, 128)
        values = np.clip(self.rng.integers(-most, most, shape, endpoint=True), -128, 127).astype(np.int8)
        middle = 10 ** self.rng.uniform(*((-5, 1) if self.wild else (-3, -1.7)))
        scales = self.rounded(middle * 10 ** self.rng.uniform(-0.5, 0.5, cout if self.chance(0.5) else 1))
        points = np.zeros(scales.size, np.int64)
        limit = self.pick(10, 20_000, *((1 << 27, 1 << 30, (1 << 31) - 1) if self.wild else ()))
        bias = self.rng.integers(-limit, limit, cout, endpoint=True).astype(np.int32)
        if self.wild and self.chance(0.2):
            bias[:] = limit - self.rng.integers(0, 40_000, cout)
        w = self.builder.constant(f"w{self.count}", values, scales, points, axis)
        b = self.builder.constant(f"b{self.count}", bias, scales * np.float32(scale), points)
        reach = 70.0 * most * np.sqrt(values.size / cout) + limit / 2
        return w, b, self.spread(scale * middle * reach / 100, -1.0, 0.5)

    # -- windows

    def window(self, sizes, most, dilates):
        """Kernel, output size and options."""
        kernel = [int(self.rng.integers(1, most + 1)) for _ in range(2)]
        stride = [int(self.rng.integers(1, 4)) for _ in range(2)]
        dilation = [int(self.rng.integers(1, 4)) if dilates else 1 for _ in range(2)]
        if dilates and max(stride) > 1 and max(dilation) > 1 and self.chance(0.7):
            dilation = [1, 1]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        valid = all(span <= size for span, size in zip(spans, sizes, strict=True)) and self.chance(0.5)
        made = [
            (size - span) // s + 1 if valid else -(-size // s)
            for size, span, s in zip(sizes, spans, stride, strict=True)
        ]
        options = {"padding": "VALID" if valid else "SAME", "stride_h": stride[0], "stride_w": stride[1]}
        if dilates:
            options |= {"dilation_h_factor": dilation[0], "dilation_w_factor": dilation[1]}
        return kernel, made, options | self.activation()


def convolution(d, kind, x=None):
    x = d.input(d.image()) if x is None else x
    _, *sizes, cin = d.shape_of(x)
    groups = d.pick(*(g for g in (1, 3, 5, 11) if cin % g == 0))
    cout = groups * d.pick(1, 2, 3, 5, 17)
    kernel, made, options = d.window(sizes, 4, True)
    w, b, fit = d.weights(x, (cout, *kernel, cin // groups), 0)
    return d.operator(kind, [x, w, b], (1, *made, cout), options, fit)


def depthwise(d, kind):
    x = d.input(d.image())
    _, *sizes, cin = d.shape_of(x)
    multiplier = d.pick(1, 2, 3)
    kernel, made, options = d.window(sizes, 4, True)
    w, b, fit = d.weights(x, (1, *kernel, cin * multiplier), 3)
    inputs = [x, w, b] if d.chance(0.7) else [x, w]
    return d.operator(kind, inputs, (1, *made, cin * multiplier), options | {"depth_multiplier": multiplier}, fit)


def dense(d, kind, x=None):
    if x is None:
        x = d.input(d.pick((1, d.pick(*CHANNELS)), (4, 17), (1, 1, 1, 33), (1, 1, 7, 5), (1, 3, 5), (1, 9, 5, 3)))
    shape = d.shape_of(x)
    keeps = d.chance(0.5)
    cin = shape[-1] if keeps or d.chance(0.5) else int(np.prod(shape[1:]))
    cout = d.pick(*CHANNELS)
    made = (*shape[:-1], cout) if keeps else (int(np.prod(shape)) // cin, cout)
    w, b, fit = d.weights(x, (cout, cin), 0)
    inputs = [x, w, b if d.chance(0.7) else -1]
    return d.operator(kind, inputs, made, d.activation() | {"keep_num_dims": keeps}, fit)


def pool(d, kind):
    x = d.input(d.image())
    _, *sizes, channels = d.shape_of(x)
    kernel, made, options = d.window(sizes, 6, False)
    options |= {"filter_height": kernel[0], "filter_width": kernel[1]}
    return d.operator(kind, [x], (1, *made, channels), options, d.quantisation_of(x))


def mean(d, kind):
    sizes = [int(d.rng.integers(1, 40)) for _ in range(2)]
    channels = d.pick(1, 3, 17)
    x = d.input((1, *sizes, channels))
    scale, point = d.quantisation_of(x)
    ratio = d.pick(1.0, 10 ** d.rng.uniform(*((-4, 4) if d.wild else (-1, 1.3))))
    same = (scale, point) if d.chance(0.3) else (float(d.rounded(scale * ratio)), d.point())
    keeps = d.chance(0.5)
    axes = d.integers(d.pick([1, 2], [2, 1], [-3, -2], [1, -2], [1, 2, 1]))
    return d.operator(kind, [x, axes], (1, 1, 1, channels) if keeps else (1, channels), {"keep_dims": keeps}, same)


def addition(d, kind):
    shape = d.image()
    x = d.input(shape)
    scale = d.quantisation_of(x)[0]
    other = d.input(shape, d.spread(scale, -1.5, 1.5) if d.chance(0.5) else None) if d.chance(0.8) else x
    fit = d.spread(max(scale, d.quantisation_of(other)[0]))
    return d.operator(kind, [x, other], shape, d.activation(), fit)


def unary(d, kind):
    shape = d.image()
    fixed = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}.get(kind)
    options = {"alpha": d.pick(0.1, 0.3, 1.7, -0.5)} if kind == "LEAKY_RELU" else None
    if kind == "GELU":
        options = {"approximate": d.chance(0.5)}
    x = d.input(shape)
    return d.operator(kind, [x], shape, options, fixed or d.spread(d.quantisation_of(x)[0]))


def prelu(d, kind):
    shape = d.image()
    x = d.input(shape)
    return d.operator(kind, [x, d.scalar()], shape, None, d.spread(d.quantisation_of(x)[0]))


def binary(d, kind):
    """Of a tensor and a constant, on either side, or of a tensor and a function of it."""
    x = d.input(d.image())
    shape = d.shape_of(x)
    options = {} if kind in ("MAXIMUM", "MINIMUM") else d.activation()
    same = d.quantisation_of(x) if kind in ("MAXIMUM", "MINIMUM") else None  # they compare, and do not scale
    if d.chance(0.5):
        other = d.scalar(same)
    elif same:
        other = d.operator("LEAKY_RELU", [x], shape, {"alpha": -0.5}, same)
    else:
        other = d.operator("LOGISTIC", [x], shape, None, (1 / 256, -128))
    inputs = [x, other] if d.chance(0.5) else [other, x]
    scales = d.quantisation_of(x)[0], d.quantisation_of(other)[0]
    fit = d.spread(100 * scales[0] * scales[1] if kind == "MUL" else max(scales))
    return d.operator(kind, inputs, shape, options, same or fit)


def pad(d, kind):
    x = d.input(d.image())
    _, height, width, channels = d.shape_of(x)
    edges = d.rng.integers(0, 4, (2, 2)).tolist()
    inputs = [x, d.integers([[0, 0], *edges, [0, 0]])]
    quantisation = d.quantisation_of(x)
    shape = (1, height + sum(edges[0]), width + sum(edges[1]), channels)
    last = d.pick("convolution", "pool", "none")
    if kind == "PADV2":
        value = np.int8(-128 if last == "pool" else quantisation[1])
        inputs.append(d.builder.constant("v", value, [quantisation[0]], [quantisation[1]]))
    y = d.operator(kind, inputs, shape, None, quantisation)
    if last == "convolution":
        return convolution(d, "CONV_2D", y)
    if last == "pool" and min(shape[1:3]) >= 4:
        options = {"padding": "VALID", "filter_height": 4, "filter_width": 4}
        return d.operator("MAX_POOL_2D", [y], (1, shape[1] - 3, shape[2] - 3, channels), options, quantisation)
    return y


def concatenation(d, kind):
    shape = d.image()
    quantisation = d.quantisation()
    parts = [d.input((*shape[:3], d.pick(*CHANNELS)), quantisation) for _ in range(int(d.rng.integers(1, 5)))]
    parts.append(parts[0])
    channels = sum(d.shape_of(part)[3] for part in parts)
    return d.operator(kind, parts, (*shape[:3], channels), {"axis": d.pick(3, -1)}, quantisation)


def resize(d, kind):
    x = d.input(d.image())
    _, height, width, channels = d.shape_of(x)
    options = {"half_pixel_centers": d.chance(0.5)}
    shape = (1, 2 * height, 2 * width, channels)
    return d.operator(kind, [x, d.integers(shape[1:3])], shape, options, d.quantisation_of(x))


def view(d, kind):
    """A view between two layers, before the first, or behind the last."""
    place = d.pick("before", "between", "behind")
    channels = (shape := d.image())[3]
    if kind == "SQUEEZE":
        shape = (1, 1, 1, channels)
    elif kind == "EXPAND_DIMS":
        shape = (1, channels)
    x = d.input(shape)
    if place != "before":
        x = dense(d, "FULLY_CONNECTED", x) if len(shape) == 2 else convolution(d, "CONV_2D", x)
    shape = d.shape_of(x)
    for _ in range(int(d.rng.integers(1, 3)) if kind == "RESHAPE" else 1):
        inputs, options, made = [x], {}, shape
        match kind:
            case "RESHAPE":
                made = (1, int(np.prod(shape))) if d.chance(0.6) else (1, 1, int(np.prod(shape)), 1)
                inputs, options = d.pick(([x, d.integers(made)], {}), ([x], {"new_shape": made}))
            case "SQUEEZE":
                made = tuple(n for axis, n in enumerate(shape) if n != 1 or axis == 0)
                options = {"squeeze_dims": [axis for axis, n in enumerate(shape) if n == 1 and axis]}
            case "EXPAND_DIMS":
                axis = d.pick(0, 1, -2)
                inputs = [x, d.integers([axis])]
                at = axis if axis >= 0 else len(shape) + 1 + axis
                made = (*shape[:at], 1, *shape[at:])
            case "TRANSPOSE":
                order = sorted(range(4), key=lambda axis: shape[axis] != 1)
                made = tuple(shape[axis] for axis in order)
                inputs = [x, d.integers(order)]
        x = d.operator(kind, inputs, made, options, d.quantisation_of(x))
        shape = made
    return x if place == "behind" else dense(d, "FULLY_CONNECTED", x)


def end(d, kind):
    """The ends of a network: int8, uint8 and float32 in; operators of the host behind a layer."""
    shape, quantisation = d.image(), d.quantisation()
    x = d.builder.input("f", shape, "float32")
    if d.chance(0.3):
        x = d.builder.input("u", shape, "uint8", quantisation[0], quantisation[1] + 128)
    d.builder.graph.inputs[:] = [x]
    y = d.operator("QUANTIZE", [x], shape, None, quantisation)
    y = convolution(d, "CONV_2D", y)
    made = d.shape_of(y)
    b = d.builder
    match kind:
        case "DEQUANTIZE":
            z = b.tensor("z", made, "float32")
            b.operator(kind, [y], [z])
        case "SOFTMAX" | "LOG_SOFTMAX":
            fixed = (1 / 256, -128) if kind == "SOFTMAX" else (16 / 256, 127)
            return d.operator(kind, [y], made, {"beta": 1.0} if kind == "SOFTMAX" else None, fixed)
        case "ARG_MAX":
            z = b.tensor("z", made[:3], "int32")
            b.operator(kind, [y, d.integers([3])], [z], {"output_type": "INT32"})
        case "CAST":
            z = b.tensor("z", made, "float32")
            b.operator(kind, [y], [z], {"in_data_type": "INT8", "out_data_type": "FLOAT32"})
    return z


MAKERS = {
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": depthwise,
    "FULLY_CONNECTED": dense,
    "AVERAGE_POOL_2D": pool,
    "MAX_POOL_2D": pool,
    "MEAN": mean,
    "ADD": lambda d, kind: (addition if d.chance(0.8) else binary)(d, kind),
    **dict.fromkeys(("MUL", "SUB", "MAXIMUM", "MINIMUM"), binary),
    **dict.fromkeys(("LOGISTIC", "TANH", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"), unary),
    **dict.fromkeys(("LEAKY_RELU", "GELU", "HARD_SWISH", "ABS", "QUANTIZE"), unary),
    "PRELU": prelu,
    "PAD": pad,
    "PADV2": pad,
    "CONCATENATION": concatenation,
    "RESIZE_NEAREST_NEIGHBOR": resize,
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"), view),
    **{kind: end for kind, support in OPERATORS.items() if support.role is Role.BORDER},
}


def test_every_operator_has_a_maker():
    assert set(MAKERS) == set(OPERATORS)


def test_elu_is_refused(tmp_path):
    """The runtime has no reference kernel for it, so there is nothing that the NPU could be equal to."""
    d = Draw(np.random.default_rng(0), False)
    d.builder.output(unary(d, "ELU"))
    with pytest.raises(ModelError, match="the TFLite runtime refuses it: Didn't find op for builtin opcode 'ELU'"):
        read(tmp_path, d.builder.serialise())


def made(kind, seed, wild):
    d = Draw(np.random.default_rng(seed), wild)
    d.builder.output(MAKERS[kind](d, kind))
    return d.builder.serialise()


def read(tmp_path, data, **options):
    path = tmp_path / "one.tflite"
    path.write_bytes(data)
    return read_model(path, **options)


def compare(tmp_path, data, inputs, **options):
    """The model, with the runtime's bytes; None if it is refused, which it is where the runtime refuses it."""
    try:
        expected = tflite_runtime().run(data, list(inputs.values()))
    except ModelError:
        with pytest.raises(ModelError):
            evaluate(read(tmp_path, data, **options), inputs, golden.run)
        return None
    try:
        model = read(tmp_path, data, **options)
    except ModelError:
        return None
    for found, wanted in zip(evaluate(model, inputs, golden.run).values(), expected, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
    return model


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("wild", "least"), [(False, 0.5), (True, 0.3)], ids=["ordinary scales", "wild scales"])
def test_the_runtimes_bytes(kind, wild, least, tmp_path):
    print(f"RONDO_SEED={SEED}")
    on_npu = 0
    for case in range(CASES):
        seed = [SEED, case, list(MAKERS).index(kind), wild]
        data = made(kind, seed, wild)
        model = compare(tmp_path, data, random_inputs(data, np.random.default_rng(seed)), host_fallback=case % 3 == 0)
        on_npu += model is not None and len(model.graphs) > 0
    assert on_npu >= least * CASES


def sums(total, count, zero_point, within):
    """int8 ``[count, n]`` whose columns add up to sums all over their range, half of them near the zero point."""
    centre = zero_point * count
    near = np.clip(centre + np.linspace(-within, within, total // 2), -128 * count, 127 * count)
    wanted = np.concatenate([np.linspace(-128 * count, 127 * count, total - total // 2), near]).round().astype(np.int64)
    base, rest = np.divmod(wanted, count)
    return (base + (np.arange(count)[:, None] < rest)).astype(np.int8)


@pytest.mark.parametrize("keep_dims", [False, True])
def test_mean_of_any_sum(keep_dims, tmp_path):
    print(f"RONDO_SEED={SEED}")
    rng = np.random.default_rng([SEED, 1000])
    for _ in range(60):
        height, width = (int(n) for n in rng.integers(1, (4, 12, 40)[rng.integers(3)], 2, endpoint=True))
        count, channels = height * width, min(2000, 200_000 // (height * width))
        scale = float(rng.choice((1.0, 0.25, rng.uniform(0.001, 2))))
        ratio = float(rng.choice((1.0, 2.0 ** rng.integers(-3, 5), 10 ** rng.uniform(-1, 1.31))))
        zero_point, zero_point_out = (int(rng.choice((-128, 127, 0, rng.integers(-128, 128)))) for _ in range(2))
        b = FileBuilder()
        x = b.input("x", (1, height, width, channels), "int8", scale, zero_point)
        y = b.tensor("y", (1, 1, 1, channels) if keep_dims else (1, channels), "int8", scale * ratio, zero_point_out)
        b.operator("MEAN", [x, b.constant("axes", np.array([1, 2], np.int32))], [y], {"keep_dims": keep_dims})
        b.output(y)
        values = sums(channels, count, zero_point, 128 * count * min(1.0, ratio))
        assert compare(tmp_path, b.serialise(), {"x": values.reshape(1, height, width, channels)}) is not None


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"])
def test_accumulators_next_to_a_half(kind, tmp_path):
    """Biases alone make them, with scales of any kind: powers of two, others, and some with a common measure."""
    print(f"RONDO_SEED={SEED}")
    rng = np.random.default_rng([SEED, 1001])
    read_at_all = 0
    for case in range(60):
        scale, weight_scale = (float(np.float32(v)) for v in 10 ** rng.uniform(-3, 0, 2))
        output_scale = scale * weight_scale * 10 ** rng.uniform(-0.3, 5)
        match case % 3:
            case 0:
                scale, weight_scale, output_scale = (2.0 ** rng.integers(low, low + 8) for low in (-8, -8, -12))
            case 1:
                scale, output_scale = 1.0, weight_scale * 2 * int(rng.integers(1, 300))
        real = scale * weight_scale / float(np.float32(output_scale))
        halves = (rng.integers(-127, 127, 100) + 0.5) / real
        bias = np.concatenate([np.floor(halves), np.ceil(halves)]).astype(np.int32)
        n = bias.size
        b = FileBuilder()
        shape = (1, 1, 1, n if kind == "DEPTHWISE_CONV_2D" else 1)
        x = b.input("x", shape, "int8", scale, 0)
        flat = kind == "FULLY_CONNECTED"
        axis, of = (3, (1, 1, 1, n)) if kind == "DEPTHWISE_CONV_2D" else (0, (n, 1) if flat else (n, 1, 1, 1))
        count = n if rng.random() < 0.5 else 1
        points = np.zeros(count, np.int64)
        w = b.constant("w", np.zeros(of, np.int8), np.full(count, weight_scale, np.float32), points, axis)
        c = b.constant("b", bias, np.full(count, np.float32(scale) * np.float32(weight_scale)), points)
        y = b.tensor("y", (1, n) if flat else (1, 1, 1, n), "int8", output_scale, 0)
        options = {} if flat else {"padding": "VALID"} | ({} if kind == "CONV_2D" else {"depth_multiplier": 1})
        b.operator(kind, [x, w, c], [y], options)
        b.output(y)
        read_at_all += compare(tmp_path, b.serialise(), {"x": np.zeros(shape, np.int8)}) is not None
    assert read_at_all > 20
