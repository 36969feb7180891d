"""Random small networks as sound int8 TFLite files: a few layers each, in odd shapes."""

from collections.abc import Callable

import numpy as np

from sim.testing.tflite_layers import Layers, Value, quantised

_ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
_UNARY = ("RELU", "RELU6", "RELU_N1_TO_1", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU")
_ENDS = ("int8", "int8", "int8", "uint8", "float32")


def random_file(seed: int, *, layers: int = 4) -> bytes:
    """A file with one to `layers` random layers, a function of the seed.

    Most of its operators are among those that an NPU for images can run; some are not.
    """

    def build(net: Layers) -> None:
        rng = np.random.default_rng([seed, 1])  # a new one each time: the network is built twice
        flat = rng.random() < 0.1
        size = (int(rng.integers(1, 14)), int(rng.integers(1, 14)), int(rng.integers(1, 20)))
        low, high = -float(rng.uniform(0, 4)) * int(rng.integers(2)), float(rng.uniform(0.1, 4))
        shape = (1, size[0] * size[2]) if flat else (1, *size)
        x = net.input("x", shape, low, high, str(rng.choice(_ENDS)))
        history = [x]
        for _ in range(int(rng.integers(1, layers + 1))):
            x = _layer(net, rng, x, history)
            history.append(x)
        net.output(x, str(rng.choice(_ENDS)))
        extra = history[int(rng.integers(len(history)))]
        if rng.random() < 0.2 and extra is not x and extra is not history[0]:
            net.output(extra)

    return quantised(build, f"random{seed}", seed, samples=2)


def _layer(net: Layers, rng: np.random.Generator, x: Value, history: list[Value]) -> Value:
    choices = _CHOICES_IMAGE if len(x.shape) == 4 else _CHOICES_FLAT
    for _ in range(50):
        y = choices[int(rng.integers(len(choices)))](net, rng, x, history)
        if y is not None and np.prod(y.shape) <= 20_000:
            return y
    return net.unary("RELU", x)


def _window(rng: np.random.Generator, x: Value, largest: int, dilation: int = 1) -> tuple[tuple[int, int], str] | None:
    kernel = (int(rng.integers(1, largest + 1)), int(rng.integers(1, largest + 1)))
    padding = str(rng.choice(("SAME", "VALID")))
    fits = all((taps - 1) * dilation < size for taps, size in zip(kernel, x.shape[1:3], strict=True))
    return (kernel, padding) if padding == "SAME" or fits else None


def _conv(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    dilation = int(rng.choice((1, 1, 1, 2, 3)))
    window = _window(rng, x, 5, dilation)
    if window is None:
        return None
    stride = (1, 1) if dilation > 1 else (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    divisors = [d for d in range(1, x.shape[3] + 1) if x.shape[3] % d == 0]
    groups = int(rng.choice(divisors)) if rng.random() < 0.15 else 1
    filters = groups * int(rng.integers(1, 24 // groups + 2))
    activation = str(rng.choice(_ACTIVATIONS))
    return net.conv(x, filters, window[0], stride, window[1], activation, dilation=dilation, groups=groups)


def _depthwise(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    window = _window(rng, x, 4)
    if window is None:
        return None
    stride = int(rng.integers(1, 4))
    multiplier = int(rng.choice((1, 1, 1, 2, 3)))
    return net.depthwise(x, window[0], stride, window[1], str(rng.choice(_ACTIVATIONS)), multiplier=multiplier)


def _dense(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    if len(x.shape) == 4 and rng.random() < 0.5:
        x = net.reshape(x, (1, int(np.prod(x.shape))))
    return net.dense(
        x, int(rng.integers(1, 30)), str(rng.choice(_ACTIVATIONS)), per_channel=bool(rng.integers(2)), gain=1.5
    )


def _binary(net: Layers, rng: np.random.Generator, x: Value, history: list[Value]) -> Value | None:
    kind = str(rng.choice(("ADD", "ADD", "ADD", "SUB", "MUL")))
    activation = str(rng.choice(_ACTIVATIONS))
    if rng.random() < 0.3:
        return net.binary(kind, x, float(rng.uniform(-2, 2)), activation)
    equal = [y for y in history if y.shape == x.shape]
    return net.binary(kind, x, equal[int(rng.integers(len(equal)))], activation) if equal else None


def _unary(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    return net.unary(str(rng.choice(_UNARY)), x)


def _silu(net: Layers, _rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    return net.binary("MUL", x, net.unary("LOGISTIC", x))


def _pool(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    window = _window(rng, x, 5)
    kind = str(rng.choice(("MAX_POOL_2D", "AVERAGE_POOL_2D")))
    return window and net.pool(kind, x, window[0], int(rng.integers(1, 4)), window[1])


def _mean(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    return net.mean(x, keep_dims=bool(rng.integers(2)))


def _pad(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    edges = rng.integers(0, 4, (2, 2)).tolist()
    padded = net.pad(x, [(0, 0), *[(a, b) for a, b in edges], (0, 0)])
    return net.conv(padded, int(rng.integers(1, 20)), 3, 2, "VALID") if min(padded.shape[1:3]) >= 3 else padded


def _concat(net: Layers, rng: np.random.Generator, x: Value, history: list[Value]) -> Value | None:
    fit = [y for y in history if y.shape[:-1] == x.shape[:-1]]
    picked = [fit[int(rng.integers(len(fit)))] for _ in range(int(rng.integers(1, 4)))] if fit else []
    return net.concat([x, *picked], len(x.shape) - 1)


def _resize(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    kind = str(rng.choice(("RESIZE_NEAREST_NEIGHBOR",) * 3 + ("RESIZE_BILINEAR",)))
    return net.resize(kind, x, int(rng.choice((2, 2, 4, 3))))


def _flatten(net: Layers, _rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    return net.reshape(x, (1, int(np.prod(x.shape))))


def _fold(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    size = int(np.prod(x.shape))
    width = int(rng.choice([d for d in range(1, size + 1) if size % d == 0]))
    return net.reshape(x, (1, 1, size // width, width))


def _slice(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    channels = x.shape[-1]
    if channels < 2:
        return None
    cut = int(rng.integers(1, channels))
    if rng.random() < 0.5:
        return net.slice_last(x, *((0, cut) if rng.random() < 0.5 else (cut, channels)))
    first, second = net.split_last(x, (cut, channels - cut))
    return net.concat([second, first], len(x.shape) - 1)


def _softmax(net: Layers, _rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    return net.softmax(x)


def _transposed(net: Layers, rng: np.random.Generator, x: Value, _: list[Value]) -> Value | None:
    if rng.random() < 0.5:
        return net.transpose_conv(x, int(rng.integers(1, 8)), 3, 2)
    return net.transpose(x, (0, 2, 1, 3))


_Choice = Callable[[Layers, np.random.Generator, Value, list[Value]], Value | None]
_CHOICES_IMAGE: tuple[_Choice, ...] = (
    *(_conv,) * 5,
    *(_depthwise,) * 3,
    *(_binary, _pool) * 3,
    *(_unary, _silu, _concat, _pad, _mean, _resize, _dense) * 2,
    *(_fold, _flatten, _slice, _softmax, _transposed),
)
_CHOICES_FLAT: tuple[_Choice, ...] = (*(_dense,) * 5, *(_unary, _binary) * 2, _concat, _softmax, _slice, _fold)
