"""From operators as a file has them to a graph: paddings, element-wise functions and reshapes disappear.

Three passes, one for each kind of node of `sw.reader.nodes`.  Reshapes go first, because an element-wise function or a
padding may stand before one; paddings go last, because they end in operators that the others have made.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence

import numpy as np

from hw.spec.numerics import Int8Array, all_int8
from sw.graph import Graph
from sw.operators import Activation, Convolution, GraphError, MaxPool, Operator, Padding, Tensor
from sw.reader.model import ModelError
from sw.reader.nodes import Node, Pad, Pointwise, Reshape


class Unfoldable(ModelError):
    """A node that the NPU could run only as part of another operator, which is not there; ``node`` is its name."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


@dataclasses.dataclass(frozen=True, eq=False)
class Folded:
    """A graph and what its ends stand for.

    ``inputs`` gives the requested tensor for each input of the graph: the same elements in the same order, but perhaps
    under another shape, and perhaps for two inputs the same.  ``outputs`` gives the graph's tensor, likewise, for each
    requested one.
    """

    graph: Graph
    inputs: dict[str, str]
    outputs: dict[str, str]


class Roots:
    """Finds the one tensor of which another is an element-wise function.

    For readers, who must know before they cut a network into parts whether a product of two tensors becomes a table.

    Parameters
    ----------
    tensors
        All tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._roots: dict[str, str] = {}

    def add(self, node: Node) -> None:
        """Take in the next node, in topological order."""
        if isinstance(node, Pointwise):
            root = self.common(node.inputs)
            if root is not None:
                self._roots[node.output] = root
        elif _is_copy(node, self._tensors):
            self._roots[node.output] = self.root(node.inputs[0])

    def root(self, tensor: str) -> str:
        """The tensor from which element-wise functions make ``tensor``; itself, if something else makes it."""
        return self._roots.get(tensor, tensor)

    def common(self, tensors: Sequence[str]) -> str | None:
        """The root of all ``tensors``, or None if they have several: then no table makes one tensor of them."""
        roots = {self.root(tensor) for tensor in tensors}
        return roots.pop() if len(roots) == 1 else None


def fold(
    name: str, inputs: Sequence[str], outputs: Sequence[str], tensors: Mapping[str, Tensor], nodes: Sequence[Node]
) -> Folded:
    """Make the graph that computes ``outputs`` from ``inputs``.

    Nodes that no output needs and inputs that no node reads are left out.  Tensors and operators keep their names;
    where a name comes twice, a number is appended; an operator without a name has that of its output.

    Parameters
    ----------
    name
        Name of the graph.
    inputs, outputs
        Tensors, by their keys in ``tensors``.
    tensors
        Every tensor that is an input or that a node makes; its key is what nodes call it.
    nodes
        In topological order.

    Raises
    ------
    Unfoldable
        If a padding, an element-wise function or a reshape stands where no operator can take it in, or an output is one
        of the inputs.
    ModelError
        If nodes and tensors do not fit together, or the result is no valid graph.
    """
    _check(inputs, outputs, tensors, nodes)
    network = _Network(dict(tensors), _alive(nodes, outputs), {x: x for x in inputs}, {y: y for y in outputs})
    for step in (_fold_reshapes, _fold_pointwise, _fold_pads):
        step(network)
    return _finish(name, network)


@dataclasses.dataclass
class _Network:
    """A network between two passes: ``inputs`` and ``outputs`` as in ``Folded``."""

    tensors: dict[str, Tensor]
    nodes: list[Node]
    inputs: dict[str, str]
    outputs: dict[str, str]

    def readers(self) -> dict[str, list[Node | None]]:
        """Who reads each tensor; None stands for the outputs."""
        found: dict[str, list[Node | None]] = {}
        for node in self.nodes:
            for source in node.inputs:
                found.setdefault(source, []).append(node)
        for tensor in self.outputs.values():
            found.setdefault(tensor, []).append(None)
        return found


def _check(inputs: Sequence[str], outputs: Sequence[str], tensors: Mapping[str, Tensor], nodes: Sequence[Node]) -> None:
    made = set(inputs)
    for node in nodes:
        for source in node.inputs:
            if source not in made:
                raise ModelError(f"{node.name} reads tensor {source!r} before it is made")
        if node.output in made:
            raise ModelError(f"{node.name} makes tensor {node.output!r}, which is there already")
        made.add(node.output)
        if not node.inputs or (isinstance(node, Pad | Reshape) and len(node.inputs) != 1):
            raise ModelError(f"{node.name} has {len(node.inputs)} inputs")
    for output in outputs:
        if output not in made:
            raise ModelError(f"output {output!r} is made by no operator")
    for tensor in (*inputs, *(node.output for node in nodes)):
        if tensor not in tensors:
            raise ModelError(f"tensor {tensor!r} has no shape and no quantisation")


def _alive(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    wanted = set(outputs)
    found: list[Node] = []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]


def _is_copy(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a node's output is its input."""
    if isinstance(node, Pad):
        return node.padding == Padding()
    return isinstance(node, Reshape) and tensors[node.output].shape == tensors[node.inputs[0]].shape


