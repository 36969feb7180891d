"""From the quantised graph to *steps*: what the NPU does in one go and stores once.

Fused, a convolution takes its activation and a residual addition with it; a concatenation or an upsampling is only a
way of reading its sources. Unfused, every tensor that can be materialised is a step of its own; concatenations and
upsamplings stay views unless something other than a convolution reads them.

Element-wise operators run on the array as a depthwise product with ones: the sums are then the values themselves, and
the epilogue does the rest. Average pooling is a depthwise sum, which the epilogue divides.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import AddParameters
from sw.graph import (
    NO_CLAMP,
    Activation,
    Addition,
    AveragePool,
    Concatenation,
    Convolution,
    Graph,
    MaxPool,
    Operator,
    Padding,
    Pair,
    Upsample,
)
from sw.operators import MAX_AVERAGE

IDENTITY_MULTIPLIER = 1 << 30
IDENTITY_SHIFT = 1
"""Multiplier and shift that requantise a value to itself."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One stored tensor that a step reads, as it lies in DRAM.

    ``upsample``: each pixel stands for two by two. ``packed``: a network input with fewer channels than a line.
    """

    tensor: str
    channels: int
    upsample: bool = False
    packed: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class ConvolveStep:
    """Convolution over the channels of all sources side by side, then clamp, table, residual addition and its clamp.

    ``weights`` is int8 ``[cout, kh, kw, cin / groups]`` with ``cin`` the sum of the sources' channels; only a step with
    one source has groups. ``bias`` has the input's zero point folded in (int64 ``[cout]``, used modulo 2**32).
    ``pad_value`` is what pixels outside the input read as. With ``average`` the multiplier is not used: sums are
    divided by the number of pixels of the window that are inside (``divider``).
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    sources: tuple[Source, ...]
    output: str
    weights: NDArray[np.int8]
    bias: NDArray[np.int64]
    multiplier: NDArray[np.int32]
    shift: NDArray[np.int32]
    output_zero_point: int
    pad_value: int
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Padding = Padding()
    groups: int = 1
    average: bool = False
    single_rounding: bool = False
    clamp: Pair = NO_CLAMP
    table: NDArray[np.int8] | None = None
    residual: str | None = None
    add: AddParameters | None = None
    add_clamp: Pair = NO_CLAMP
    macs: int = 0

    @property
    def channels(self) -> int:
        """Input channels."""
        return self.weights.shape[3] * self.groups

    @property
    def diagonal(self) -> bool:
        """Whether output channel c reads input channel c and no other, lane for lane."""
        return not self.sources[0].packed and self.groups == self.channels == self.weights.shape[0]

    @property
    def kernel(self) -> Pair:
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def reads(self) -> tuple[str, ...]:
        return (*(source.tensor for source in self.sources), *([self.residual] if self.residual else []))

    def input_channels(self, first: int, last: int) -> Pair:
        """First input channel, and the one after the last, that output channels ``first .. last - 1`` read."""
        each = self.weights.shape[0] // self.groups
        return first // each * self.weights.shape[3], ((last - 1) // each + 1) * self.weights.shape[3]

    def input_blocks(self, n: int, out_block: int) -> Pair:
        """First block of ``n`` input channels that an output block reads, and how many; with one source only."""
        first, last = self.input_channels(out_block * n, min((out_block + 1) * n, self.weights.shape[0]))
        return first // n, -(-last // n) - first // n


@dataclasses.dataclass(frozen=True, eq=False)
class PoolStep:
    """Window maximum over one stored tensor, clamped."""

    name: str
    kind: str
    operators: tuple[str, ...]
    source: Source
    output: str
    kernel: Pair
    stride: Pair
    padding: Padding
    clamp: Pair = NO_CLAMP
    macs: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.source.tensor,)


Step = ConvolveStep | PoolStep


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """Steps in order, and how tensors that are not stored can be read.

    ``views`` maps each concatenation or upsampling that was not materialised to its sources; ``shapes`` holds the
    shape of every stored tensor, those that lowering invented included; ``aliases`` maps an invented tensor to the
    graph tensor whose values it holds.
    """

    graph: Graph
    steps: tuple[Step, ...]
    shapes: dict[str, tuple[int, int, int]]
    views: dict[str, tuple[Source, ...]]
    aliases: dict[str, str]

    @property
    def stored(self) -> tuple[str, ...]:
        return tuple(step.output for step in self.steps)


def lower(graph: Graph, n: int, *, fused: bool = True) -> Lowered:
    """Lower ``graph`` for an array of dimension ``n``."""
    return _Lowering(graph, n, fused).run()


