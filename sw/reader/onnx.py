"""Reads an ONNX file in QDQ form: which of its operators become programs for the NPU, and which the host runs."""

import pathlib
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from sw.operators import Tensor
from sw.reader.fold import Roots, fold
from sw.reader.model import Array, Binding, HostStage, Model, ModelError, NpuStage, Port, Reference, Values
from sw.reader.nodes import Node, Pointwise
from sw.reader.onnx_file import OnnxFile, OnnxNode, read_file
from sw.reader.onnx_groups import CORES, ELEMENTWISE, Group, Groups
from sw.reader.onnx_operators import nodes_of, role
from sw.reader.onnx_runtime import onnx_runtime
from sw.reader.onnx_translator import Translator
from sw.reader.partition import Part, Role
from sw.reader.stages import Candidate, make_stages
from sw.reader.support import Unsupported

BORDER_KINDS = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Softmax", "LogSoftmax", "ArgMax", "Cast", "TopK"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"}
)
"""What the host does without being asked at either end of a network."""
OTHER_FORMS = {
    "QLinearConv": "in QOperator form",
    "QLinearMatMul": "in QOperator form",
    "ConvInteger": "in integer form",
    "MatMulInteger": "in integer form",
    "DynamicQuantizeLinear": "quantised dynamically",
}
"""Operators of quantised files that are not in QDQ form, and what such files are."""


def read_onnx(path: pathlib.Path, *, host_fallback: bool = False) -> Model:
    """Read a file.

    `sw.reader.onnx_operators` says how near the results are to those of a runtime.

    Raises
    ------
    ModelError
        If the file cannot be read, is damaged, is not quantised in QDQ form, or has operators in its middle that the
        NPU lacks and ``host_fallback`` is not set; the message begins with the path.
    """
    file = read_file(path)
    try:
        return _Reader(file, host_fallback).model()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def evaluate_onnx(path: pathlib.Path, inputs: Mapping[str, Array]) -> Values:
    """The outputs of a file as ONNX's reference evaluator computes them. Raises ``ModelError``."""
    return _run_whole(read_file(path), inputs)


def _run_whole(file: OnnxFile, inputs: Mapping[str, Array]) -> Values:
    """All of a file in ONNX's evaluator."""
    numbers = [node.number for node in file.nodes]
    model = file.submodel(numbers, file.inputs, file.outputs)
    return _checked(onnx_runtime().run(model, inputs), _declared(file, file.outputs))


