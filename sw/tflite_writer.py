"""Writes a quantised graph as a TFLite model file.

Padding that TFLite cannot express on the operator becomes PAD (with the zero point) or PADV2 (with -128, for a
max-pool) before a VALID operator; SiLU becomes LOGISTIC and MUL.  Every tensor of the graph keeps its name; the tensors
in between are called after the output they lead to, with a suffix after a slash.

The package `ai-edge-litert`, which brings the schema, is imported only when a file is written.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import (
    SIGMOID_SCALE,
    SIGMOID_ZERO_POINT,
    activation_bounds,
    relu_table,
    sigmoid_table,
    silu_table,
)
from sw.graph import (
    NO_CLAMP,
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    GraphError,
    MaxPool,
    Operator,
    Padding,
    Pair,
    Shape,
    Tensor,
    Upsample,
)

_FUSED = ("none", "relu", "relu6", "relu_n1_to_1")
"""Activations that TFLite fuses into operators."""

_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3}
"""Versions of operators that are not 2, the version in which int8 came to most."""


def write(graph: Graph, path: Path) -> None:
    """Write `graph` to the file `path`.  Raises as `serialise` does."""
    path.write_bytes(serialise(graph))


def serialise(graph: Graph) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    GraphError
        If TFLite has no such operator: a table that it would not use, a clamp that is no fused activation, padding of
        an average-pool that is not SAME, factors that do not follow from scales, a single rounding.
    ModuleNotFoundError
        If `ai-edge-litert` is not installed.
    """
    return _Writer(graph).bytes()


def is_same(op: MaxPool | AveragePool, shape: Shape) -> bool:
    """Return whether TFLite's SAME gives exactly the padding of `op` on an input of `shape`."""

    def edges(size: int, kernel: int, stride: int) -> tuple[int, int]:
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2

    vertical = edges(shape[0], op.kernel[0], op.stride[0])
    horizontal = edges(shape[1], op.kernel[1], op.stride[1])
    return Padding(*vertical, *horizontal) == op.padding


