"""An ONNX file, checked as far as everything else relies on it. The file is not trusted."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from sw.reader.model import Array, ModelError
from sw.reader.onnx_runtime import onnx_runtime

OPSETS = range(13, 27)
"""Versions of the operator set that are read."""
MOST_ELEMENTS = (1 << 31) - 1
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_LARGEST_FILE = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node; an input that is left out is ''."""

    number: int
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    def input(self, index: int) -> str:
        """An input; '' where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""


class OnnxFile:
    """Nodes in order, constants, shapes and types of all tensors.

    Nodes that depend on constants alone are computed, and are only in ``all_nodes``, which has every node by its
    number.

    Raises
    ------
    ModelError
        If the file is damaged or not valid, has parts in other files, subgraphs, another version of the operator set,
        or shapes that are not fixed (but for the batch, which becomes 1).
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.name = name
        if len(content) > _LARGEST_FILE:
            raise ModelError(f"the file has {len(content):,} bytes; at most {_LARGEST_FILE:,} can be read")
        try:
            model = onnx.load_model_from_string(content)
        except (DecodeError, ValueError, TypeError) as error:
            raise ModelError(f"it is no ONNX file: {error}") from None
        self._check(model)
        _fix_batch(model)
        try:
            self._model: Any = onnx.load_model_from_string(onnx_runtime().infer(model.SerializeToString()))
        except DecodeError as error:
            raise ModelError(f"the file is damaged: {error}") from None
        graph = self._model.graph
        self.constants: dict[str, Array] = {tensor.name: _array(tensor) for tensor in graph.initializer}
        self._infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
        self.inputs = tuple(info.name for info in graph.input if info.name not in self.constants)
        self.outputs = tuple(dict.fromkeys(info.name for info in graph.output))
        nodes = [self._node(number, node) for number, node in enumerate(graph.node)]
        self.all_nodes = nodes
        self._check_order(nodes)
        self._compute_constants(nodes)
        self.nodes = [node for node in nodes if not all(output in self.constants for output in node.outputs if output)]
        for port in (*self.inputs, *self.outputs):
            self.shape(port)

    def _check(self, model: Any) -> None:
        if not model.graph.node:
            raise ModelError("the network has no nodes")
        versions = {entry.domain: entry.version for entry in model.opset_import}
        version = versions.get("", versions.get("ai.onnx"))
        if version is None:
            raise ModelError("the file names no version of the operator set")
        if version not in OPSETS:
            raise ModelError(
                f"the file has version {version} of the operator set; {OPSETS.start} to {OPSETS.stop - 1} are read"
            )
        if model.functions:
            raise ModelError("the file has functions of its own; that is not supported")
        if model.graph.sparse_initializer:
            raise ModelError("the file has sparse tensors; that is not supported")
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
                raise ModelError(f"tensor {tensor.name!r} lies in another file; that is not supported")
        for number, node in enumerate(model.graph.node):
            if node.domain not in _DOMAINS:
                raise ModelError(f"{node.domain}.{node.op_type} (node {number}) is no operator of ONNX itself")
            for attribute in node.attribute:
                if attribute.HasField("g") or attribute.graphs:
                    raise ModelError(f"{node.op_type} (node {number}): control flow is not supported")
                if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                    raise ModelError(f"{node.op_type} (node {number}): sparse tensors are not supported")
                for tensor in (attribute.t, *attribute.tensors):
                    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
                        raise ModelError(f"{node.op_type} (node {number}): its data lie in another file")

    def _node(self, number: int, node: Any) -> OnnxNode:
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        try:
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        except ValueError as error:
            raise ModelError(f"{kind} (node {number}): {error}") from None
        if not any(node.output):
            raise ModelError(f"{kind} (node {number}) makes nothing")
        return OnnxNode(number, kind, tuple(node.input), tuple(node.output), attributes)

    def _check_order(self, nodes: Sequence[OnnxNode]) -> None:
        made = {*self.inputs, *self.constants, ""}
        for node in nodes:
            for name in node.inputs:
                if name not in made:
                    raise ModelError(f"{self.place(node)} reads {name!r} before it is made")
            for name in node.outputs:
                if name and name in made:
                    raise ModelError(f"{self.place(node)} makes {name!r}, which is there already")
                made.add(name)
        for name in self.outputs:
            if name not in made:
                raise ModelError(f"output {name!r} is made by no node")

    def _compute_constants(self, nodes: Sequence[OnnxNode]) -> None:
        """Values of all that depends on nothing that changes; dequantised constants stay nodes, to be looked at."""
        known = set(self.constants)
        chosen = []
        for node in nodes:
            if node.kind == "DequantizeLinear":
                continue
            if node.kind == "Shape":
                sizes = np.array(self.shape(node.inputs[0]), np.int64)
                self.constants[node.outputs[0]] = sizes[node.attributes.get("start", 0) : node.attributes.get("end")]
                known.add(node.outputs[0])
            elif all(name in known or not name for name in node.inputs):
                known.update(filter(None, node.outputs))
                chosen.append(node)
        outputs = [name for node in chosen for name in node.outputs if name]
        if outputs:
            model = self.submodel([node.number for node in chosen], [], outputs)
            self.constants |= dict(zip(outputs, onnx_runtime().run(model, {}), strict=True))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises ``ModelError`` if it is not fixed."""
        if name in self.constants:
            return self.constants[name].shape
        info = self._infos.get(name)
        if info is None or not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
            raise ModelError(f"the shape of {name!r} is not known; only fixed shapes can be run")
        sizes = []
        for dimension in info.type.tensor_type.shape.dim:
            if not dimension.HasField("dim_value") or dimension.dim_value < 1:
                raise ModelError(f"the shape of {name!r} is not fixed; only fixed shapes can be run")
            sizes.append(int(dimension.dim_value))
        if math.prod(sizes) > MOST_ELEMENTS:
            raise ModelError(f"{name!r} has shape {sizes}, which is too large")
        return tuple(sizes)

    def dtype(self, name: str) -> str:
        """NumPy's name of a tensor's type."""
        if name in self.constants:
            return self.constants[name].dtype.name
        code = self._infos[name].type.tensor_type.elem_type if name in self._infos else 0
        try:
            return helper.tensor_dtype_to_np_dtype(code).name
        except KeyError:
            raise ModelError(f"the type of {name!r} is not known") from None

    def place(self, node: OnnxNode) -> str:
        """A node, for the user."""
        return f"{node.kind} (node {node.number}, output {next(filter(None, node.outputs))!r})"

    def submodel(self, numbers: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """A file with some of the nodes, and the constants that they need."""
        graph = self._model.graph
        chosen = set(numbers)
        wanted = {name for number in chosen for name in graph.node[number].input}
        for node in reversed(self.all_nodes):
            # Constants that are dequantised, and nodes that constants come from.
            if node.number not in chosen and not wanted.isdisjoint(node.outputs) and self._constant_node(node):
                chosen.add(node.number)
                wanted.update(node.inputs)
        small = onnx.ModelProto()
        small.CopyFrom(self._model)
        del small.graph.node[:], small.graph.initializer[:], small.graph.input[:], small.graph.output[:]
        del small.graph.value_info[:]
        small.graph.node.extend(graph.node[number] for number in sorted(chosen))
        small.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in wanted)
        made = {name for number in chosen for name in graph.node[number].output}
        held = {tensor.name for tensor in graph.initializer}
        for name in sorted(wanted - made - held - set(inputs) - {""}):
            small.graph.initializer.append(numpy_helper.from_array(self.constants[name], name))
        small.graph.input.extend(self._info(name) for name in inputs)
        small.graph.output.extend(self._info(name) for name in outputs)
        return small.SerializeToString()

    def _constant_node(self, node: OnnxNode) -> bool:
        return node.kind == "DequantizeLinear" and all(name in self.constants or not name for name in node.inputs)

    def _info(self, name: str) -> Any:
        if name in self._infos:
            return self._infos[name]
        info = onnx.ValueInfoProto()
        info.name = name
        return info


def _array(tensor: Any) -> Array:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"the data of tensor {tensor.name!r} do not fit its shape and type: {error}") from None


def _fix_batch(model: Any) -> None:
    """Make a batch that may vary 1."""
    held = {tensor.name for tensor in model.graph.initializer}
    symbols = set()
    for info in model.graph.input:
        shape = info.type.tensor_type.shape
        if info.name in held or not shape.dim:
            continue
        first = shape.dim[0]
        if not first.HasField("dim_value") or first.dim_value < 1:
            symbols.add(first.dim_param)
            first.dim_value = 1
    for info in (*model.graph.value_info, *model.graph.output):
        for dimension in info.type.tensor_type.shape.dim:
            if dimension.HasField("dim_param") and dimension.dim_param in symbols:
                dimension.dim_value = 1


@functools.lru_cache(maxsize=4)
def _read_once(path: pathlib.Path, stamp: tuple[int, int]) -> OnnxFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    try:
        return OnnxFile(content, path.stem)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_file(path: pathlib.Path) -> OnnxFile:
    """Read and check a file; kept in memory for the next call while it does not change."""
    try:
        status = path.stat()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    return _read_once(path, (status.st_mtime_ns, status.st_size))