def _check_same_quantisation(node: Node, before: Tensor, after: Tensor) -> None:
    if before.quantisation != after.quantisation:
        raise Unfoldable(
            f"{node.name} changes the quantisation from {before.quantisation} to {after.quantisation}", node.name
        )


# ---- Reshapes --------------------------------------------------------------------------------------------------------


def _fold_reshapes(network: _Network) -> None:
    tensors = network.tensors
    copies: dict[str, str] = {}  # tensors that are others, of the same shape
    views: dict[str, tuple[str, Node]] = {}  # tensors that are others under another shape; the node that says so
    # Inputs of the graph, by the requested tensor and what it is seen as.
    ports = {(x, dataclasses.replace(tensors[x], name=x)): x for x in network.inputs}
    kept: list[Node] = []

    def see(node: Node, source: str) -> None:
        """Note that the node's output has the elements of ``source``."""
        before, after = tensors[source], tensors[node.output]
        if before.size != after.size:
            raise ModelError(f"{node.name} makes {after.shape} of {before.shape}, which has another size")
        _check_same_quantisation(node, before, after)
        if before.shape == after.shape:
            copies[node.output] = source
        elif source in network.inputs:
            requested = network.inputs[source]
            port = ports.setdefault((requested, dataclasses.replace(after, name=requested)), node.output)
            network.inputs[port] = requested
            if port != node.output:
                copies[node.output] = port
        else:
            views[node.output] = (source, node)

    for node in network.nodes:
        if isinstance(node, Reshape) or _is_copy(node, tensors):
            if isinstance(node, Pad):
                _check_pad(node, tensors)
            source = copies.get(node.inputs[0], node.inputs[0])
            see(node, views[source][0] if source in views else source)
            continue
        node = dataclasses.replace(node, inputs=tuple(copies.get(source, source) for source in node.inputs))
        for source in node.inputs:
            if source in views:
                node = _read_view(node, source, *views[source], tensors)
        kept.append(node)
    network.nodes = kept
    for requested, tensor in network.outputs.items():
        tensor = copies.get(tensor, tensor)
        network.outputs[requested] = views[tensor][0] if tensor in views else tensor


def _read_view(node: Node, view: str, source: str, reshape: Node, tensors: Mapping[str, Tensor]) -> Node:
    """The node, which reads the flattened ``view`` of ``source``, as one that reads ``source`` itself."""
    shape = tensors[source].shape
    seen = tensors[view].shape
    if not (
        isinstance(node, Convolution)
        and node.weights.ndim == 4
        and node.weights.shape[1:] == (1, 1, tensors[source].size)
        and node.padding == Padding()
        and seen == (1, 1, tensors[source].size)
    ):
        raise Unfoldable(
            f"{reshape.name} makes {seen} of {shape}, but {node.name} is no fully connected layer that takes it in",
            reshape.name,
        )
    weights = np.ascontiguousarray(node.weights).reshape(-1, *shape)
    return dataclasses.replace(node, inputs=(source,), weights=weights, dilation=(1, 1))


