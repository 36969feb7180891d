"""Breaks what holds a TFLite file together, whatever network is in it: versions, buffers, shapes, order, types, scales.

`mutate` changes single fields anywhere; here every change is of a kind that files go wrong in, and hits its mark.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from sim.testing.tflite_files import pack, unpack

_SIZES = (0, -1, 2, 7, 255, 65536, 2**31 - 1, -(2**31))
_WITH_WEIGHTS = tuple(
    getattr(schema.BuiltinOperator, name)
    for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
)


def restructure(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """What was done to a file with at least one operator and one constant, and the file.

    A change that does not apply (there is one operator only, say) leaves the file as it is.
    """
    model = unpack(data)
    name = str(rng.choice(sorted(CHANGES)))
    CHANGES[name](model, rng)
    return name, pack(model)


def _any(items: Any, rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def _tensor(model: Any, rng: np.random.Generator) -> Any:
    return _any(model.subgraphs[0].tensors, rng)


def _constants(model: Any) -> list[Any]:
    return [t for t in model.subgraphs[0].tensors if model.buffers[t.buffer].data is not None]


def _schema_version(model: Any, rng: np.random.Generator) -> None:
    model.version = _any((0, 1, 2, 4, 2**32 - 1), rng)


def _operator_version(model: Any, rng: np.random.Generator) -> None:
    _any(model.operatorCodes, rng).version = _any((0, 1, 2, 3, 7, 99, -1), rng)


def _other_operator(model: Any, rng: np.random.Generator) -> None:
    code = _any(model.operatorCodes, rng)
    code.builtinCode = int(rng.integers(0, 210))
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)


def _fewer_buffers(model: Any, rng: np.random.Generator) -> None:
    del model.buffers[int(rng.integers(len(model.buffers))) :]


def _empty_buffer(model: Any, rng: np.random.Generator) -> None:
    _any(model.buffers, rng).data = _any((None, np.zeros(0, np.uint8)), rng)


def _no_such_buffer(model: Any, rng: np.random.Generator) -> None:
    _any(_constants(model), rng).buffer = _any((0, len(model.buffers), 2**31, 2**32 - 1), rng)


def _buffer_of_another(model: Any, rng: np.random.Generator) -> None:
    constants = _constants(model)
    _any(constants, rng).buffer = _any(constants, rng).buffer


def _cut_buffer(model: Any, rng: np.random.Generator) -> None:
    buffer = model.buffers[_any(_constants(model), rng).buffer]
    buffer.data = np.resize(buffer.data, max(len(buffer.data) + int(rng.integers(-8, 9)), 0))


def _absurd_size(model: Any, rng: np.random.Generator) -> None:
    tensor = _tensor(model, rng)
    shape = np.array(tensor.shape, np.int32)
    if shape.size:
        shape[int(rng.integers(shape.size))] = _any(_SIZES, rng)
    tensor.shape = shape


def _absurd_rank(model: Any, rng: np.random.Generator) -> None:
    tensor = _tensor(model, rng)
    ones = np.ones(int(rng.integers(1, 9)), np.int32)
    shape = np.array(tensor.shape, np.int32)
    tensor.shape = _any((ones, np.append(ones, shape), np.append(shape, ones), shape[1:], shape[:-1]), rng)


def _absurd_everywhere(model: Any, rng: np.random.Generator) -> None:
    size = _any(_SIZES, rng)
    for tensor in model.subgraphs[0].tensors:
        if tensor not in _constants(model):
            tensor.shape = np.full(len(tensor.shape), size, np.int32)


def _other_axes(model: Any, rng: np.random.Generator) -> None:
    tensor = _tensor(model, rng)
    tensor.shape = rng.permutation(np.array(tensor.shape, np.int32))


def _loop(model: Any, rng: np.random.Generator) -> None:
    """An operator reads what it or a later one writes."""
    operators = model.subgraphs[0].operators
    first = int(rng.integers(len(operators)))
    later = operators[int(rng.integers(first, len(operators)))]
    inputs = np.array(operators[first].inputs, np.int32)
    inputs[int(rng.integers(len(inputs)))] = later.outputs[0]
    operators[first].inputs = inputs


def _loop_of_two(model: Any, rng: np.random.Generator) -> None:
    operators = model.subgraphs[0].operators
    one, two = _any(operators, rng), _any(operators, rng)
    for reader, writer in ((one, two), (two, one)):
        reader.inputs = np.array([writer.outputs[0], *reader.inputs[1:]], np.int32)


def _other_order(model: Any, rng: np.random.Generator) -> None:
    operators = model.subgraphs[0].operators
    operators.insert(int(rng.integers(len(operators))), operators.pop(int(rng.integers(len(operators)))))


def _written_twice(model: Any, rng: np.random.Generator) -> None:
    operators = model.subgraphs[0].operators
    _any(operators, rng).outputs = np.array(_any(operators, rng).outputs, np.int32)


def _writes_a_constant(model: Any, rng: np.random.Generator) -> None:
    graph = model.subgraphs[0]
    _any(graph.operators, rng).outputs = np.array([graph.tensors.index(_any(_constants(model), rng))], np.int32)


def _wild_number(model: Any, rng: np.random.Generator) -> None:
    op = _any(model.subgraphs[0].operators, rng)
    field = _any(("inputs", "outputs"), rng)
    numbers = np.array(getattr(op, field), np.int32)
    numbers[int(rng.integers(len(numbers)))] = _any((-1, -2, 9999, 2**31 - 1, -(2**31)), rng)
    setattr(op, field, numbers)


def _free_axis(model: Any, rng: np.random.Generator) -> None:
    graph = model.subgraphs[0]
    tensor = graph.tensors[_any((*graph.inputs, int(rng.integers(len(graph.tensors)))), rng)]
    signature = np.array(tensor.shape, np.int32)
    if signature.size:
        signature[int(rng.integers(signature.size))] = -1
    tensor.shapeSignature = signature


def _free_everywhere(model: Any, rng: np.random.Generator) -> None:
    """Every tensor's first axis varies, as in a file with a free batch; its size in the file is 1 or missing."""
    for tensor in model.subgraphs[0].tensors:
        if tensor not in _constants(model) and len(tensor.shape):
            tensor.shapeSignature = np.array([-1, *tensor.shape[1:]], np.int32)
    if rng.random() < 0.3:
        for number in model.subgraphs[0].inputs:
            tensor = model.subgraphs[0].tensors[number]
            tensor.shape = np.array([-1, *tensor.shape[1:]], np.int32)


