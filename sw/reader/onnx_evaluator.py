"""Operators that ONNX's reference evaluator lacks or computes otherwise than ONNX specifies them."""

import itertools
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun


def operators(model: Any) -> list[type[OpRun]]:
    """What to give the evaluator for a model. Raises ``ValueError`` for what it computes wrongly, and we do not."""
    version = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        wrong = _wrong(node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute}, version)
        if wrong:
            raise ValueError(f"{node.op_type} {wrong} is not supported")
    chosen: list[type[OpRun]] = [QuantizeLinear, MaxPool, BatchNormalization]
    # The evaluator has it from version 19 on.
    if version < 19:
        chosen.append(DequantizeLinear)
    return chosen


def _wrong(kind: str, attributes: dict[str, Any], version: int) -> str:
    """What is special about a node that the evaluator computes wrongly; '' for others."""
    if kind == "ConvTranspose" and attributes.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER"):
        return "with automatic padding"
    if kind == "LpNormalization" and attributes.get("p") == 1:
        return "by sums of magnitudes"
    if kind == "RoiAlign" and version < 16:
        return "before version 16"
    return ""


def _along(values: Any, x: Any, axis: int) -> Any:
    shape = [1] * x.ndim
    if np.size(values) > 1:
        shape[axis] = -1
    return np.reshape(values, shape)


class QuantizeLinear(OpRun):
    """Of all versions, to integers of 8 bits and more; the evaluator's lets numbers beyond int32 wrap around."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero_point: Any = None, axis: int = 1, **options: Any) -> tuple[Any]:
        if options.get("block_size"):
            raise ValueError("QuantizeLinear in blocks is not supported")
        if zero_point is None:
            kind = options.get("output_dtype")
            zero_point = np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.uint8)
        if zero_point.dtype.name not in ("int8", "uint8", "int16", "uint16"):
            raise ValueError(f"QuantizeLinear to {zero_point.dtype} is not supported")
        info = np.iinfo(zero_point.dtype)
        steps = np.rint(x / _along(scale, x, axis)) + _along(zero_point, x, axis)
        return (np.clip(steps, info.min, info.max).astype(zero_point.dtype),)


class DequantizeLinear(OpRun):
    """Of versions 13 to 18."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero_point: Any = None, axis: int = 1, **_: Any) -> tuple[Any]:
        offset = 0 if zero_point is None else _along(zero_point, x, axis).astype(np.int64)
        return (((x.astype(np.int64) - offset).astype(np.float32) * _along(scale, x, axis)).astype(np.float32),)


class BatchNormalization(OpRun):
    """Of all versions, but not in training; the evaluator's errs in versions 9 to 13."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, **options: Any) -> tuple[Any]:
        if options.get("training_mode"):
            raise ValueError("BatchNormalization in training is not supported")
        scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias, mean, variance))
        factor = scale / np.sqrt(variance + variance.dtype.type(options.get("epsilon", 1e-5)))
        return ((x * factor + (bias - mean * factor)).astype(x.dtype),)


class MaxPool(OpRun):
    """Of all versions; the evaluator's errs for some paddings, and in its indices."""

    op_domain = ""

    def _run(self, x: Any, **options: Any) -> tuple[Any, ...]:
        kernel = options["kernel_shape"]
        sides = range(len(kernel))
        stride = options.get("strides") or [1] * len(kernel)
        dilation = options.get("dilations") or [1] * len(kernel)
        if options.get("storage_order"):
            raise ValueError("MaxPool with indices by columns is not supported")
        pads = options.get("pads") or [0] * (2 * len(kernel))
        spans = [(kernel[i] - 1) * dilation[i] + 1 for i in sides]
        before, made = [], []
        for i in sides:
            first, count = _extent(x.shape[2 + i], spans[i], stride[i], pads[i], pads[len(kernel) + i], options)
            before.append(first)
            made.append(count)
        ends = [(made[i] - 1) * stride[i] + spans[i] - before[i] - x.shape[2 + i] for i in sides]
        room = [(0, 0), (0, 0), *((before[i], max(ends[i], 0)) for i in sides)]
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        padded = np.pad(x, room, constant_values=np.asarray(least, x.dtype))
        places = np.pad(np.arange(x.size, dtype=np.int64).reshape(x.shape), room, constant_values=-1)
        best: Any = None
        index: Any = None
        for offset in itertools.product(*map(range, kernel)):
            cut = [
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, n, s in zip(offset, dilation, made, stride, strict=True)
            ]
            values, where = padded[..., *cut], places[..., *cut]
            if best is None:
                best, index = values.copy(), where.copy()
                continue
            better = (values > best) | ((index < 0) & (where >= 0))
            best, index = np.where(better, values, best), np.where(better, where, index)
        return (best, index)[: len([name for name in self.onnx_node.output if name])]


def _extent(size: int, span: int, stride: int, before: int, after: int, options: dict[str, Any]) -> tuple[int, int]:
    """Padding before the first element of one side, and the number of windows."""
    automatic = options.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        made = -(-size // stride)
        needed = max((made - 1) * stride + span - size, 0)
        return (needed // 2 if automatic == "SAME_UPPER" else needed - needed // 2), made
    if automatic == "VALID":
        before = after = 0
    room = size + before + after - span
    if not options.get("ceil_mode"):
        return before, room // stride + 1
    made = -(-room // stride) + 1
    # No window begins in the padding at the end.
    return before, made - ((made - 1) * stride >= size + before)
