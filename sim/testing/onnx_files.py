"""Builds ONNX files in QDQ form: single operators between integers, and networks quantised by ONNX Runtime's own tool.

q = QdqBuilder()
x = q.input("x", (1, 3, 8, 8), 0.05, 3, "uint8")
w = q.weights("w", array, scales)
y = q.node("Conv", [x, w], kernel_shape=[3, 3])
q.output("y", y, (1, 4, 6, 6), 0.1, 0, "int8")
data = q.serialise()
"""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 17
_TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


def _plain(shape: Sequence[Any]) -> list[Any]:
    return [size if isinstance(size, str) else int(size) for size in shape]


class QdqBuilder:
    """A file in the making; nothing is checked, so that wrong files can be built too."""

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def constant(self, name: str, array: ArrayLike) -> str:
        """Add an initialiser."""
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """Add a node; returns the name of its (first) output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return name

    def input(self, name: str, shape: Sequence[Any], scale: float, zero_point: int, dtype: str = "int8") -> str:
        """Add an integer input of the network; returns the real tensor that it stands for."""
        self.inputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], _plain(shape)))
        return self.dequantised(name, scale, zero_point, dtype)

    def float_input(self, name: str, shape: Sequence[Any]) -> str:
        """Add an input of real numbers."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, _plain(shape)))
        return name

    def dequantised(self, name: str, scale: float, zero_point: int, dtype: str = "int8") -> str:
        """The real tensor that an integer one stands for."""
        s = self.constant(f"{name}_scale_{len(self.nodes)}", np.float32(scale))
        z = self.constant(f"{name}_zero_{len(self.nodes)}", np.array(zero_point, dtype))
        return self.node("DequantizeLinear", [name, s, z])

    def quantised(self, name: str, scale: float, zero_point: int, dtype: str = "int8") -> str:
        """A real tensor as integers."""
        s = self.constant(f"{name}_scale_{len(self.nodes)}", np.float32(scale))
        z = self.constant(f"{name}_zero_{len(self.nodes)}", np.array(zero_point, dtype))
        return self.node("QuantizeLinear", [name, s, z])

    def between(self, name: str, scale: float, zero_point: int, dtype: str = "int8") -> str:
        """A real tensor through integers and back, as such files have it between two operators."""
        return self.dequantised(self.quantised(name, scale, zero_point, dtype), scale, zero_point, dtype)

    def weights(self, name: str, array: Array, scales: ArrayLike, axis: int = 0) -> str:
        """Quantised constants, one scale or one along ``axis``; returns the real tensor."""
        scale = np.asarray(scales, np.float32)
        self.constant(name, array)
        s = self.constant(f"{name}_scale", scale)
        z = self.constant(f"{name}_zero", np.zeros(scale.shape, array.dtype))
        return self.node("DequantizeLinear", [name, s, z], axis=axis)

    def output(
        self, name: str, real: str, shape: Sequence[Any], scale: float, zero_point: int, dtype: str = "int8"
    ) -> None:
        """Make the integers of a real tensor an output of the network."""
        self.quantised(real, scale, zero_point, dtype)
        self.nodes[-1].output[0] = name
        self.outputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], _plain(shape)))

    def float_output(self, name: str, shape: Sequence[Any]) -> None:
        """Make a real tensor an output."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, _plain(shape)))

    def model(self) -> Any:
        """The file's message."""
        graph = helper.make_graph(self.nodes, "test", self.inputs, self.outputs, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def serialise(self) -> bytes:
        """The file's bytes."""
        return self.model().SerializeToString()


class _Float:
    """A network of real numbers with random weights."""

    def __init__(self, seed: int) -> None:
        self.builder = QdqBuilder()
        self.rng = np.random.default_rng(seed)

    def constant(self, array: ArrayLike) -> str:
        return self.builder.constant(f"c{len(self.builder.initializers)}", np.asarray(array))

    def conv(
        self, x: str, cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: str = ""
    ) -> str:
        weights = (
            self.rng.standard_normal((cout, cin // groups, kernel, kernel)) * (2 * groups / (cin * kernel**2)) ** 0.5
        )
        bias = self.rng.standard_normal(cout) * 0.1
        inputs = [x, self.constant(weights.astype(np.float32)), self.constant(bias.astype(np.float32))]
        y = self.builder.node(
            "Conv", inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, group=groups
        )
        if act == "relu":
            return self.builder.node("Relu", [y])
        if act == "relu6":
            return self.builder.node("Clip", [y, self.constant(np.float32(0)), self.constant(np.float32(6))])
        return self.builder.node("Mul", [y, self.builder.node("Sigmoid", [y])]) if act == "silu" else y

    def dense(self, x: str, cin: int, cout: int) -> str:
        weights = self.rng.standard_normal((cout, cin)) * (1 / cin) ** 0.5
        inputs = [x, self.constant(weights.astype(np.float32)), self.constant(np.zeros(cout, np.float32))]
        return self.builder.node("Gemm", inputs, transB=1)


def resnet(seed: int = 0) -> tuple[Any, tuple[int, ...]]:
    """A small ResNet for 32x32 pictures to 10 probabilities, in real numbers; and its input's shape."""
    f = _Float(seed)
    node = f.builder.node
    y = f.conv(f.builder.float_input("x", (1, 3, 32, 32)), 3, 16, act="relu")
    y = node("Relu", [node("Add", [y, f.conv(f.conv(y, 16, 16, act="relu"), 16, 16)])])
    z = f.conv(f.conv(y, 16, 32, stride=2, act="relu"), 32, 32)
    y = node("Relu", [node("Add", [f.conv(y, 16, 32, 1, 2), z])])
    y = node("Softmax", [f.dense(node("Flatten", [node("GlobalAveragePool", [y])]), 32, 10)])
    f.builder.float_output(y, (1, 10))
    return f.builder.model(), (1, 3, 32, 32)


def mobilenet(seed: int = 0) -> tuple[Any, tuple[int, ...]]:
    """Depthwise layers, ReLU6, and a flattened image before the last layer."""
    f = _Float(seed)
    y = f.conv(f.builder.float_input("x", (1, 3, 48, 40)), 3, 8, stride=2, act="relu6")
    for cin, cout, stride in ((8, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2)):
        y = f.conv(f.conv(y, cin, cin, stride=stride, groups=cin, act="relu6"), cin, cout, 1, act="relu6")
    y = f.builder.node("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = f.dense(f.builder.node("Flatten", [y]), 240, 7)
    f.builder.float_output(y, (1, 7))
    return f.builder.model(), (1, 3, 48, 40)


def silu_neck(seed: int = 0) -> tuple[Any, tuple[int, ...]]:
    """SiLU as Sigmoid and Mul, an upsampling, a concatenation, an average pool with padding."""
    f = _Float(seed)
    a = f.conv(f.builder.float_input("x", (1, 3, 32, 64)), 3, 12, stride=2, act="silu")
    b = f.conv(f.conv(a, 12, 20, stride=2, act="silu"), 20, 12, act="silu")
    scales = f.constant(np.array([1, 1, 2, 2], np.float32))
    up = f.builder.node(
        "Resize", [b, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    y = f.conv(f.builder.node("Concat", [up, a], axis=1), 24, 18, 1, act="silu")
    y = f.builder.node("AveragePool", [y], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = f.conv(y, 18, 5, 1)
    f.builder.float_output(y, (1, 5, 8, 16))
    return f.builder.model(), (1, 3, 32, 64)


def normalised(seed: int = 0) -> tuple[Any, tuple[int, ...]]:
    """Batch normalisation behind convolutions and alone, and a last layer of MatMul and Add."""
    f = _Float(seed)
    node = f.builder.node

    def normalisation(x: str, channels: int) -> str:
        numbers = [f.rng.standard_normal(channels) * 0.3 + offset for offset in (1.0, 0.0, 0.0)]
        numbers.append(f.rng.uniform(0.5, 1.5, channels))
        return node("BatchNormalization", [x, *(f.constant(values.astype(np.float32)) for values in numbers)])

    x = f.builder.float_input("x", (1, 3, 24, 20))
    y = node("Relu", [normalisation(f.conv(x, 3, 9, stride=2), 9)])
    y = node("Relu", [normalisation(node("Add", [y, f.conv(y, 9, 9)]), 9)])
    y = node("Flatten", [node("GlobalAveragePool", [f.conv(y, 9, 14, act="relu")])])
    y = node("MatMul", [y, f.constant(f.rng.standard_normal((14, 6)).astype(np.float32))])
    y = node("Add", [y, f.constant(f.rng.standard_normal(6).astype(np.float32))])
    f.builder.float_output(y, (1, 6))
    return f.builder.model(), (1, 3, 24, 20)


NETWORKS = {"resnet": resnet, "mobilenet": mobilenet, "silu_neck": silu_neck, "normalised": normalised}
"""Networks of real numbers by name."""


def quantised(name: str, seed: int = 0, *, unsigned: bool, per_channel: bool) -> tuple[bytes, tuple[int, ...]]:
    """One of ``NETWORKS`` as ONNX Runtime's ``quantize_static`` makes a QDQ file of it, and its input's shape."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model, shape = NETWORKS[name](seed)
    rng = np.random.default_rng(seed + 1)
    pictures = iter([{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(6)])

    class Pictures(CalibrationDataReader):
        def get_next(self) -> Any:
            return next(pictures, None)

    with tempfile.TemporaryDirectory() as folder:
        before, after = pathlib.Path(folder) / "before.onnx", pathlib.Path(folder) / "after.onnx"
        onnx.save(model, before)
        quantize_static(
            before,
            after,
            Pictures(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8 if unsigned else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
        return after.read_bytes(), shape


def run_reference(data: bytes, inputs: dict[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime makes of a file, with nothing fused: real numbers between integers, as the file says."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))
