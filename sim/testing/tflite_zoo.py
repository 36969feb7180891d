"""Networks of the usual kinds as int8 TFLite files, with random weights and calibrated scales.

`NETWORKS` has them all by name; each is a function of a seed that returns the bytes of the file.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sim.testing.tflite_layers import Layers, Value, quantised

YOLO_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Width and height in pixels of an image of 640 pixels, for the strides 8, 16 and 32."""


def resnet(seed: int = 0, *, blocks: int = 1, pool: str = "AVERAGE_POOL_2D", dtype: str = "int8") -> bytes:
    """ResNet of 6 `blocks` + 2 layers for CIFAR-10 (blocks 1: ResNet-8, 3: ResNet-20), 32x32x3 to 10 classes.

    `pool` is AVERAGE_POOL_2D, with a RESHAPE, or MEAN.
    """

    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 32, 32, 3), dtype=dtype), 16, 3, activation="RELU")
        for stage, filters in enumerate((16, 32, 64)):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                y = net.conv(x, filters, 3, stride, activation="RELU")
                y = net.conv(y, filters, 3, gain=1.0)
                if stride == 2:
                    x = net.conv(x, filters, 1, stride, gain=1.0)
                x = net.binary("ADD", x, y, "RELU")
        if pool == "MEAN":
            x = net.mean(x)
        else:
            x = net.reshape(net.pool(pool, x, 8, 8), (1, 64))
        net.output(net.softmax(net.dense(x, 10)), dtype)

    return quantised(build, f"resnet{6 * blocks + 2}", seed)


def mobilenet_v1(
    seed: int = 0, *, channels: int = 3, size: int = 96, dtype: str = "uint8", output: str = "float32"
) -> bytes:
    """MobileNet v1 of width 0.25, to 2 classes; `dtype` and `output` are the types of the file's ends."""

    def build(net: Layers) -> None:
        x = net.input("image", (1, size, size, channels), -1, 1, dtype)
        x = net.conv(x, 8, 3, 2, activation="RELU6")
        filters = 16
        for stride in (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1):
            x = net.depthwise(x, 3, stride, activation="RELU6")
            filters = min(filters * stride, 256) if stride == 2 else filters
            x = net.conv(x, filters, 1, activation="RELU6")
        x = net.pool("AVERAGE_POOL_2D", x, x.shape[1:3], 2)
        x = net.reshape(net.conv(x, 2, 1), (1, 2))
        net.output(net.softmax(x), output)

    return quantised(build, "mobilenet_v1", seed)


def mobilenet_v2(
    seed: int = 0, *, channels: int = 3, size: int = 96, dtype: str = "float32", output: str = "uint8"
) -> bytes:
    """MobileNet v2 of width about 0.25: inverted residuals with linear bottlenecks, to 10 classes."""

    def build(net: Layers) -> None:
        x = net.input("image", (1, size, size, channels), -1, 1, dtype)
        x = net.conv(x, 8, 3, 2, activation="RELU6")
        blocks = [(1, 8, 1), (6, 8, 2), (6, 8, 1), (6, 16, 2), (6, 16, 1), (6, 24, 2), (6, 24, 1), (6, 40, 2)]
        for expansion, filters, stride in blocks:
            y = x
            if expansion > 1:
                y = net.conv(y, x.shape[3] * expansion, 1, activation="RELU6")
            y = net.depthwise(y, 3, stride, activation="RELU6")
            y = net.conv(y, filters, 1)
            x = net.binary("ADD", x, y) if x.shape == y.shape else y
        x = net.mean(net.conv(x, 128, 1, activation="RELU6"))
        net.output(net.softmax(net.dense(x, 10)), output)

    return quantised(build, "mobilenet_v2", seed)


def keyword_spotter(seed: int = 0, *, flat: bool = True, blocks: int = 4) -> bytes:
    """DS-CNN on 49 frames of 10 coefficients, ``[1, 490]`` when `flat`, to 12 words."""

    def build(net: Layers) -> None:
        x = net.input("features", (1, 490) if flat else (1, 49, 10, 1), -30, 60)
        if flat:
            x = net.reshape(x, (1, 49, 10, 1))
        x = net.conv(x, 64, (10, 4), 2, activation="RELU")
        for _ in range(blocks):
            x = net.depthwise(x, 3, activation="RELU")
            x = net.conv(x, 64, 1, activation="RELU")
        x = net.pool("AVERAGE_POOL_2D", x, (25, 5), (25, 5))
        net.output(net.softmax(net.dense(net.reshape(x, (1, 64)), 12)))

    return quantised(build, "keyword_spotter", seed)