def _float_only(model: Any, rng: np.random.Generator) -> None:
    """The network before it was quantised; QUANTIZE and DEQUANTIZE, where there are some, stay."""
    del rng
    for tensor in model.subgraphs[0].tensors:
        scales = None if tensor.quantization is None else tensor.quantization.scale
        if scales is None or not len(scales):
            continue
        buffer = model.buffers[tensor.buffer]
        if buffer.data is not None:
            kind = np.int8 if tensor.type == schema.TensorType.INT8 else np.int32
            values = np.frombuffer(bytes(buffer.data), kind).astype(np.float32) * np.float32(np.mean(scales))
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
        tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None
    for code in model.operatorCodes:
        code.version = 1


def _other_type(model: Any, rng: np.random.Generator) -> None:
    _tensor(model, rng).type = int(rng.integers(-1, 22))


def _no_quantisation(model: Any, rng: np.random.Generator) -> None:
    _tensor(model, rng).quantization = None


def _mixed_weights(model: Any, rng: np.random.Generator) -> None:
    """Scales of weights and bias, each one for all or one for each channel along some axis, in all combinations."""
    codes = [code.builtinCode for code in model.operatorCodes]
    layers = [op for op in model.subgraphs[0].operators if codes[op.opcodeIndex] in _WITH_WEIGHTS]
    if not layers:
        return
    op = _any(layers, rng)
    tensors = [model.subgraphs[0].tensors[number] for number in op.inputs if number >= 0]
    for tensor in rng.permutation(np.array([t for t in tensors if t in _constants(model)], object))[:2]:
        _rescale(tensor, rng)


