"""The checks that every `sw.graph.Graph` passes when it is made."""

from typing import TYPE_CHECKING

import numpy as np

from hw.spec.numerics import INT32_MAX
from sw.operators import (
    ACTIVATIONS,
    MAX_AVERAGE,
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
    Shape,
    Tensor,
    Upsample,
    window_output,
)

if TYPE_CHECKING:
    from sw.graph import Graph

_INPUT_COUNTS: dict[type, tuple[int, int]] = {
    Convolution: (1, 1),
    Activation: (1, 1),
    Addition: (2, 2),
    MaxPool: (1, 1),
    AveragePool: (1, 1),
    Concatenation: (1, 1 << 16),
    Upsample: (1, 1),
}


def check(graph: "Graph") -> None:
    """Raise `GraphError` unless the graph is whole, ordered, and every operator fits its tensors."""
    _check_names(graph)
    _check_order(graph)
    for op in graph.operators:
        expected = _expected_shape(graph, op)
        actual = graph.tensors[op.output].shape
        if actual != expected:
            raise _error(op, f"output {op.output} has shape {actual}, but the operator makes {expected}")


def _error(op: Operator, text: str) -> GraphError:
    return GraphError(f"{type(op).__name__} {op.name}: {text}")


def _check_names(graph: "Graph") -> None:
    for key, tensor in graph.tensors.items():
        if key != tensor.name:
            raise GraphError(f"tensor {tensor.name!r} is filed under another name, {key!r}")
    for role, names in (("input", graph.inputs), ("output", graph.outputs)):
        if not names:
            raise GraphError(f"graph {graph.name}: there is no {role}")
        if len(set(names)) != len(names):
            raise GraphError(f"graph {graph.name}: an {role} is named twice: {names!r}")
        for name in names:
            if name not in graph.tensors:
                raise GraphError(f"graph {graph.name}: {role} {name!r} is not a tensor")
    seen: set[str] = set()
    for op in graph.operators:
        if not op.name:
            raise GraphError(f"an operator that makes {op.output!r} has no name")
        if op.name in seen:
            raise GraphError(f"two operators are called {op.name!r}")
        seen.add(op.name)


def _check_order(graph: "Graph") -> None:
    made = set(graph.inputs)
    for op in graph.operators:
        low, high = _INPUT_COUNTS[type(op)]
        if not low <= len(op.inputs) <= high:
            raise _error(op, f"{len(op.inputs)} inputs where {low} are needed: {op.inputs!r}")
        for name in op.inputs:
            if name not in graph.tensors:
                raise _error(op, f"input {name!r} is not a tensor")
            if name not in made:
                raise _error(op, f"input {name!r} is read before it is made")
        if op.output not in graph.tensors:
            raise _error(op, f"output {op.output!r} is not a tensor")
        if op.output in made:
            raise _error(op, f"output {op.output!r} is made twice")
        made.add(op.output)
    unmade = [name for name in graph.tensors if name not in made]
    if unmade:
        raise GraphError(f"graph {graph.name}: tensor {unmade[0]!r} is made by no operator")


def _expected_shape(graph: "Graph", op: Operator) -> Shape:
    """Check the operator's own parameters and return the shape that its output must have."""
    sources = [graph.tensors[name] for name in op.inputs]
    output = graph.tensors[op.output]
    match op:
        case Convolution():
            return _convolution_shape(graph, op, sources[0])
        case Activation():
            _check_table(op)
            return sources[0].shape
        case Addition():
            if sources[0].shape != sources[1].shape:
                raise _error(op, f"shapes differ: {sources[0].shape} and {sources[1].shape}")
            try:
                graph.add_parameters(op)
            except ValueError as error:
                raise _error(op, str(error)) from None
            _check_clamp(op, op.clamp)
            return sources[0].shape
        case MaxPool() | AveragePool():
            _check_same_quantisation(op, sources, output)
            _check_clamp(op, op.clamp)
            shape = _window_shape(op, sources[0], op.kernel, op.stride, (1, 1), op.padding)
            if isinstance(op, AveragePool) and op.kernel[0] * op.kernel[1] > MAX_AVERAGE:
                raise _error(op, f"kernel {op.kernel} has more than {MAX_AVERAGE} pixels")
            # A window that sees nothing but padding would have no maximum and no mean.
            if (
                max(op.padding.top, op.padding.bottom) >= op.kernel[0]
                or max(op.padding.left, op.padding.right) >= op.kernel[1]
            ):
                raise _error(op, f"padding {op.padding} is not smaller than the kernel {op.kernel}")
            return shape
        case Concatenation():
            _check_same_quantisation(op, sources, output)
            for source in sources:
                if source.shape[:2] != sources[0].shape[:2]:
                    raise _error(op, f"sizes differ: {sources[0].shape} and {source.shape}")
            return (*sources[0].shape[:2], sum(source.channels for source in sources))
        case Upsample():
            _check_same_quantisation(op, sources, output)
            if op.factor < 1:
                raise _error(op, f"the factor must be at least 1, not {op.factor!r}")
            return sources[0].height * op.factor, sources[0].width * op.factor, sources[0].channels


