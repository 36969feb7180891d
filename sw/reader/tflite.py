"""Reads a TFLite file: which of its operators become programs for the NPU, and which the host runs."""

import dataclasses
import pathlib
from collections.abc import Mapping
from functools import partial

from sw.graph import Graph
from sw.operators import GraphError, Tensor
from sw.reader.fold import Roots, fold
from sw.reader.model import Array, Binding, HostStage, Model, ModelError, NpuStage, Port, Reference, Values
from sw.reader.nodes import Node, Pad, Pointwise, Reshape
from sw.reader.partition import Part, Role
from sw.reader.stages import Candidate, make_stages
from sw.reader.support import Unsupported
from sw.reader.tflite_file import FileOperator, TfliteFile, read_file
from sw.reader.tflite_operators import OPERATORS, Translator
from sw.reader.tflite_runtime import tflite_runtime

BORDER_KINDS = frozenset(
    {"QUANTIZE", "DEQUANTIZE", "SOFTMAX", "LOG_SOFTMAX", "ARG_MAX", "ARG_MIN", "CAST", "TOPK_V2"}
    | {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"}
)
"""What the host does without being asked at either end of a network."""


def read_tflite(path: pathlib.Path, *, host_fallback: bool = False) -> Model:
    """Read a file.

    Whatever is read gives the same bytes as the runtime's reference kernels (``OpResolverType.BUILTIN_REF``).

    Raises
    ------
    ModelError
        If the file cannot be read, is damaged, or has operators in its middle that the NPU lacks and
        ``host_fallback`` is not set; the message begins with the path.
    """
    file = read_file(path)
    try:
        return _Reader(file, host_fallback).model()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


class _Reader:
    def __init__(self, file: TfliteFile, host_fallback: bool) -> None:
        self.file = file
        self.host_fallback = host_fallback
        self.translator = Translator(file)
        self.nodes: dict[int, list[Node]] = {}
        self.reasons: dict[int, str] = {}
        self._translate()

    def _translate(self) -> None:
        """Nodes of all operators that have them, reasons of all others."""
        tensors: dict[str, Tensor] = {}
        roots = Roots(tensors)
        for op in self.file.operators:
            try:
                nodes = self.translator.nodes(op)
                for number in (*self._read(op), op.outputs[0]):
                    tensors[self._key(number)] = self.translator.tensor(number)
                tensors |= self.translator.extras
                # A function of two tensors becomes a table only where both are functions of one.
                if isinstance(nodes[-1], Pointwise) and roots.common(nodes[-1].inputs) is None:
                    raise Unsupported("the NPU has no such operator for tensors that are no functions of one")
                for node in nodes:
                    _check_fit(node, tensors)
            except Unsupported as reason:
                self.reasons[op.number] = str(reason)
                continue
            self.nodes[op.number] = nodes
            for node in nodes:
                roots.add(node)

    def _read(self, op: FileOperator) -> dict[int, str]:
        """Tensors that an operator reads, constants left out."""
        return {n: self._key(n) for n in op.inputs if n >= 0 and not self.translator.constant(n)}

    # -- parts ----------------------------------------------------------------------------------------------------

    def model(self) -> Model:
        """Cut, fold, and bind."""
        self._check_quantised()
        candidates = [
            Candidate(
                self.file.place(op),
                self._key(op.outputs[0]),
                tuple(self._read(op).values()),
                tuple(self._key(number) for number in op.outputs),
                OPERATORS[op.kind].role if op.number in self.nodes else Role.HOST,
                self.nodes.get(op.number),
                op.kind in BORDER_KINDS,
                self.reasons.get(op.number, ""),
            )
            for op in self.file.operators
        ]
        outputs = tuple(dict.fromkeys(self.file.outputs))
        stages = make_stages(
            candidates,
            [self._key(number) for number in self.file.inputs],
            [self._key(number) for number in outputs],
            host_fallback=self.host_fallback,
            npu=self._npu_stage,
            host=self._host_stage,
        )
        return Model(
            self.file.name,
            tuple(self._port(number) for number in self.file.inputs),
            tuple(self._port(number) for number in outputs),
            stages,
            Reference("TFLite's reference kernels", True, partial(_run_whole, self.file)),
        )

    def _check_quantised(self) -> None:
        """Say so in plain words when a network cannot use the NPU because its numbers are no int8."""
        if any(OPERATORS[self.file.operators[number].kind].role in (Role.HEAVY, Role.LIGHT) for number in self.nodes):
            return
        for op in self.file.operators:
            if op.kind in OPERATORS and OPERATORS[op.kind].role is Role.HEAVY and op.inputs and op.inputs[0] >= 0:
                tensor = self.file.tensors[op.inputs[0]]
                if tensor.dtype != "int8":
                    what = f"{self.file.place(op)} reads tensor {tensor.name!r}, which is {tensor.dtype}"
                    raise ModelError(f"the network is not quantised to int8: {what}")

    def _key(self, number: int) -> str:
        return self.translator.key(number)

    def _port(self, number: int) -> Port:
        tensor = self.file.tensors[number]
        quantisation = None
        if tensor.dtype in ("int8", "uint8", "int16") and len(tensor.scales) == 1:
            quantisation = (tensor.scales[0], tensor.zero_points[0])
        return Port(tensor.name, tensor.shape, tensor.dtype, quantisation)

    def _npu_stage(self, part: Part) -> NpuStage:
        operators = [self.file.operators[number] for number in part.items]
        nodes = [node for op in operators for node in self.nodes[op.number]]
        numbers = {number for op in operators for number in (*self._read(op), *op.outputs)}
        tensors = {self._key(number): self.translator.tensor(number) for number in sorted(numbers)}
        folded = fold(self.file.name, part.inputs, part.outputs, tensors | self.translator.extras, nodes)
        shapes = {tensor.name: tensor.shape for tensor in self.file.tensors}
        return NpuStage(
            folded.graph,
            tuple(Binding(value, tensor, shapes[value]) for tensor, value in folded.inputs.items()),
            tuple(Binding(value, tensor, shapes[value]) for value, tensor in folded.outputs.items()),
        )

    def _host_stage(self, part: Part) -> HostStage:
        numbers = {tensor.name: tensor.number for tensor in self.file.tensors}
        inputs = [numbers[name] for name in part.inputs]
        outputs = [numbers[name] for name in part.outputs]
        for number in (*inputs, *outputs):
            self.file.check_static(number)
        names = tuple(f"{self.file.operators[n].kind} {n}" for n in part.items)
        model = self.file.submodel(part.items, inputs, outputs)
        expected = [(self.file.tensors[n].shape, self.file.tensors[n].dtype) for n in outputs]
        run = partial(_run_host, model, part.inputs, part.outputs, expected, names)
        return HostStage(part.inputs, part.outputs, names, run)


def _check_fit(node: Node, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``Unsupported`` if a graph would refuse the operator by itself, say for its range of numbers."""
    if isinstance(node, Pad | Pointwise | Reshape):
        return
    ends = {key: dataclasses.replace(tensors[key], name=key) for key in (*node.inputs, node.output)}
    try:
        Graph("operator", tuple(dict.fromkeys(node.inputs)), (node.output,), ends, [node])
    except GraphError as error:
        raise Unsupported(str(error).removeprefix(f"{type(node).__name__} {node.name}: ")) from None


def _run_whole(file: TfliteFile, inputs: Mapping[str, Array]) -> Values:
    """All of a file in the runtime."""
    results = tflite_runtime().run(file.content, [inputs[file.tensors[number].name] for number in file.inputs])
    return {file.tensors[number].name: result for number, result in zip(file.outputs, results, strict=True)}


def _run_host(
    model: bytes,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    expected: list[tuple[tuple[int, ...], str]],
    operators: tuple[str, ...],
    values: Mapping[str, Array],
) -> Values:
    """Run a host stage in the runtime."""
    try:
        results = tflite_runtime().run(model, [values[name] for name in inputs])
    except ModelError as error:
        raise ModelError(f"operators {operators[0]} to {operators[-1]} on the host: {error}") from None
    for name, result, (shape, dtype) in zip(outputs, results, expected, strict=True):
        if result.shape != shape or result.dtype != dtype:
            raise ModelError(f"the host makes {name!r} as {result.dtype} {result.shape}, not {dtype} {shape}")
    return dict(zip(outputs, results, strict=True))