class _Lowering:
    def __init__(self, graph: Graph, n: int, fused: bool) -> None:
        self.graph = graph
        self.n = n
        self.fused = fused
        self.steps: list[Step] = []
        self.shapes = {name: graph.tensors[name].shape for name in graph.inputs}
        self.views: dict[str, tuple[Source, ...]] = {}
        self.aliases: dict[str, str] = {}
        self.unpacked: dict[str, str] = {}

    def run(self) -> Lowered:
        absorbed: dict[str, list[Operator]] = {}
        """Output of a chain so far -> operators of the chain, while it waits for its next operator."""
        for op in self.graph.operators:
            chain = [op]
            if isinstance(op, (Activation, Addition)):
                for name in op.inputs:
                    if name in absorbed and self._may_extend(absorbed[name], op):
                        chain = [*absorbed.pop(name), op]
                        break
            # Inputs that stay separate must be stored before this operator reads them.
            for name in [name for member in chain for name in member.inputs]:
                if name in absorbed:
                    self._emit(absorbed.pop(name))
            if self._extensible(chain):
                absorbed[op.output] = chain
            else:
                self._emit(chain)
        for chain in list(absorbed.values()):
            self._emit(chain)
        return Lowered(self.graph, tuple(self.steps), self.shapes, self.views, self.aliases)

    def _extensible(self, chain: list[Operator]) -> bool:
        """Whether the chain's result has a single reader that could be fused to it."""
        if not self.fused or not isinstance(chain[0], Convolution | AveragePool) or isinstance(chain[-1], Addition):
            return False
        output = chain[-1].output
        if output in self.graph.outputs:
            return False
        readers = self.graph.consumers(output)
        return len(readers) == 1 and self._may_extend(chain, readers[0])

    def _may_extend(self, chain: list[Operator], op: Operator) -> bool:
        if isinstance(op, Activation):
            return len(chain) == 1
        if isinstance(op, Addition):
            return op.inputs[0] != op.inputs[1]
        return False

    # -- reading ------------------------------------------------------------------------------------------------

    def _stored(self, name: str) -> Source:
        """The tensor as one stored source in line layout, materialised if it is not."""
        sources = self._sources(name, packed=False)
        if len(sources) == 1 and not sources[0].upsample:
            return sources[0]
        self._materialise(name, sources)
        return self._sources(name, packed=False)[0]

    def _sources(self, name: str, *, packed: bool) -> tuple[Source, ...]:
        if name in self.views:
            sources = self.views[name]
            if not packed and any(source.packed for source in sources):
                return tuple(
                    dataclasses.replace(source, tensor=self._unpack(source.tensor), packed=False)
                    if source.packed
                    else source
                    for source in sources
                )
            return sources
        channels = self.graph.tensors[name].channels
        if name in self.graph.inputs and channels < self.n:
            if packed:
                return (Source(name, channels, packed=True),)
            return (Source(self._unpack(name), channels),)
        return (Source(name, channels),)

    def _unpack(self, name: str) -> str:
        if name not in self.unpacked:
            target = f"{name}.lines"
            channels = self.graph.tensors[name].channels
            self.aliases[target] = name
            self._append(
                self._copy(target, (Source(name, channels, packed=True),)),
                self.graph.tensors[name].shape,
            )
            self.unpacked[name] = target
        return self.unpacked[name]

    def _materialise(self, name: str, sources: tuple[Source, ...]) -> None:
        del self.views[name]
        self._append(self._copy(name, sources), self.graph.tensors[name].shape)

    def _copy(self, output: str, sources: tuple[Source, ...]) -> ConvolveStep:
        channels = sum(source.channels for source in sources)
        plain = len(sources) == 1 and not sources[0].packed
        return ConvolveStep(
            name=output,
            kind="copy",
            operators=(),
            sources=sources,
            output=output,
            weights=_ones(channels, (1, 1)) if plain else np.eye(channels, dtype=np.int8)[:, None, None, :],
            groups=channels if plain else 1,
            pad_value=0,
            output_zero_point=0,
            **_identity_parameters(channels),
        )

    def _append(self, step: Step, shape: tuple[int, int, int]) -> None:
        self.shapes[step.output] = shape
        self.steps.append(step)

    # -- operators ----------------------------------------------------------------------------------------------

    def _emit(self, chain: list[Operator]) -> None:
        op = chain[0]
        output = chain[-1].output
        if isinstance(op, Concatenation):
            self.views[output] = tuple(s for name in op.inputs for s in self._sources(name, packed=False))
        elif isinstance(op, Upsample):
            if op.factor != 2:
                raise ValueError(f"operator {op.name}: upsampling by {op.factor} is not supported, only by 2")
            sources = self._sources(op.inputs[0], packed=False)
            if any(source.upsample for source in sources):
                sources = (self._stored(op.inputs[0]),)
            self.views[output] = tuple(dataclasses.replace(source, upsample=True) for source in sources)
        elif isinstance(op, MaxPool):
            source = self._stored(op.inputs[0])
            self._append(
                PoolStep(
                    output, describe(chain), (op.name,), source, output, op.kernel, op.stride, op.padding, op.clamp
                ),
                self.graph.tensors[output].shape,
            )
        else:
            self._append(self._convolve(chain), self.graph.tensors[output].shape)
        if output in self.graph.outputs and output in self.views:
            self._materialise(output, self.views[output])

    def _convolve(self, chain: list[Operator]) -> ConvolveStep:
        first = chain[0]
        tensors = self.graph.tensors
        fields: dict[str, Any] = {}
        computed = first.output
        rest = chain[1:]
        if isinstance(first, Convolution):
            sources = self._convolution_sources(first)
            zero_point = tensors[first.inputs[0]].zero_point
            multiplier, shift = self.graph.multipliers(first)
            weight_sums = first.weights.astype(np.int64).sum(axis=(1, 2, 3))
            fields = {
                "weights": first.weights,
                "groups": first.groups,
                "single_rounding": first.single_rounding,
                "bias": first.bias.astype(np.int64) - zero_point * weight_sums,
                "multiplier": multiplier,
                "shift": shift,
                "output_zero_point": tensors[first.output].zero_point,
                "pad_value": zero_point,
                "stride": first.stride,
                "dilation": first.dilation,
                "padding": first.padding,
                "clamp": first.clamp,
            }
        else:
            kernel = (1, 1)
            if isinstance(first, AveragePool):
                kernel = first.kernel
                fields = {"average": True, "stride": first.stride, "padding": first.padding, "clamp": first.clamp}
            else:
                computed, rest = first.inputs[0], chain
            sources = (self._stored(first.inputs[0]),)
            channels = tensors[first.inputs[0]].channels
            fields |= {"weights": _ones(channels, kernel), "groups": channels, "output_zero_point": 0, "pad_value": 0}
            fields |= _identity_parameters(channels)
        for op in rest:
            if isinstance(op, Activation):
                fields["table"] = op.table
            else:
                assert isinstance(op, Addition)
                constants = self.graph.add_parameters(op)
                own = op.inputs[0] == computed
                residual = op.inputs[1] if own else op.inputs[0]
                fields |= {
                    "residual": self._stored(residual).tensor,
                    "add": constants if own else _swapped(constants),
                    "add_clamp": op.clamp,
                }
            computed = op.output
        return ConvolveStep(
            name=computed,
            kind=describe(chain),
            operators=tuple(op.name for op in chain),
            sources=sources,
            output=computed,
            macs=sum(self.graph.macs(op) for op in chain),
            **fields,
        )

    def _convolution_sources(self, op: Convolution) -> tuple[Source, ...]:
        if op.groups > 1:
            return (self._stored(op.inputs[0]),)
        packed = len(self._sources(op.inputs[0], packed=True)) == 1
        return self._sources(op.inputs[0], packed=packed)