def _check_same_quantisation(op: Operator, sources: list[Tensor], output: Tensor) -> None:
    for source in sources:
        if source.quantisation != output.quantisation:
            raise _error(
                op,
                f"quantisation {source.quantisation} of {source.name} is not {output.quantisation} of {output.name}",
            )


def _check_clamp(op: Operator, clamp: Pair) -> None:
    if len(clamp) != 2 or not -128 <= clamp[0] <= clamp[1] <= 127:
        raise _error(op, f"the clamp must be two bounds in order within -128..127, not {clamp!r}")


def _check_table(op: Activation) -> None:
    if op.kind not in ACTIVATIONS:
        raise _error(op, f"kind {op.kind!r} is not one of {', '.join(ACTIVATIONS)}")
    if op.table.shape != (256,) or op.table.dtype != np.int8:
        raise _error(op, f"the table must be int8 [256], not {op.table.dtype} {list(op.table.shape)}")


def _window_shape(op: Operator, source: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Padding) -> Shape:
    for what, pair in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
        if len(pair) != 2 or min(pair) < 1:
            raise _error(op, f"{what} must be two positive numbers, not {pair!r}")
    height = window_output(source.height, kernel[0], stride[0], dilation[0], padding.top, padding.bottom)
    width = window_output(source.width, kernel[1], stride[1], dilation[1], padding.left, padding.right)
    if height < 1 or width < 1:
        raise _error(op, f"kernel {kernel} with dilation {dilation} does not fit input {source.shape} with {padding}")
    return height, width, source.channels


def _convolution_shape(graph: "Graph", op: Convolution, source: Tensor) -> Shape:
    weights = op.weights
    if weights.ndim != 4 or weights.dtype != np.int8 or weights.size == 0:
        raise _error(op, f"weights must be int8 [cout, kh, kw, cin], not {weights.dtype} {list(weights.shape)}")
    cout, _, _, cin = weights.shape
    if op.groups < 1 or cout % op.groups:
        raise _error(op, f"{cout} output channels are not to be cut into {op.groups} groups")
    if cin * op.groups != source.channels:
        raise _error(
            op,
            f"weights for {cin * op.groups} channels, but {source.name} has {source.channels}"
            + (f" ({op.groups} groups)" if op.groups > 1 else ""),
        )
    _check_clamp(op, op.clamp)
    if op.bias.shape != (cout,) or op.bias.dtype != np.int32:
        raise _error(op, f"bias must be int32 [{cout}], not {op.bias.dtype} {list(op.bias.shape)}")
    if op.weight_scales.shape != (cout,) or op.weight_scales.dtype != np.float32:
        raise _error(
            op, f"weight scales must be float32 [{cout}], not {op.weight_scales.dtype} {list(op.weight_scales.shape)}"
        )
    if not bool(np.all(np.isfinite(op.weight_scales) & (op.weight_scales > 0))):
        raise _error(op, "a weight scale is not positive and finite")
    _check_accumulators(graph, op)
    height, width, _ = _window_shape(op, source, op.kernel, op.stride, op.dilation, op.padding)
    return height, width, cout


def _check_accumulators(graph: "Graph", op: Convolution) -> None:
    """No input whatever may overflow an int32 accumulator, nor its left shift: TFLite leaves both undefined."""
    zero_point = graph.tensors[op.inputs[0]].zero_point
    reach = max(127 - zero_point, zero_point + 128)
    weight_sums = np.abs(op.weights.astype(np.int64)).sum(axis=(1, 2, 3))
    largest = weight_sums * reach + np.abs(op.bias.astype(np.int64))
    try:
        multipliers, shifts = graph.multipliers(op)
    except ValueError as error:
        raise _error(op, str(error)) from None
    for what, values, low, high in (("multiplier", multipliers, 0, INT32_MAX), ("shift", shifts, -31, 30)):
        if values.shape != (len(op.bias),) or values.dtype != np.int32:
            raise _error(op, f"{what}s must be int32 [{len(op.bias)}], not {values.dtype} {list(values.shape)}")
        if int(values.min()) < low or int(values.max()) > high:
            raise _error(op, f"a {what} is not in {low}..{high}")
    raised = largest.astype(np.float64) * 2.0 ** np.maximum(shifts, 0)
    worst = int(np.argmax(raised))
    if raised[worst] > INT32_MAX:
        raise _error(op, f"channel {worst} may reach {raised[worst]:.0f}, beyond the int32 accumulator")
