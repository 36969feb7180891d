"""A TFLite file, checked as far as everything else relies on it. The file is not trusted."""

import copy
import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from sw.reader.model import Array, ModelError
from sw.reader.tflite_runtime import tflite_runtime

SCHEMA_VERSION = 3
MOST_ELEMENTS = (1 << 31) - 1
_LARGEST_FILE = (1 << 31) - 1
_CONTROL_FLOW = frozenset(
    {"IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE"}
)


def _names(enumeration: type) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if not name.startswith("_")}


_OPERATORS = _names(schema.BuiltinOperator)
_TYPES = {value: name.lower() for value, name in _names(schema.TensorType).items()}


@dataclasses.dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of the file. ``name`` is no other tensor's; ``scales`` and ``zero_points`` are empty if it has none.

    ``data`` is None unless it is a constant.
    """

    number: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dimension: int
    data: Array | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator: ``kind`` is its name in the schema, ``inputs`` are tensor numbers, -1 for one that is left out."""

    number: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any

    def option(self, name: str, default: Any = 0) -> Any:
        """A field of the table of options."""
        return default if self.options is None else getattr(self.options, name, default)


class TfliteFile:
    """Tensors and operators of the only subgraph, in an order in which they can run.

    Raises
    ------
    ModelError
        If the file is damaged, the runtime does not take it, or it has control flow, tensors whose shape is not known,
        state, or operators in an order in which they cannot run.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.name = name
        self.content = content
        if len(content) > _LARGEST_FILE:
            raise ModelError(f"the file has {len(content):,} bytes; at most {_LARGEST_FILE:,} can be read")
        if len(content) < 8 or content[4:8] != b"TFL3":
            raise ModelError("it is no TFLite file: bytes 4 to 7 are not TFL3")
        self._described = tflite_runtime().describe(content)
        # The runtime's verifier has accepted the file's structure; what it does not look at may still be wrong.
        try:
            self._model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
        except Exception as error:  # anything can come of a damaged file
            raise ModelError(f"the file is damaged: {type(error).__name__}: {error}") from None
        if self._model.version != SCHEMA_VERSION:
            raise ModelError(f"the file has schema version {self._model.version}, not {SCHEMA_VERSION}")
        self._graph: Any = self._only_graph()
        self.tensors = self._tensors()
        self.inputs = self._ports(self._graph.inputs, "input")
        self.outputs = self._ports(self._graph.outputs, "output")
        self.operators = tuple(self._operator(number, op) for number, op in enumerate(self._graph.operators or ()))
        self._check_order()

    def _only_graph(self) -> Any:
        graphs = self._model.subgraphs or []
        if not graphs:
            raise ModelError("the file has no subgraph")
        if not graphs[0].tensors or not graphs[0].operators:
            raise ModelError("the network has no operators")
        return graphs[0]

    def _tensors(self) -> tuple[FileTensor, ...]:
        taken: set[str] = set()
        tensors = []
        for number, tensor in enumerate(self._graph.tensors):
            try:
                name = _text(tensor.name, "strict") or f"tensor {number}"
            except UnicodeDecodeError:  # the runtime describes no such tensor
                raise ModelError(f"the name of tensor {number} is not UTF-8") from None
            if name in taken:
                name = f"{name} ({number})"
            while name in taken:
                name += "'"
            taken.add(name)
            tensors.append(self._tensor(number, name, tensor))
        return tuple(tensors)

    def _tensor(self, number: int, name: str, tensor: Any) -> FileTensor:
        shape = tuple(int(n) for n in (tensor.shape if tensor.shape is not None else ()))
        dtype = _TYPES.get(tensor.type, f"type {tensor.type}")
        if tensor.isVariable:
            raise ModelError(f"tensor {name!r} keeps its value from one run to the next; that is not supported")
        if tensor.sparsity is not None:
            raise ModelError(f"tensor {name!r} is sparse; that is not supported")
        quantisation = tensor.quantization
        scales = _numbers(quantisation.scale if quantisation is not None else None)
        points = _numbers(quantisation.zeroPoint if quantisation is not None else None)
        if len(points) not in (0, 1, len(scales)):
            raise ModelError(f"tensor {name!r} has {len(scales)} scales and {len(points)} zero points")
        if len(points) != len(scales):
            points = (points or (0,)) * len(scales)
        dimension = int(quantisation.quantizedDimension) if quantisation is not None else 0
        data = self._data(name, tensor, shape, dtype)
        return FileTensor(
            number, name, shape, dtype, tuple(map(float, scales)), tuple(map(int, points)), dimension, data
        )

    def _data(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: str) -> Array | None:
        buffers = self._model.buffers or []
        if not 0 <= tensor.buffer < len(buffers):
            raise ModelError(f"tensor {name!r} names buffer {tensor.buffer}, which does not exist")
        if tensor.externalBuffer:
            raise ModelError(f"tensor {name!r} lies in another file; that is not supported")
        buffer = buffers[tensor.buffer]
        if buffer.data is None or len(buffer.data) == 0:
            if buffer.offset or buffer.size:
                raise ModelError(f"the data of tensor {name!r} lie outside of the structure; that is not supported")
            return None
        if dtype not in ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"):
            return np.asarray(buffer.data, np.uint8)
        raw = np.ascontiguousarray(buffer.data, np.uint8)
        kind = np.dtype(dtype)
        if min(shape, default=1) < 0 or raw.size != math.prod(shape) * kind.itemsize:
            raise ModelError(f"tensor {name!r} is {dtype} {list(shape)}, but has {raw.size} bytes of data")
        return raw.view(kind).reshape(shape)

    def _ports(self, numbers: Any, what: str) -> tuple[int, ...]:
        found = tuple(int(n) for n in (numbers if numbers is not None else ()))
        for number in found:
            if not 0 <= number < len(self.tensors):
                raise ModelError(f"the network has no tensor {number}, which is to be an {what}")
            self.check_static(number)
        if not found:
            raise ModelError(f"the network has no {what}")
        if what == "input" and len(set(found)) != len(found):
            raise ModelError("an input of the network is named twice")
        return found

    def check_static(self, number: int) -> None:
        """Raise ``ModelError`` unless the runtime has the shape and type that the file says, and none is unknown."""
        tensor = self.tensors[number]
        described = self._described.get(number)
        if min(tensor.shape, default=1) < 1:
            raise ModelError(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; only fixed shapes can be run")
        if tensor.size > MOST_ELEMENTS:
            raise ModelError(f"tensor {tensor.name!r} has shape {list(tensor.shape)}, which is too large")
        if described is not None and described.shape != tensor.shape:
            raise ModelError(
                f"tensor {tensor.name!r} has shape {list(tensor.shape)} in the file, but its operator makes "
                f"{list(described.shape)}"
            )
        if described is not None and described.dtype != tensor.dtype:
            raise ModelError(
                f"tensor {tensor.name!r} is {tensor.dtype} in the file, but its operator makes {described.dtype}"
            )

    def _operator(self, number: int, op: Any) -> FileOperator:
        codes = self._model.operatorCodes or []
        if not 0 <= op.opcodeIndex < len(codes):
            raise ModelError(f"operator {number} has code {op.opcodeIndex}, which does not exist")
        code = codes[op.opcodeIndex]
        # Old files have the code in a byte, new ones beside it.
        builtin = max(int(code.builtinCode), int(code.deprecatedBuiltinCode))
        kind = _OPERATORS.get(builtin, f"OPERATOR_{builtin}")
        if kind == "CUSTOM":
            kind = f"CUSTOM {_text(code.customCode)}"
        inputs = tuple(int(n) for n in (op.inputs if op.inputs is not None else ()))
        outputs = tuple(int(n) for n in (op.outputs if op.outputs is not None else ()))
        place = f"{kind} (operator {number})"
        if kind in _CONTROL_FLOW:
            raise ModelError(f"{place}: control flow is not supported")
        for tensor in (*inputs, *outputs):
            if not -1 <= tensor < len(self.tensors) or (tensor == -1 and tensor in outputs):
                raise ModelError(f"{place} names tensor {tensor}, which does not exist")
        if not outputs:
            raise ModelError(f"{place} makes nothing")
        if op.intermediates is not None and len(op.intermediates):
            raise ModelError(f"{place} has intermediate tensors; that is not supported")
        return FileOperator(number, kind, inputs, outputs, op.builtinOptions)

    def _check_order(self) -> None:
        made = set(self.inputs)
        constants = {tensor.number for tensor in self.tensors if tensor.data is not None}
        for number in self.inputs:
            if number in constants:
                raise ModelError(f"input {self.tensors[number].name!r} has data of its own")
        for op in self.operators:
            for number in op.inputs:
                if number >= 0 and number not in made and number not in constants:
                    later = any(number in other.outputs for other in self.operators)
                    fault = "before it is made" if later else "which nobody makes"
                    raise ModelError(
                        f"{self.place(op)} reads tensor {self.tensors[number].name!r}{' ' if later else ', '}{fault}"
                    )
            for number in op.outputs:
                if number in made or number in constants:
                    name = self.tensors[number].name
                    raise ModelError(f"{self.place(op)} makes tensor {name!r}, which is there already")
                described = self._described.get(number)
                if described is not None and described.dtype != self.tensors[number].dtype:
                    name, dtype = self.tensors[number].name, self.tensors[number].dtype
                    raise ModelError(f"{self.place(op)} makes {described.dtype}, but {name!r} is {dtype} in the file")
                made.add(number)
        for number in self.outputs:
            if number not in made:
                raise ModelError(f"output {self.tensors[number].name!r} is made by no operator")

    def place(self, op: FileOperator) -> str:
        """An operator, for the user."""
        return f"{op.kind} (operator {op.number}, output {self.tensors[op.outputs[0]].name!r})"

    def submodel(
        self,
        operators: Sequence[int],
        inputs: Sequence[int],
        outputs: Sequence[int],
        shapes: Mapping[int, tuple[int, ...]] | None = None,
    ) -> bytes:
        """A file with some of the operators and only what they need; ``shapes`` replaces those of tensors."""
        used = {*inputs, *outputs}
        for number in operators:
            used.update(self.operators[number].inputs, self.operators[number].outputs)
        used.discard(-1)
        place = {number: position for position, number in enumerate(sorted(used))}
        place[-1] = -1
        model: Any = copy.copy(self._model)
        graph: Any = copy.copy(self._graph)
        graph.inputs, graph.outputs = [place[n] for n in inputs], [place[n] for n in outputs]
        graph.operators = [self._moved(number, place) for number in operators]
        graph.tensors = []
        model.buffers = [schema.BufferT()]  # the first is empty by convention
        buffers = {0: 0}
        for number in sorted(used):
            tensor = copy.copy(self._graph.tensors[number])
            if tensor.buffer not in buffers:
                buffers[tensor.buffer] = len(model.buffers)
                model.buffers.append(self._model.buffers[tensor.buffer])
            tensor.buffer = buffers[tensor.buffer]
            if shapes and number in shapes:
                tensor.shape, tensor.shapeSignature = list(shapes[number]), None
            graph.tensors.append(tensor)
        model.subgraphs = [graph]
        model.signatureDefs, model.metadata, model.metadataBuffer = None, None, None
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _moved(self, number: int, place: Mapping[int, int]) -> Any:
        """An operator of the schema whose tensors have other numbers."""
        moved: Any = copy.copy(self._graph.operators[number])
        moved.inputs = [place[n] for n in self.operators[number].inputs]
        moved.outputs = [place[n] for n in self.operators[number].outputs]
        return moved


def _text(raw: Any, errors: str = "replace") -> str:
    return raw.decode("utf-8", errors) if isinstance(raw, bytes) else str(raw or "")


def _numbers(values: Any) -> tuple[Any, ...]:
    return () if values is None else tuple(np.asarray(values).tolist())


@functools.lru_cache(maxsize=4)
def _read_once(path: pathlib.Path, stamp: tuple[int, int]) -> TfliteFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    try:
        return TfliteFile(content, path.stem)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_file(path: pathlib.Path) -> TfliteFile:
    """Read and check a file; kept in memory for the next call while it does not change."""
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    return _read_once(path, (status.st_mtime_ns, status.st_size))