def autoencoder(seed: int = 0, *, per_channel: bool = False) -> bytes:
    """FULLY_CONNECTED layers from 640 numbers over 8 to 640."""

    def build(net: Layers) -> None:
        x = net.input("spectrum", (1, 640), -3, 3)
        for units in (128, 128, 128, 128, 8, 128, 128, 128, 128):
            x = net.dense(x, units, "RELU", per_channel=per_channel)
        net.output(net.dense(x, 640, per_channel=per_channel))

    return quantised(build, "autoencoder", seed)


def squeeze_and_excite(seed: int = 0, *, size: int = 48) -> bytes:
    """A network in the manner of MobileNet v3: hard-swish, and channels weighed by what the whole image holds."""

    def build(net: Layers) -> None:
        x = net.unary("HARD_SWISH", net.conv(net.input("image", (1, size, size, 3), -1, 1), 16, 3, 2))
        for filters, stride in ((24, 2), (24, 1), (40, 2)):
            y = net.unary("HARD_SWISH", net.conv(x, x.shape[3] * 3, 1))
            y = net.unary("HARD_SWISH", net.depthwise(y, 5, stride))
            weight = net.conv(net.mean(y, keep_dims=True), y.shape[3] // 4, 1, activation="RELU")
            weight = net.binary("ADD", net.conv(weight, y.shape[3], 1), 3.0, "RELU6")
            weight = net.binary("MUL", weight, 1 / 6)
            y = net.conv(net.binary("MUL", y, weight), filters, 1)
            x = net.binary("ADD", x, y) if x.shape == y.shape else y
        x = net.unary("HARD_SWISH", net.dense(net.mean(x), 64))
        net.output(net.dense(x, 10))

    return quantised(build, "squeeze_and_excite", seed)


def segmenter(seed: int = 0, *, up: str = "TRANSPOSE_CONV", size: int = 32) -> bytes:
    """An encoder and decoder with a skip; `up` is TRANSPOSE_CONV, RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR."""

    def build(net: Layers) -> None:
        skip = net.conv(net.input("image", (1, size, size, 3)), 16, 3, 2, activation="RELU")
        x = net.conv(skip, 32, 3, 2, activation="RELU")
        x = net.conv(x, 32, 3, dilation=2, activation="RELU")
        x = net.transpose_conv(x, 16, 3, 2) if up == "TRANSPOSE_CONV" else net.resize(up, x, 2)
        x = net.conv(net.concat([skip, x]), 16, 3, activation="RELU")
        net.output(net.unary("LOGISTIC", net.conv(x, 4, 1)))

    return quantised(build, "segmenter", seed)


def yolov5n(
    seed: int = 0,
    *,
    height: int = 64,
    width: int = 64,
    classes: int = 80,
    split: bool = False,
    dtype: str = "uint8",
    output: str = "uint8",
) -> bytes:
    """YOLOv5n v6 as its authors' program exports it to int8 TFLite, to ``[1, n, 5 + classes]``.

    `height` and `width` are multiples of 32. `split` takes SPLIT_V in place of STRIDED_SLICE in the Detect tail.
    """

    def conv(net: Layers, x: Value, filters: int, kernel: int = 1, stride: int = 1) -> Value:
        padding = "SAME"
        if stride > 1:
            edge = 2 if kernel == 6 else kernel // 2
            x, padding = net.pad(x, [(0, 0), (edge, edge), (edge, edge), (0, 0)]), "VALID"
        x = net.conv(x, filters, kernel, stride, padding, gain=2.0)
        return net.binary("MUL", x, net.unary("LOGISTIC", x))

    def c3(net: Layers, x: Value, filters: int, repeats: int, shortcut: bool) -> Value:
        y = conv(net, x, filters // 2)
        bypass = conv(net, x, filters // 2)
        for _ in range(repeats):
            z = conv(net, conv(net, y, filters // 2), filters // 2, 3)
            y = net.binary("ADD", y, z) if shortcut else z
        return conv(net, net.concat([y, bypass]), filters)

    def sppf(net: Layers, x: Value, filters: int) -> Value:
        pools = [conv(net, x, filters // 2)]
        for _ in range(3):
            pools.append(net.pool("MAX_POOL_2D", pools[-1], 5, 1, "SAME"))
        return conv(net, net.concat(pools), filters)

    def level(net: Layers, x: Value, stride: int, anchors: Sequence[tuple[int, int]]) -> Value:
        rows, columns, numbers = height // stride, width // stride, 5 + classes
        x = net.conv(x, 3 * numbers, 1, gain=12.0)
        x = net.transpose(net.reshape(x, (1, rows * columns, 3, numbers)), (0, 2, 1, 3))
        y = net.unary("LOGISTIC", x)
        if split:
            xy, wh, rest = net.split_last(y, (2, 2, numbers - 4))
        else:
            xy, wh, rest = (net.slice_last(y, *part) for part in ((0, 2), (2, 4), (4, numbers)))
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), 2).reshape(1, 1, -1, 2)
        size = np.array([width, height], np.float32)
        xy = net.binary("SUB", net.binary("MUL", xy, 2.0), 0.5)
        xy = net.binary("MUL", net.binary("MUL", net.binary("ADD", xy, grid), stride), 1 / size)
        wh = net.binary("MUL", wh, 2.0)
        wh = net.binary("MUL", net.binary("MUL", wh, wh), np.array(anchors).reshape(1, 3, 1, 2) * size / 640)
        wh = net.binary("MUL", wh, 1 / size)
        return net.reshape(net.concat([xy, wh, rest]), (1, 3 * rows * columns, numbers))

    def build(net: Layers) -> None:
        x = conv(net, net.input("images", (1, height, width, 3), dtype=dtype), 16, 6, 2)
        x = c3(net, conv(net, x, 32, 3, 2), 32, 1, True)
        p3 = c3(net, conv(net, x, 64, 3, 2), 64, 2, True)
        p4 = c3(net, conv(net, p3, 128, 3, 2), 128, 3, True)
        x = sppf(net, c3(net, conv(net, p4, 256, 3, 2), 256, 1, True), 256)
        top = conv(net, x, 128)
        x = c3(net, net.concat([net.resize("RESIZE_NEAREST_NEIGHBOR", top, 2), p4]), 128, 1, False)
        middle = conv(net, x, 64)
        p3 = c3(net, net.concat([net.resize("RESIZE_NEAREST_NEIGHBOR", middle, 2), p3]), 64, 1, False)
        p4 = c3(net, net.concat([conv(net, p3, 64, 3, 2), middle]), 128, 1, False)
        p5 = c3(net, net.concat([conv(net, p4, 128, 3, 2), top]), 256, 1, False)
        levels = [level(net, x, 8 << i, YOLO_ANCHORS[i]) for i, x in enumerate((p3, p4, p5))]
        net.output(net.concat(levels, axis=1), output)

    return quantised(build, "yolov5n", seed)


NETWORKS: dict[str, Callable[[int], bytes]] = {
    "resnet8": resnet,
    "resnet8_mean_uint8": partial(resnet, pool="MEAN", dtype="uint8"),
    "resnet20": partial(resnet, blocks=3),
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v1_grey": partial(mobilenet_v1, channels=1, dtype="int8", output="int8"),
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v2_grey": partial(mobilenet_v2, channels=1, dtype="uint8", output="float32"),
    "keyword_spotter": keyword_spotter,
    "keyword_spotter_image": partial(keyword_spotter, flat=False),
    "autoencoder": autoencoder,
    "autoencoder_per_channel": partial(autoencoder, per_channel=True),
    "squeeze_and_excite": squeeze_and_excite,
    "segmenter": segmenter,
    "segmenter_bilinear": partial(segmenter, up="RESIZE_BILINEAR"),
    "segmenter_nearest": partial(segmenter, up="RESIZE_NEAREST_NEIGHBOR"),
    "yolov5n": yolov5n,
    "yolov5n_wide_split": partial(yolov5n, height=96, width=128, classes=4, split=True, output="float32"),
}

FALLBACK = frozenset({"squeeze_and_excite", "segmenter", "segmenter_bilinear"})
"""Those with an operator in the middle that only the host can run."""
