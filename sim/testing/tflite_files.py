"""Builds TFLite files of any kind, operator by operator, and runs them in the runtime's reference kernels.

Nothing here knows what Rondo can do: the files are test material for its reader, good ones and bad ones.

    b = FileBuilder()
    x = b.input("x", (1, 8, 8, 3), "int8", 0.05, -3)
    w = b.constant("w", weights, scales=[0.01], zero_points=[0])
    y = b.tensor("y", (1, 4, 4, 8), "int8", 0.1, 0)
    b.operator("CONV_2D", [x, w, -1], [y], {"padding": "SAME", "stride_h": 2, "stride_w": 2})
    b.output(y)
    results = run_reference(b.serialise(), {"x": image})
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "RNN": "RNNOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
}
"""Tables of options whose names do not follow from the operator's."""

_ENUMS = {
    "padding": schema.Padding,
    "fusedActivationFunction": schema.ActivationFunctionType,
    "weightsFormat": schema.FullyConnectedOptionsWeightsFormat,
    "mode": schema.MirrorPadMode,
    "quantizedBiasType": schema.TensorType,
    "inDataType": schema.TensorType,
    "outDataType": schema.TensorType,
    "outputType": schema.TensorType,
    "outType": schema.TensorType,
    "idxOutType": schema.TensorType,
}
"""Enumerations of the fields that take one."""

_SECOND = """
ADD AVERAGE_POOL_2D ABS ARG_MAX ARG_MIN BATCH_MATMUL BATCH_TO_SPACE_ND CONCATENATION DEPTH_TO_SPACE DEQUANTIZE
EQUAL EXP GATHER GREATER GREATER_EQUAL L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGISTIC LOG_SOFTMAX
MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NOT_EQUAL PACK PAD PADV2 REDUCE_MAX REDUCE_MIN RELU RELU6
RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RSQRT SELECT SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT
SPLIT_V SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TOPK_V2 TRANSPOSE TRANSPOSE_CONV UNPACK
"""

_INT8_VERSIONS = {
    **dict.fromkeys(_SECOND.split(), 2),
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
}
"""Version of an operator in which int8 came to it, where that is not the first."""

_DTYPES = {value: key.lower() for key, value in vars(schema.TensorType).items() if not key.startswith("_")}


def dtype_of(code: int) -> str:
    """NumPy's name of a number of ``TensorType``."""
    return _DTYPES[code]


