"""The process that runs ONNX's checker, shape inference and reference evaluator, for `sw.reader.onnx_runtime`.

A request has the ``model``'s bytes and, to run it, the number of ``inputs``, their names as JSON in ``names``, and an
array ``input_0`` … for each. An answer has the ``model`` with all shapes, or an array ``output_0`` … for each output.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from sw.reader.messages import Message, serve, text
from sw.reader.worker import confine


def _answer(request: Message) -> Mapping[str, Any]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load_model_from_string(request["model"].tobytes())
    if "inputs" not in request:
        onnx.checker.check_model(model)
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        return {"model": np.frombuffer(model.SerializeToString(), np.uint8)}
    names = json.loads(text(request["names"]))
    feeds = {name: request[f"input_{number}"] for number, name in enumerate(names)}
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model, new_ops=_older_operators(model)).run(None, feeds)
    return {f"output_{number}": np.asarray(result) for number, result in enumerate(results)}


def _older_operators(model: Any) -> list[type]:
    """The evaluator has these two from version 19 on; here they are as versions 13 to 18 specify them."""
    from onnx.reference.op_run import OpRun

    if all(entry.version >= 19 for entry in model.opset_import if entry.domain in ("", "ai.onnx")):
        return []

    def along(values: Any, x: Any, axis: int) -> Any:
        shape = [1] * x.ndim
        if np.size(values) > 1:
            shape[axis] = -1
        return np.reshape(values, shape)

    class QuantizeLinear(OpRun):
        op_domain = ""

        def _run(self, x: Any, scale: Any, zero_point: Any = None, axis: int = 1, **_: Any) -> tuple[Any]:
            zero_point = np.uint8(0) if zero_point is None else zero_point
            info = np.iinfo(zero_point.dtype)
            steps = np.rint(x / along(scale, x, axis)) + along(zero_point, x, axis)
            return (np.clip(steps, info.min, info.max).astype(zero_point.dtype),)

    class DequantizeLinear(OpRun):
        op_domain = ""

        def _run(self, x: Any, scale: Any, zero_point: Any = None, axis: int = 1, **_: Any) -> tuple[Any]:
            offset = 0 if zero_point is None else along(zero_point, x, axis).astype(np.int64)
            return (((x.astype(np.int64) - offset).astype(np.float32) * along(scale, x, axis)).astype(np.float32),)

    return [QuantizeLinear, DequantizeLinear]


def main() -> None:
    """Answer until the other side closes."""
    confine()
    serve(sys.stdin.buffer, sys.stdout.buffer, _answer)


if __name__ == "__main__":
    main()