def _schema() -> tuple[ModuleType, ModuleType]:
    try:
        import flatbuffers
        from ai_edge_litert import schema_py_generated
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("TFLite files need the package 'ai-edge-litert': install it first") from error
    return schema_py_generated, flatbuffers


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.schema, self.flatbuffers = _schema()
        self.buffers: list[Any] = [self.schema.BufferT()]  # the first is empty, for tensors without data
        self.tensors: list[Any] = []
        self.operators: list[Any] = []
        self.codes: dict[str, int] = {}
        self.index: dict[str, int] = {}
        for tensor in graph.tensors.values():
            self.index[tensor.name] = self._activation(tensor)
        for op in graph.operators:
            self._operator(op)

    def bytes(self) -> bytes:
        schema = self.schema
        subgraph = schema.SubGraphT()
        subgraph.tensors, subgraph.operators, subgraph.name = self.tensors, self.operators, self.graph.name
        subgraph.inputs = [self.index[name] for name in self.graph.inputs]
        subgraph.outputs = [self.index[name] for name in self.graph.outputs]
        model = schema.ModelT()
        model.version, model.description = 3, self.graph.name
        model.subgraphs, model.buffers = [subgraph], self.buffers
        model.operatorCodes = [self._code(name) for name in self.codes]
        builder = self.flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _code(self, name: str) -> Any:
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = _VERSIONS.get(name, 2)
        return code

    def _tensor(self, name: str, shape: Sequence[int], kind: int, buffer: int, scales: Any, zero_points: Any) -> int:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, np.asarray(shape, np.int32), kind, buffer
        tensor.quantization = self.schema.QuantizationParametersT()
        if scales is not None:
            tensor.quantization.scale = np.asarray(scales, np.float32)
            tensor.quantization.zeroPoint = np.asarray(zero_points, np.int64)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _activation(self, tensor: Tensor) -> int:
        kind = self.schema.TensorType.INT8
        return self._tensor(tensor.name, (1, *tensor.shape), kind, 0, [tensor.scale], [tensor.zero_point])

    def _constant(
        self, name: str, data: NDArray[Any], scales: Any = None, zero_points: Any = None, dimension: int = 0
    ) -> int:
        kinds = {"int8": self.schema.TensorType.INT8, "int32": self.schema.TensorType.INT32}
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        self.buffers.append(buffer)
        index = self._tensor(name, data.shape, kinds[data.dtype.name], len(self.buffers) - 1, scales, zero_points)
        self.tensors[index].quantization.quantizedDimension = dimension
        return index

    def _emit(self, name: str, inputs: Sequence[int], output: int, options: str | None, **fields: Any) -> None:
        op = self.schema.OperatorT()
        op.opcodeIndex = self.codes.setdefault(name, len(self.codes))
        op.inputs, op.outputs = list(inputs), [output]
        if options is not None:
            op.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            op.builtinOptions = getattr(self.schema, options + "T")()
            for field, value in fields.items():
                assert hasattr(op.builtinOptions, field), field
                setattr(op.builtinOptions, field, value)
        self.operators.append(op)

    def _operator(self, op: Any) -> None:
        inputs = [self.index[name] for name in op.inputs]
        output = self.index[op.output]
        match op:
            case Convolution():
                self._convolution(op, inputs[0], output)
            case Activation():
                self._table(op, inputs[0], output)
            case Addition():
                self._emit("ADD", inputs, output, "AddOptions", fusedActivationFunction=self._fused(op, op.clamp))
            case MaxPool():
                self._pool(op, "MAX_POOL_2D", inputs[0], output)
            case AveragePool():
                self._pool(op, "AVERAGE_POOL_2D", inputs[0], output)
            case Concatenation():
                self._emit("CONCATENATION", inputs, output, "ConcatenationOptions", axis=3)
            case Upsample():
                height, width, _ = self.graph.output_shape(op)
                size = self._constant(f"{op.output}/size", np.array([height, width], np.int32))
                self._emit("RESIZE_NEAREST_NEIGHBOR", [inputs[0], size], output, "ResizeNearestNeighborOptions")

    def _padded(self, op: Convolution | MaxPool, source: int, value: int | None) -> int:
        """Append a padding with the zero point, or with `value`; return the padded tensor."""
        tensor = self.graph.tensors[op.inputs[0]]
        pad = op.padding
        height, width = tensor.height + pad.top + pad.bottom, tensor.width + pad.left + pad.right
        name = f"{op.output}/pad"
        padded = self._activation(Tensor(name, (height, width, tensor.channels), *tensor.quantisation))
        edges = np.array([[0, 0], [pad.top, pad.bottom], [pad.left, pad.right], [0, 0]], np.int32)
        inputs = [source, self._constant(f"{op.output}/edges", edges)]
        if value is None:
            self._emit("PAD", inputs, padded, "PadOptions")
        else:
            fill = self._constant(f"{op.output}/fill", np.array([value], np.int8), [tensor.scale], [tensor.zero_point])
            self._emit("PADV2", [*inputs, fill], padded, "PadV2Options")
        return padded

    def _convolution(self, op: Convolution, source: int, output: int) -> None:
        if op.padding != Padding():
            source = self._padded(op, source, None)
        if op.requantisation is not None or op.single_rounding:
            raise GraphError(f"{op.name}: TFLite derives the factors from the scales; there is no place for others")
        zeros = np.zeros(len(op.bias), np.int64)
        depthwise = op.groups > 1 and op.weights.shape[3] == 1
        data = op.weights.transpose(3, 1, 2, 0) if depthwise else op.weights
        weights = self._constant(
            f"{op.output}/weights", np.ascontiguousarray(data), op.weight_scales, zeros, 3 if depthwise else 0
        )
        scale_in = np.float32(self.graph.tensors[op.inputs[0]].scale)
        bias = self._constant(f"{op.output}/bias", op.bias, scale_in * op.weight_scales, zeros)
        options = {"depthMultiplier": len(op.bias) // op.groups} if depthwise else {}
        self._emit(
            "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
            [source, weights, bias],
            output,
            "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions",
            padding=self.schema.Padding.VALID,
            strideH=op.stride[0],
            strideW=op.stride[1],
            dilationHFactor=op.dilation[0],
            dilationWFactor=op.dilation[1],
            fusedActivationFunction=self._fused(op, op.clamp),
            **options,
        )

    def _fused(self, op: Operator, clamp: Pair) -> int:
        """The fused activation that bounds an operator's output so."""
        if clamp == NO_CLAMP:
            return self.schema.ActivationFunctionType.NONE
        for kind in _FUSED:
            if clamp == activation_bounds(kind, *self.graph.tensors[op.output].quantisation):
                return getattr(self.schema.ActivationFunctionType, kind.upper())
        raise GraphError(f"{op.name}: no fused activation of TFLite bounds values to {clamp}")

    def _pool(self, op: MaxPool | AveragePool, name: str, source: int, output: int) -> None:
        padding = self.schema.Padding.VALID
        if op.padding != Padding() and is_same(op, self.graph.tensors[op.inputs[0]].shape):
            padding = self.schema.Padding.SAME
        elif op.padding != Padding():
            if isinstance(op, AveragePool):
                raise GraphError(f"{op.name}: TFLite pads an average-pool only as SAME does, not by {op.padding}")
            source = self._padded(op, source, -128)
        self._emit(
            name,
            [source],
            output,
            "Pool2DOptions",
            padding=padding,
            strideH=op.stride[0],
            strideW=op.stride[1],
            filterHeight=op.kernel[0],
            filterWidth=op.kernel[1],
            fusedActivationFunction=self._fused(op, op.clamp),
        )

    def _table(self, op: Activation, source: int, output: int) -> None:
        before, after = self.graph.tensors[op.inputs[0]], self.graph.tensors[op.output]
        match op.kind:
            case "sigmoid":
                table = sigmoid_table(*before.quantisation)
                if after.quantisation != (SIGMOID_SCALE, SIGMOID_ZERO_POINT):
                    raise GraphError(f"{op.name}: TFLite wants quantisation (1/256, -128), not {after.quantisation}")
                self._emit("LOGISTIC", [source], output, None)
            case "silu":
                table = silu_table(*before.quantisation, *after.quantisation)
                middle = Tensor(f"{op.output}/logistic", after.shape, SIGMOID_SCALE, SIGMOID_ZERO_POINT)
                sigmoid = self._activation(middle)
                self._emit("LOGISTIC", [source], sigmoid, None)
                self._emit("MUL", [source, sigmoid], output, "MulOptions")
            case _:
                ceiling = 6.0 if op.kind == "relu6" else None
                table = relu_table(*before.quantisation, *after.quantisation, ceiling)
                self._emit(op.kind.upper(), [source], output, None)
        if not np.array_equal(table, op.table):
            raise GraphError(f"{op.name}: the table is not that of {op.kind} between these quantisations")
