"""Finds what the nodes of a QDQ file do to integers: groups from DequantizeLinear to QuantizeLinear.

In such a file every tensor between operators is an integer one, made by QuantizeLinear and read through
DequantizeLinear; the operators themselves compute real numbers. A group is a QuantizeLinear with the operators behind
which it stands, back to integers.
"""

import dataclasses

import numpy as np

from sw.reader.model import Array, ModelError
from sw.reader.onnx_file import OnnxFile, OnnxNode

CLAMPS = ("Relu", "Clip")
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "BatchNormalization")
"""Operators that, with constants, are a factor and an offset for each channel."""
LINEAR = ("Conv", "Gemm", "MatMul")
"""Operators that take in such factors and offsets behind them."""
# fmt: off
ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "Ceil", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
        "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu",
        "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh", "ThresholdedRelu",
    }
)
# fmt: on
"""Operators that compute each element by itself."""
# fmt: off
CORES = frozenset(
    {
        "Conv", "Gemm", "MatMul", "AveragePool", "GlobalAveragePool", "ReduceMean", "MaxPool", "GlobalMaxPool", "Add",
        "Concat", "Resize", "Upsample", "Pad", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
    }
)
# fmt: on
"""Operators that the NPU has a way of its own for."""


@dataclasses.dataclass(frozen=True)
class Quantised:
    """An integer tensor: scale, zero point as int8 has it, type (int8 or uint8)."""

    scale: float
    zero_point: int
    dtype: str