class FileBuilder:
    """A model file in the making.

    Tensors are numbers, valid in the subgraph in which they were made; -1 is an absent optional input. Nothing is
    checked beyond names of operators and options, so that wrong files can be built too.
    """

    def __init__(self, name: str = "main") -> None:
        self.model: Any = schema.ModelT()
        self.model.version, self.model.description = 3, name
        self.model.subgraphs, self.model.operatorCodes = [], []
        self.model.buffers = [schema.BufferT()]  # the first is empty, for tensors without data
        self._codes: dict[tuple[str, str | None], int] = {}
        self.subgraph(name)

    def subgraph(self, name: str) -> int:
        """Begin another subgraph, to which all later calls belong. Returns its number; the first is there already."""
        graph: Any = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators, graph.inputs, graph.outputs = name, [], [], [], []
        self.model.subgraphs.append(graph)
        self.graph: Any = graph
        return len(self.model.subgraphs) - 1

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "int8",
        scale: ArrayLike | None = None,
        zero_point: ArrayLike = 0,
        *,
        dimension: int = 0,
        signature: Sequence[int] | None = None,
        variable: bool = False,
        buffer: int = 0,
    ) -> int:
        """Add a tensor.

        Parameters
        ----------
        name, shape
            As stored.
        dtype
            NumPy's name of the type.
        scale, zero_point
            One number each, or one for every slice along `dimension`; no scale: no quantisation.
        signature
            The shape with -1 where it may vary.
        variable
            Whether it keeps its value between calls.
        buffer
            Number of the buffer with its data; 0 for none.
        """
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name, np.asarray(shape, np.int32), buffer
        tensor.type, tensor.isVariable, tensor.hasRank = getattr(schema.TensorType, dtype.upper()), variable, True
        tensor.quantization = schema.QuantizationParametersT()
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            tensor.quantization.scale = scales
            tensor.quantization.zeroPoint = np.array(np.broadcast_to(np.asarray(zero_point, np.int64), scales.shape))
            tensor.quantization.quantizedDimension = dimension
        if signature is not None:
            tensor.shapeSignature = np.asarray(signature, np.int32)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "int8",
        scale: ArrayLike | None = None,
        zero_point: ArrayLike = 0,
        *,
        signature: Sequence[int] | None = None,
    ) -> int:
        """Add a tensor that is an input of the subgraph."""
        number = self.tensor(name, shape, dtype, scale, zero_point, signature=signature)
        self.graph.inputs.append(number)
        return number

    def constant(
        self,
        name: str,
        array: ArrayLike,
        scales: ArrayLike | None = None,
        zero_points: ArrayLike | None = None,
        dimension: int = 0,
    ) -> int:
        """Add a tensor with data; the array's type (Python integers: int32) becomes the tensor's."""
        if not isinstance(array, np.ndarray | np.generic):
            array = np.asarray(array)
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        array = np.asarray(array)
        number = self.buffer(array.tobytes())
        points = 0 if zero_points is None else zero_points
        return self.tensor(name, array.shape, array.dtype.name, scales, points, dimension=dimension, buffer=number)

    def buffer(self, data: bytes) -> int:
        """Add a buffer; return its number."""
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> None:
        """Append a builtin operator.

        `options` are fields of its table of options, spelled as in the schema (``stride_h``) or as in Python
        (``strideH``); enumerations by their names. The fields left out are those of a new table: 0, except that
        strides, dilations and the depth multiplier are 1. `version` follows from the types of the inputs; the file
        gets the highest version of all operators of the name, as the converter does it.
        """
        if not hasattr(schema.BuiltinOperator, name):
            raise ValueError(f"TFLite has no operator {name}")
        table = self._table(name)
        if options and table is None:
            raise ValueError(f"{name} has no options")
        if version is None:
            version = self._version(name, inputs, outputs, options or {})
        op = self._append(name, None, version, inputs, outputs)
        if table is not None:
            op.builtinOptionsType = getattr(schema.BuiltinOptions, table)
            op.builtinOptions = _options(table, options or {})

    def custom(self, code: str, inputs: Sequence[int], outputs: Sequence[int], options: bytes = b"") -> None:
        """Append a custom operator."""
        op = self._append("CUSTOM", code, 1, inputs, outputs)
        op.customOptions = np.frombuffer(options, np.uint8)

    def output(self, *tensors: int) -> None:
        """Make tensors outputs of the subgraph."""
        self.graph.outputs.extend(tensors)

    def serialise(self) -> bytes:
        """The bytes of the file."""
        return pack(self.model)

    def _append(self, name: str, custom: str | None, version: int, inputs: Any, outputs: Any) -> Any:
        key = (name, custom)
        if key not in self._codes:
            code = schema.OperatorCodeT()
            code.builtinCode = getattr(schema.BuiltinOperator, name)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
            code.customCode, code.version = custom, version
            self._codes[key] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(code)
        code = self.model.operatorCodes[self._codes[key]]
        code.version = max(code.version, version)
        op = schema.OperatorT()
        op.opcodeIndex = self._codes[key]
        op.inputs, op.outputs = np.asarray(inputs, np.int32), np.asarray(outputs, np.int32)
        self.graph.operators.append(op)
        return op

    def _table(self, name: str) -> str | None:
        if name in _OPTIONS:
            return _OPTIONS[name]
        if name.startswith("REDUCE_") and name != "REDUCE_WINDOW":
            return "ReducerOptions"
        wanted = name.replace("_", "").lower() + "options"
        return next((table for table in vars(schema.BuiltinOptions) if table.lower() == wanted), None)

    def _version(self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: Mapping[str, Any]) -> int:
        tensors = [self.graph.tensors[i] for i in inputs if i >= 0]
        kinds = {t.type for t in tensors} | {self.graph.tensors[i].type for i in outputs}
        eight = schema.TensorType.INT8 in kinds
        version = _INT8_VERSIONS.get(name, 1) if eight else 1
        if eight and name == "FULLY_CONNECTED":
            if len(inputs) == 2 or inputs[2] < 0:
                version = 6
            elif options.get("keep_num_dims") or options.get("keepNumDims"):
                version = 5
            scales = tensors[1].quantization.scale if len(tensors) > 1 else None
            version = 12 if scales is not None and len(scales) > 1 else version
        elif eight and name == "CONV_2D" and len(tensors) > 1 and len(tensors[1].shape) == 4:
            version = 6 if tensors[0].shape[-1:] != tensors[1].shape[-1:] else version
        elif name == "TRANSPOSE_CONV" and len(inputs) > 3:
            version = 3
        elif name == "QUANTIZE" and tensors and tensors[0].type != schema.TensorType.FLOAT32:
            version = 2
        elif name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR") and any(options.values()):
            version = 3
        return version


def pack(model: Any) -> bytes:
    """The bytes of a model of the object API (``ModelT``)."""
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def unpack(data: bytes) -> Any:
    """The model of the object API (``ModelT``) of a sound file."""
    return schema.ModelT.InitFromPackedBuf(data)


def run_reference(
    data: bytes, inputs: Mapping[str, Array], *, all_tensors: bool = False, reference: bool = True
) -> dict[str, Array]:
    """Run a file in the runtime with its reference kernels.

    Parameters
    ----------
    data
        The file. The runtime may crash the process on a broken one.
    inputs
        Arrays of the file's types and shapes by name, for every input.
    all_tensors
        Return every tensor that has a value, not only the outputs.
    reference
        False: the runtime's fast kernels, whose results may differ.

    Returns
    -------
    dict
        Arrays by the tensors' names.

    Raises
    ------
    ValueError, RuntimeError
        The runtime's own errors.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kernels = OpResolverType.BUILTIN_REF if reference else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(
        model_content=data,
        experimental_op_resolver_type=kernels,
        experimental_preserve_all_tensors=all_tensors,
    )
    interpreter.allocate_tensors()
    places = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
    if set(places) != set(inputs):
        raise ValueError(f"the file's inputs are {sorted(places)}, not {sorted(inputs)}")
    for name, array in inputs.items():
        interpreter.set_tensor(places[name], array)
    interpreter.invoke()
    results: dict[str, Array] = {}
    for detail in interpreter.get_tensor_details() if all_tensors else interpreter.get_output_details():
        try:
            results[detail["name"]] = interpreter.get_tensor(detail["index"])
        except ValueError:  # optional or scratch tensors have no value
            if not all_tensors:
                raise
    return results


def _options(table: str, fields: Mapping[str, Any]) -> Any:
    options = getattr(schema, table + "T")()
    for field in ("strideH", "strideW", "dilationHFactor", "dilationWFactor", "depthMultiplier"):
        if hasattr(options, field):
            setattr(options, field, 1)
    for field, value in fields.items():
        field = re.sub(r"_(\w)", lambda match: match[1].upper(), field)
        if not hasattr(options, field):
            raise ValueError(f"{table} has no field {field}")
        if isinstance(value, str) and field in _ENUMS:
            value = getattr(_ENUMS[field], value)
        setattr(options, field, value)
    return options
