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
from sw.reader.onnx_evaluator import operators
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
        results = ReferenceEvaluator(model, new_ops=operators(model)).run(None, feeds)
    return {f"output_{number}": np.asarray(result) for number, result in enumerate(results)}


def main() -> None:
    """Answer until the other side closes."""
    confine()
    serve(sys.stdin.buffer, sys.stdout.buffer, _answer)


if __name__ == "__main__":
    main()