@dataclasses.dataclass(frozen=True, eq=False)
class DequantisedConstant:
    """A constant that goes through DequantizeLinear: numbers, scales and zero points along ``axis``."""

    data: Array
    scales: Array
    zero_points: Array
    axis: int

    def real(self) -> Array:
        """What it stands for, float64."""
        shape = [1] * self.data.ndim
        if self.scales.size > 1:
            shape[self.axis] = self.scales.size
        scales, points = self.scales.astype(np.float64), self.zero_points.astype(np.float64)
        if self.scales.size == 1:
            return (self.data.astype(np.float64) - points.ravel()[0]) * scales.ravel()[0]
        return (self.data.astype(np.float64) - points.reshape(shape)) * scales.reshape(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Nodes that make one integer tensor of others.

    ``core`` is the operator, None for a function of each element; ``arithmetic`` is what is done with constants behind
    it, or without it, in order; ``clamps`` are the Relu and Clip behind that; ``inputs`` are the integer tensors that
    it reads, in the core's order; ``numbers`` all nodes, those that dequantise included.
    """

    core: OnnxNode | None
    clamps: tuple[OnnxNode, ...]
    inputs: tuple[str, ...]
    output: str
    numbers: tuple[int, ...]
    arithmetic: tuple[OnnxNode, ...] = ()


class Groups:
    """All groups of a file, and why other nodes belong to none (``reasons``, by number)."""

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self.producers = {name: node for node in file.nodes for name in node.outputs if name}
        self._readers: dict[str, int] = {}
        for node in file.nodes:
            for name in node.inputs:
                self._readers[name] = self._readers.get(name, 0) + 1
        self.quantised: dict[str, Quantised] = {}
        self.constants: dict[str, DequantisedConstant] = {}
        self.dequantised: dict[str, str] = {}
        """Real tensors by the integer tensors that they come from."""
        self.reasons: dict[int, str] = {}
        self._find_tensors()
        self.groups: dict[int, Group] = {}
        for node in file.nodes:
            if node.kind == "QuantizeLinear":
                group = self._group(node)
                if isinstance(group, str):
                    self.reasons[node.number] = group
                else:
                    self.groups[node.number] = group

    def _parameters(self, node: OnnxNode) -> tuple[Array, Array] | None:
        """Scales and zero points of a node that quantises or dequantises."""
        scale = self.file.constants.get(node.input(1))
        if scale is None or node.attributes.get("block_size"):
            return None
        if node.input(2):
            point = self.file.constants.get(node.input(2))
            if point is None or point.size != scale.size:
                return None
            return scale, point
        integer = node.outputs[0] if node.kind == "QuantizeLinear" else node.input(0)
        default = self.file.dtype(integer)
        return scale, np.zeros(scale.shape, default)

    def _find_tensors(self) -> None:
        for node in self.file.nodes:
            if node.kind not in ("QuantizeLinear", "DequantizeLinear"):
                continue
            parameters = self._parameters(node)
            if parameters is None:
                self.reasons[node.number] = "its scale and zero point are no constants of one kind"
                continue
            scale, point = parameters
            integer = node.outputs[0] if node.kind == "QuantizeLinear" else node.input(0)
            if not bool(np.all(np.isfinite(scale) & (scale > 0))):
                raise ModelError(f"{self.file.place(node)}: a scale of {integer!r} is not positive and finite")
            if integer in self.file.constants:
                axis = int(node.attributes.get("axis", 1))
                data = self.file.constants[integer]
                good = scale.size == 1 or (-data.ndim <= axis < data.ndim and data.shape[axis] == scale.size)
                if good:
                    self.constants[node.outputs[0]] = DequantisedConstant(data, scale, point, axis % max(data.ndim, 1))
                continue
            if scale.size != 1 or point.dtype.name not in ("int8", "uint8"):
                self.reasons[node.number] = f"{integer!r} is {point.dtype} with {scale.size} scales"
                continue
            shift = 128 if point.dtype == np.uint8 else 0
            found = Quantised(float(np.float32(scale.ravel()[0])), int(point.ravel()[0]) - shift, point.dtype.name)
            if self.quantised.setdefault(integer, found) != found:
                self.reasons[node.number] = f"{integer!r} is read with another scale or zero point than it is made with"
            elif node.kind == "DequantizeLinear":
                self.dequantised[node.outputs[0]] = integer

    def integer(self, real: str) -> bool:
        """Whether a real tensor is a dequantised integer one."""
        return real in self.dequantised

    def constant(self, name: str) -> bool:
        """Whether a real tensor is a constant."""
        return name in self.file.constants or name in self.constants

    def _inside(self, name: str) -> bool:
        """Whether nobody but one reader sees a tensor."""
        return self._readers.get(name) == 1 and name not in self.file.outputs

    def _group(self, quantise: OnnxNode) -> Group | str:
        """The group that ends in a node, or why there is none."""
        if quantise.outputs[0] not in self.quantised:
            return self.reasons.get(quantise.number, "it is not quantised as int8 or uint8")
        name, numbers, clamps = quantise.inputs[0], [quantise.number], []
        while name in self.producers and self.producers[name].kind in CLAMPS and self._inside(name):
            node = self.producers[name]
            others = node.inputs[1:]
            if not all(not other or self.constant(other) for other in others):
                break
            clamps.append(node)
            numbers.append(node.number)
            name = node.input(0)
        found = self._with_arithmetic(name)
        if found is not None:
            core, real, arithmetic = found
            numbers += [*(node.number for node in arithmetic), self.producers[real].number]
            numbers += [core.number] if core is not None else []
            inputs, used = (self.dequantised[real],), tuple(sorted(numbers))
            return Group(core, tuple(reversed(clamps)), inputs, quantise.outputs[0], used, arithmetic)
        core = self.producers.get(name)
        if core is not None and core.kind in CORES and self._inside(name):
            reals = [x for x in core.inputs if x and not self.constant(x)]
            if reals and all(map(self.integer, reals)) and not (core.kind == "Add" and len(reals) < 2):
                numbers += [core.number, *(self.producers[x].number for x in reals)]
                inputs = tuple(self.dequantised[x] for x in reals)
                return Group(core, tuple(reversed(clamps)), inputs, quantise.outputs[0], tuple(sorted(set(numbers))))
        return self._expression(quantise)

    def _with_arithmetic(self, name: str) -> tuple[OnnxNode | None, str, tuple[OnnxNode, ...]] | None:
        """The linear operator, if any, the dequantised tensor, and what is done with constants to make a real tensor.

        None if it is not made so, or if a table makes it, which is exact.
        """
        arithmetic: list[OnnxNode] = []
        while name in self.producers and self.producers[name].kind in ARITHMETIC and self._inside(name):
            node = self.producers[name]
            reals = [x for x in node.inputs if not self.constant(x)]
            if len(reals) != 1 or (node.kind == "BatchNormalization" and reals[0] != node.input(0)):
                return None
            arithmetic.insert(0, node)
            name = reals[0]
        core = self.producers.get(name)
        if not arithmetic or core is None:
            return None
        if name in self.dequantised:
            constants = [x for node in arithmetic for x in node.inputs if x != name and self.constant(x)]
            several = any(self._elements(x) != 1 for x in constants)
            return (None, name, tuple(arithmetic)) if several else None
        reals = [x for x in core.inputs if x and not self.constant(x)]
        if core.kind in LINEAR and self._inside(name) and len(reals) == 1 and self.integer(reals[0]):
            return core, reals[0], tuple(arithmetic)
        return None

    def _elements(self, name: str) -> int:
        return self.constants[name].data.size if name in self.constants else self.file.constants[name].size

    def _expression(self, quantise: OnnxNode) -> Group | str:
        """A group that is a function of each element."""
        pending, numbers, inputs = [quantise.inputs[0]], {quantise.number}, dict[str, None]()
        while pending:
            name = pending.pop()
            if self.constant(name):
                continue
            producer = self.producers.get(name)
            if name in self.dequantised and producer is not None:
                inputs[self.dequantised[name]] = None
                numbers.add(producer.number)
                continue
            if producer is None:
                return f"it quantises {name!r}, which is an input of the network"
            if producer.kind not in ELEMENTWISE:
                return f"{self.file.place(producer)} computes real numbers that are not quantised on both sides"
            if name in self.file.outputs:
                return f"{name!r} is an output of the network"
            numbers.add(producer.number)
            pending.extend(x for x in producer.inputs if x)
        if not inputs:
            return "it reads constants alone"
        # Whoever reads something between must be one of us.
        inner = {name for number in numbers for name in self.node(number).outputs} - {quantise.outputs[0]}
        inner -= set(self.dequantised)
        for node in self.file.nodes:
            if node.number not in numbers and not inner.isdisjoint(node.inputs):
                return f"{self.file.place(node)} reads real numbers in the middle of it"
        return Group(None, (), tuple(inputs), quantise.outputs[0], tuple(sorted(numbers)))

    def node(self, number: int) -> OnnxNode:
        """A node by its number."""
        return self.file.all_nodes[number]