class _Reader:
    def __init__(self, file: OnnxFile, host_fallback: bool) -> None:
        self.file = file
        self.host_fallback = host_fallback
        self.groups = Groups(file)
        self.translator = Translator(file, self.groups)
        self.units: list[Group | OnnxNode] = []
        self.candidates: list[Candidate] = []
        self._translate()

    def _translate(self) -> None:
        """A candidate for each group that the NPU can run, and one for each node that is in none."""
        tensors: dict[str, Tensor] = {}
        roots = Roots(tensors)
        translated: dict[int, list[Node]] = {}
        reasons = dict(self.groups.reasons)
        for number, group in self.groups.groups.items():
            try:
                nodes = nodes_of(self.translator, group)
                tensors |= {name: self.translator.tensor(name) for name in (*group.inputs, group.output)}
                tensors |= self.translator.extras
                if isinstance(nodes[-1], Pointwise) and roots.common(nodes[-1].inputs) is None:
                    raise Unsupported("the NPU has no such operator for tensors that are no functions of one")
            except Unsupported as reason:
                self._blame(group, str(reason), reasons)
                continue
            translated[number] = nodes
            for node in nodes:
                roots.add(node)
        inside = {n for number in translated for n in self.groups.groups[number].numbers}
        inside -= {n.number for n in self.file.nodes if n.kind == "DequantizeLinear"}
        for node in self.file.nodes:
            if node.number in translated:
                group = self.groups.groups[node.number]
                self.units.append(group)
                self.candidates.append(
                    Candidate(
                        self._group_place(group),
                        group.output,
                        group.inputs,
                        (group.output,),
                        role(group),
                        translated[node.number],
                        group.core is not None and group.core.kind in BORDER_KINDS,
                    )
                )
            elif node.number not in inside and not self._constant(node):
                self.units.append(node)
                self.candidates.append(self._host_candidate(node, reasons))

    def _blame(self, group: Group, reason: str, reasons: dict[int, str]) -> None:
        for number in group.numbers:
            if self.file.all_nodes[number].kind != "DequantizeLinear":
                reasons.setdefault(number, reason)

    def _group_place(self, group: Group) -> str:
        nodes = [self.file.all_nodes[n] for n in group.numbers]
        real = [node for node in nodes if node.kind not in ("QuantizeLinear", "DequantizeLinear")]
        node = group.core or (real or nodes)[-1]
        return self.file.place(node)

    def _constant(self, node: OnnxNode) -> bool:
        return all(self.groups.constant(name) for name in node.outputs if name)

    def _host_candidate(self, node: OnnxNode, reasons: Mapping[int, str]) -> Candidate:
        inputs = tuple(dict.fromkeys(x for x in node.inputs if x and not self.groups.constant(x)))
        outputs = tuple(name for name in node.outputs if name)
        reason = reasons.get(node.number) or self._why(node)
        view = node.kind == "DequantizeLinear" and node.outputs[0] not in self.file.outputs
        return Candidate(
            self.file.place(node),
            outputs[0],
            inputs,
            outputs,
            Role.VIEW if view and node.number not in reasons else Role.HOST,
            [] if view and node.number not in reasons else None,
            node.kind in BORDER_KINDS,
            reason,
        )

    def _why(self, node: OnnxNode) -> str:
        """Why a node of which no group speaks is in none."""
        if node.kind not in CORES | ELEMENTWISE:
            return "the NPU has no such operator"
        for name in node.inputs:
            if name and not self.groups.constant(name) and not self.groups.integer(name):
                return f"its input {name!r} is not quantised to int8 or uint8"
        readers = [n for n in self.file.nodes if node.outputs[0] in n.inputs and n.kind != "QuantizeLinear"]
        if readers:
            return f"its result is not quantised before {self.file.place(readers[0])} reads it"
        return "its result is not quantised to int8 or uint8"

    # -- parts ----------------------------------------------------------------------------------------------------

    def model(self) -> Model:
        """Cut, fold, and bind."""
        for node in self.file.nodes:
            if node.kind in OTHER_FORMS:
                raise ModelError(
                    f"{self.file.place(node)}: the file is {OTHER_FORMS[node.kind]}; only QDQ form is read"
                )
        if not self.groups.quantised:
            reason = next((f": {reason}" for reason in self.groups.reasons.values()), "")
            raise ModelError(
                f"the network is not quantised: it has no QuantizeLinear with int8 or uint8 (QDQ form){reason}"
            )
        stages = make_stages(
            self.candidates,
            self.file.inputs,
            self.file.outputs,
            host_fallback=self.host_fallback,
            npu=self._npu_stage,
            host=self._host_stage,
        )
        return Model(
            self.file.name,
            tuple(map(self._port, self.file.inputs)),
            tuple(map(self._port, self.file.outputs)),
            stages,
            Reference("ONNX's reference evaluator", False, partial(_run_whole, self.file)),
        )

    def _port(self, name: str) -> Port:
        quantised = self.groups.quantised.get(name)
        dtype, quantisation = self.file.dtype(name), None
        if np.dtype(dtype).kind not in "biuf" or np.dtype(dtype).isbuiltin != 1:
            raise ModelError(f"{name!r} is {dtype}; inputs and outputs must be numbers of NumPy's own types")
        if quantised is not None:
            quantisation = (quantised.scale, quantised.zero_point + (128 if dtype == "uint8" else 0))
        shape = self.file.shape(name)
        # Some networks take pictures with the channels last, and move them themselves.
        last = len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)
        return Port(name, shape, dtype, quantisation, channels_first=len(shape) == 4 and not last)

    def _npu_stage(self, part: Part) -> NpuStage:
        groups = [unit for unit in (self.units[i] for i in part.items) if isinstance(unit, Group)]
        inside = {group.output for group in groups}
        try:
            nodes = [node for group in groups for node in nodes_of(self.translator, group, inside)]
        except Unsupported as reason:
            raise ModelError(str(reason)) from None
        names = {name for group in groups for name in (*group.inputs, group.output)}
        tensors = {name: self.translator.tensor(name) for name in sorted(names)}
        folded = fold(self.file.name, part.inputs, part.outputs, tensors | self.translator.extras, nodes)
        return NpuStage(
            folded.graph,
            tuple(self._binding(value, tensor) for tensor, value in folded.inputs.items()),
            tuple(self._binding(value, tensor) for value, tensor in folded.outputs.items()),
        )

    def _binding(self, value: str, tensor: str) -> Binding:
        return Binding(value, tensor, self.file.shape(value), self.groups.quantised[value].dtype, channels_first=True)

    def _host_stage(self, part: Part) -> HostStage:
        numbers: list[int] = []
        for unit in (self.units[i] for i in part.items):
            numbers += unit.numbers if isinstance(unit, Group) else (unit.number,)
        numbers = sorted(set(numbers))
        model = self.file.submodel(numbers, part.inputs, part.outputs)
        names = tuple(f"{self.file.all_nodes[n].kind} {n}" for n in numbers)
        declared = _declared(self.file, part.outputs)
        return HostStage(part.inputs, part.outputs, names, partial(_run_host, model, declared, names))


_Declared = dict[str, tuple[tuple[int, ...], str]]


def _declared(file: OnnxFile, names: Iterable[str]) -> _Declared:
    """Shapes and types of tensors, as ONNX's shape inference finds them."""
    return {name: (file.shape(name), file.dtype(name)) for name in names}


def _checked(results: Iterable[Array], declared: _Declared) -> Values:
    """Results by their names, if they are what they must be."""
    values = dict(zip(declared, results, strict=True))
    for name, (shape, dtype) in declared.items():
        if values[name].shape != shape or values[name].dtype != dtype:
            found = f"{values[name].dtype} {list(values[name].shape)}"
            raise ModelError(f"ONNX's evaluator makes {name!r} {found} where {dtype} {list(shape)} is due")
    return values


def _run_host(model: bytes, declared: _Declared, operators: tuple[str, ...], values: Mapping[str, Array]) -> Values:
    """Run a host stage in ONNX's evaluator."""
    try:
        return _checked(onnx_runtime().run(model, values), declared)
    except ModelError as error:
        raise ModelError(f"nodes {operators[0]} to {operators[-1]} on the host: {error}") from None
