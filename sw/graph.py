"""The quantised graph: int8 tensors and the operators between them.

Shapes are ``(height, width, channels)``; the batch is always 1.  Everything about quantisation follows TFLite: weights
are symmetric with a scale per output channel, activations are asymmetric with a scale and zero point per tensor, biases
are int32.  An activation that only bounds values (ReLU at the output's own scale) is the `clamp` of the operator before
it; any other is an `Activation`, a table from int8 to int8.  Pooling, concatenation and upsampling keep scale and zero
point.

A `Graph` is checked completely when it is made; whoever holds one need not check again.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import AddParameters, quantize_multiplier
from sw.graph_check import check
from sw.operators import (
    ACTIVATIONS,
    NO_CLAMP,
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    GraphError,
    MaxPool,
    Operator,
    Padding,
    Pair,
    Quantisation,
    Requantisation,
    Shape,
    Tensor,
    Upsample,
    window_output,
)

__all__ = [
    "ACTIVATIONS",
    "NO_CLAMP",
    "Activation",
    "Addition",
    "AveragePool",
    "Concatenation",
    "Convolution",
    "Graph",
    "GraphError",
    "MaxPool",
    "Operator",
    "Padding",
    "Pair",
    "Quantisation",
    "Requantisation",
    "Shape",
    "Tensor",
    "Upsample",
    "window_output",
]


class Graph:
    """Operators in topological order over named tensors.

    Parameters
    ----------
    name
        Name of the network.
    inputs, outputs
        Names of the tensors that the host writes and reads.
    tensors
        Every tensor by its name.
    operators
        In an order in which each operator comes after those that make its inputs.

    Raises
    ------
    GraphError
        If the graph is not valid.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        tensors: Mapping[str, Tensor],
        operators: Iterable[Operator],
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.tensors: dict[str, Tensor] = dict(tensors)
        self.operators: tuple[Operator, ...] = tuple(operators)
        check(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.operators)} operators, {len(self.tensors)} tensors)"

    @cached_property
    def _producers(self) -> dict[str, Operator]:
        return {op.output: op for op in self.operators}

    @cached_property
    def _consumers(self) -> dict[str, tuple[Operator, ...]]:
        found: dict[str, list[Operator]] = {name: [] for name in self.tensors}
        for op in self.operators:
            for source in dict.fromkeys(op.inputs):
                found[source].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    def producer(self, name: str) -> Operator | None:
        """Return the operator that makes tensor `name`, None for an input; KeyError if there is no such tensor."""
        if name not in self.tensors:
            raise KeyError(name)
        return self._producers.get(name)

    def consumers(self, name: str) -> tuple[Operator, ...]:
        """Return the operators that read tensor `name`, each once, in order; KeyError if there is no such tensor."""
        return self._consumers[name]

    def output_shape(self, op: Operator) -> Shape:
        """Return the shape of the operator's output."""
        return self.tensors[op.output].shape

    def macs(self, op: Operator) -> int:
        """Return the multiply-accumulates of an operator, padding included; 0 for all but convolutions."""
        if not isinstance(op, Convolution):
            return 0
        height, width, _ = self.output_shape(op)
        return height * width * int(op.weights.size)

    def total_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        return sum(self.macs(op) for op in self.operators)

    def weight_bytes(self) -> int:
        """Return the bytes of all weights, without biases and scales."""
        return sum(int(op.weights.size) for op in self.operators if isinstance(op, Convolution))

    def multipliers(self, op: Convolution) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the requantisation multiplier and shift (positive to the left) of each output channel."""
        if op.requantisation is not None:
            return op.requantisation.multiplier, op.requantisation.shift
        scale_in = self.tensors[op.inputs[0]].scale
        scale_out = self.tensors[op.output].scale
        # Double precision on float32 scales, in this order, as TFLite does it.
        pairs = [quantize_multiplier(scale_in * float(scale) / scale_out) for scale in op.weight_scales]
        table = np.array(pairs, np.int32).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def add_parameters(self, op: Addition) -> AddParameters:
        """Return the constants of an addition."""
        a, b = (self.tensors[name] for name in op.inputs)
        out = self.tensors[op.output]
        return AddParameters.from_scales(*a.quantisation, *b.quantisation, *out.quantisation)
