"""The process that asks TFLite's runtime, for `sw.reader.tflite_runtime`.

A request has the ``model``'s bytes and, to run it, the number of ``inputs`` and an array ``input_0`` … for each. An
answer describes all tensors as JSON in ``text``, or has an array ``output_0`` … for each output.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from sw.reader.messages import Message, serve
from sw.reader.worker import confine


def _answer(request: Message) -> Mapping[str, Any]:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=request["model"].tobytes(),
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        num_threads=1,
    )
    interpreter.allocate_tensors()
    if "inputs" not in request:
        tensors = [
            {"index": int(t["index"]), "shape": [int(n) for n in t["shape"]], "dtype": np.dtype(t["dtype"]).name}
            for t in interpreter.get_tensor_details()
        ]
        return {"text": json.dumps(tensors)}
    for number, detail in enumerate(interpreter.get_input_details()):
        interpreter.set_tensor(detail["index"], request[f"input_{number}"])
    interpreter.invoke()
    details = interpreter.get_output_details()
    return {f"output_{number}": interpreter.get_tensor(detail["index"]) for number, detail in enumerate(details)}


def main() -> None:
    """Answer until the other side closes."""
    confine()
    serve(sys.stdin.buffer, sys.stdout.buffer, _answer)


if __name__ == "__main__":
    main()