def _mixed_tensor(model: Any, rng: np.random.Generator) -> None:
    """One scale becomes several, or the other way round, on any tensor."""
    _rescale(_tensor(model, rng), rng)


def _rescale(tensor: Any, rng: np.random.Generator) -> None:
    quantisation = tensor.quantization
    if quantisation is None or quantisation.scale is None or not len(quantisation.scale):
        return
    axis = int(rng.integers(max(len(tensor.shape), 1)))
    size = int(tensor.shape[axis]) if len(tensor.shape) else 1
    count = _any((1, 1, size, size, size + 1, max(size - 1, 1)), rng)
    if count > 100_000:
        return
    first = float(quantisation.scale[0])
    quantisation.scale = (first * rng.uniform(0.5, 2, count)).astype(np.float32)
    points = np.full(count, _any((0, 0, 0, int(quantisation.zeroPoint[0]), 3), rng), np.int64)
    quantisation.zeroPoint = points
    quantisation.quantizedDimension = _any((axis, axis, axis, 0, 3, -1, 9), rng)


def _other_scale(model: Any, rng: np.random.Generator) -> None:
    """A sound scale that differs from the neighbours', where an operator may want equal ones."""
    tensor = _tensor(model, rng)
    if tensor.quantization is not None and tensor.quantization.scale is not None:
        factor = _any((0.5, 0.99, 1.01, 2.0, 1e-6, 1e6), rng)
        tensor.quantization.scale = (np.array(tensor.quantization.scale) * factor).astype(np.float32)


def _other_zero_point(model: Any, rng: np.random.Generator) -> None:
    tensor = _tensor(model, rng)
    if tensor.quantization is not None and tensor.quantization.zeroPoint is not None:
        points = np.array(tensor.quantization.zeroPoint, np.int64)
        tensor.quantization.zeroPoint = points + _any((1, -1, 5, 128, -128, 2**31), rng)


def _other_ends(model: Any, rng: np.random.Generator) -> None:
    """Any tensors as inputs or outputs."""
    graph = model.subgraphs[0]
    number = int(rng.integers(len(graph.tensors)))
    field = _any(("inputs", "outputs"), rng)
    numbers = list(getattr(graph, field))
    setattr(graph, field, np.array(_any(([number], [*numbers, number], [number, *numbers]), rng), np.int32))


CHANGES: dict[str, Callable[[Any, np.random.Generator], None]] = {
    "schema version": _schema_version,
    "operator version": _operator_version,
    "another operator": _other_operator,
    "fewer buffers": _fewer_buffers,
    "an empty buffer": _empty_buffer,
    "no such buffer": _no_such_buffer,
    "the buffer of another tensor": _buffer_of_another,
    "a buffer of another length": _cut_buffer,
    "an absurd size": _absurd_size,
    "an absurd rank": _absurd_rank,
    "absurd sizes everywhere": _absurd_everywhere,
    "axes in another order": _other_axes,
    "a loop": _loop,
    "a loop of two": _loop_of_two,
    "operators in another order": _other_order,
    "a tensor written twice": _written_twice,
    "a constant written": _writes_a_constant,
    "a wild tensor number": _wild_number,
    "a free axis": _free_axis,
    "free axes everywhere": _free_everywhere,
    "float only": _float_only,
    "another type": _other_type,
    "no quantisation": _no_quantisation,
    "scales of weights and bias mixed": _mixed_weights,
    "one scale or many": _mixed_tensor,
    "another scale": _other_scale,
    "another zero point": _other_zero_point,
    "other inputs or outputs": _other_ends,
}
"""Changes by name; each changes a model of the object API in place."""