# ---- Element-wise functions ------------------------------------------------------------------------------------------


def _fold_pointwise(network: _Network) -> None:
    tensors = network.tensors
    readers = network.readers()
    roots = Roots(tensors)
    identity = all_int8().astype(np.int8)
    tables: dict[str, Int8Array] = {}  # tensors as functions of their roots
    kinds: dict[str, str] = {}
    kept: list[Node] = []
    for node in network.nodes:
        roots.add(node)
        if not isinstance(node, Pointwise):
            kept.append(node)
            continue
        root = roots.common(node.inputs)
        if root is None:
            names = " and ".join(dict.fromkeys(repr(tensors[roots.root(x)].name) for x in node.inputs))
            raise Unfoldable(f"{node.name} combines {names}, which are no functions of one tensor", node.name)
        before, after = tensors[root], tensors[node.output]
        if before.shape != after.shape:
            raise Unfoldable(
                f"{node.name} makes {after.shape} of {before.shape}, so it is no function of each element", node.name
            )
        table = node.function([tables.get(source, identity) for source in node.inputs])
        kind = _kind(node, root, kinds, tensors)
        tables[node.output], kinds[node.output] = table, kind
        if any(not isinstance(reader, Pointwise) for reader in readers[node.output]):
            kept.append(Activation(node.name, (root,), node.output, kind, table))
    network.nodes = kept