def describe(chain: Sequence[Operator]) -> str:
    """What a step does, for reports: its operators, with kernel and stride where there is a window."""
    parts = []
    for op in chain:
        match op:
            case Convolution():
                depth = "conv" if op.groups == 1 else "grouped conv" if op.weights.shape[3] > 1 else "depthwise conv"
                parts.append(depth + _window(op))
            case MaxPool():
                parts.append("max pool" + _window(op))
            case AveragePool():
                parts.append("average pool" + _window(op))
            case Activation():
                parts.append(op.kind)
            case Addition():
                parts.append("add")
            case _:
                parts.append(type(op).__name__.lower())
    return " + ".join(parts)


def _window(op: Convolution | MaxPool | AveragePool) -> str:
    text = f" {op.kernel[0]}x{op.kernel[1]}"
    if op.stride != (1, 1):
        text += f"/{op.stride[0]}" if op.stride[0] == op.stride[1] else f"/{op.stride[0]}x{op.stride[1]}"
    return text


def divider(pixels: int) -> Pair:
    """Multiplier and shift that divide a sum of ``pixels`` int8 values, at most `MAX_AVERAGE`, halves away from zero.

    The multiplier is a little more than 2**31 / pixels, so that exact halves fall to the far side; everything else is
    further from a half than the product of that excess and the largest sum.
    """
    assert 1 <= pixels <= MAX_AVERAGE
    return (IDENTITY_MULTIPLIER, IDENTITY_SHIFT) if pixels == 1 else ((1 << 31) // pixels + 1, 0)


def _ones(channels: int, kernel: Pair) -> NDArray[np.int8]:
    return np.ones((channels, *kernel, 1), np.int8)


def _identity_parameters(channels: int) -> dict[str, Any]:
    return {
        "bias": np.zeros(channels, np.int64),
        "multiplier": np.full(channels, IDENTITY_MULTIPLIER, np.int32),
        "shift": np.full(channels, IDENTITY_SHIFT, np.int32),
    }


def _swapped(p: AddParameters) -> AddParameters:
    return dataclasses.replace(
        p,
        zero_point_a=p.zero_point_b,
        multiplier_a=p.multiplier_b,
        shift_a=p.shift_b,
        zero_point_b=p.zero_point_a,
        multiplier_b=p.multiplier_a,
        shift_b=p.shift_a,
    )