def _kind(node: Pointwise, root: str, kinds: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Kind of a node's output as a function of the root; ``kinds`` has those of its inputs, but for the root."""
    others = set(node.inputs) - {root}
    if not others:
        return node.kind
    # Only one node that reads nothing but the root makes a sigmoid.
    if len(node.inputs) == 2 and root in node.inputs and {kinds[other] for other in others} == {"sigmoid"}:
        return "silu" if _is_product(node, tensors) else "table"
    return "table"


def _is_product(node: Pointwise, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a function of two tensors gives zero wherever one of them is zero, as a product does and a sum does not.

    ``Pointwise`` does not say what it is, and to the table it makes no difference: this decides on a name only.
    """
    values = all_int8().astype(np.int8)
    zero = tensors[node.output].zero_point
    for k in range(2):
        arguments = [values, values]
        arguments[k] = np.full_like(values, tensors[node.inputs[k]].zero_point)
        if np.any(node.function(arguments) != zero):
            return False
    return True


# ---- Paddings --------------------------------------------------------------------------------------------------------


def _fold_pads(network: _Network) -> None:
    tensors = network.tensors
    readers = network.readers()
    pads: dict[str, Pad] = {}  # by their output; a pad of a pad reads what the first one reads
    kept: list[Node] = []
    for node in network.nodes:
        if isinstance(node, Pad):
            node = _after_pad(node, pads.get(node.inputs[0]))
            pads[node.output] = node
            _check_pad(node, tensors)
            # What cannot take it in reads what it makes.
            if any(not _takes_in(reader, node, tensors) for reader in readers[node.output]):
                kept.append(_identity(node, tensors))
            continue
        pad = pads.get(node.inputs[0])
        if pad is not None and _takes_in(node, pad, tensors):
            assert isinstance(node, Convolution | MaxPool)
            node = dataclasses.replace(node, inputs=pad.inputs, padding=_sum(node.padding, pad.padding))
        kept.append(node)
    network.nodes = kept


def _after_pad(node: Pad, first: Pad | None) -> Pad:
    if first is None or first.value != node.value:
        return node
    return dataclasses.replace(node, inputs=first.inputs, padding=_sum(first.padding, node.padding))


def _check_pad(node: Pad, tensors: Mapping[str, Tensor]) -> None:
    before, after = tensors[node.inputs[0]], tensors[node.output]
    _check_same_quantisation(node, before, after)
    padding = node.padding
    height = before.height + padding.top + padding.bottom
    width = before.width + padding.left + padding.right
    if after.shape != (height, width, before.channels):
        raise ModelError(f"{node.name} makes {after.shape} of {before.shape} with {padding}")


def _takes_in(reader: Node | None, pad: Pad, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a reader can do the padding itself."""
    match reader:
        case Convolution():
            return pad.value == tensors[pad.output].zero_point
        case MaxPool():
            padding = _sum(reader.padding, pad.padding)
            return (
                pad.value == -128
                and max(padding.top, padding.bottom) < reader.kernel[0]
                and max(padding.left, padding.right) < reader.kernel[1]
            )
        case Pad():
            return pad.value == reader.value
    return False


def _identity(pad: Pad, tensors: Mapping[str, Tensor]) -> Convolution:
    """A convolution that does nothing but pad: every weight and every factor is 1."""
    tensor = tensors[pad.output]
    if pad.value != tensor.zero_point:
        raise Unfoldable(f"{pad.name} pads with {pad.value}, but only {tensor.zero_point} stands for zero", pad.name)
    channels = tensor.channels
    return Convolution(
        pad.name,
        pad.inputs,
        pad.output,
        np.ones((channels, 1, 1, 1), np.int8),
        np.ones(channels, np.float32),
        np.zeros(channels, np.int32),
        padding=pad.padding,
        groups=channels,
    )


def _sum(a: Padding, b: Padding) -> Padding:
    return Padding(a.top + b.top, a.bottom + b.bottom, a.left + b.left, a.right + b.right)


# ---- The graph -------------------------------------------------------------------------------------------------------


def _finish(name: str, network: _Network) -> Folded:
    for requested, tensor in network.outputs.items():
        if tensor in network.inputs:
            requested_name, source = network.tensors[requested].name, network.tensors[network.inputs[tensor]].name
            raise Unfoldable(f"output {requested_name!r} is input {source!r}: there is nothing to compute")
    operators = typing.cast("list[Operator]", network.nodes)
    read = {source for op in operators for source in op.inputs}
    inputs = [tensor for tensor in network.inputs if tensor in read]
    keys = [*inputs, *(op.output for op in operators)]
    tensor_names = dict(zip(keys, _unique([network.tensors[key].name for key in keys]), strict=True))
    operator_names = _unique([op.name or tensor_names[op.output] for op in operators])
    outputs = {requested: tensor_names[tensor] for requested, tensor in network.outputs.items()}
    try:
        graph = Graph(
            name,
            tuple(tensor_names[key] for key in inputs),
            tuple(dict.fromkeys(outputs.values())),
            {tensor_names[key]: dataclasses.replace(network.tensors[key], name=tensor_names[key]) for key in keys},
            [
                dataclasses.replace(
                    op, name=op_name, inputs=tuple(tensor_names[x] for x in op.inputs), output=tensor_names[op.output]
                )
                for op, op_name in zip(operators, operator_names, strict=True)
            ],
        )
    except GraphError as error:
        raise ModelError(str(error)) from None
    return Folded(graph, {tensor_names[key]: network.inputs[key] for key in inputs}, outputs)


def _unique(names: Sequence[str]) -> list[str]:
    """The names, those that came before with a number appended that makes them new."""
    taken = set(names)
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        unique = name
        if name in seen:
            while unique in taken:
                numbers[name] = numbers.get(name, 1) + 1
                unique = f"{name}_{numbers[name]}"
            taken.add(unique)
        seen.add(unique)
        found.append(unique)
    return found
