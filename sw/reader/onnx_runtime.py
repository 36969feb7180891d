"""ONNX's checker, shape inference and reference evaluator (of the package `onnx`), in a process of their own."""

import functools
import json
from collections.abc import Mapping

import numpy as np

from sw.reader.model import Array
from sw.reader.worker import Worker

LOADING_SECONDS = 60.0
"""How long checker and shape inference may take."""
RUNNING_SECONDS = 1800.0
"""How long a run may take; the evaluator is NumPy."""


class OnnxRuntime:
    """See `sw.reader.worker.Worker` for what becomes of crashes."""

    def __init__(self) -> None:
        self._worker = Worker("sw.reader.onnx_worker", "ONNX")

    def infer(self, model: bytes) -> bytes:
        """The model with the shapes of all tensors. Raises ``ModelError`` for one that is not valid."""
        return self._worker.ask({"model": np.frombuffer(model, np.uint8)}, LOADING_SECONDS)["model"].tobytes()

    def run(self, model: bytes, inputs: Mapping[str, Array], *, seconds: float = RUNNING_SECONDS) -> list[Array]:
        """The model's outputs, in the file's order. Raises ``ModelError`` if it fails or takes longer."""
        arrays = {f"input_{number}": array for number, array in enumerate(inputs.values())}
        request = {"model": np.frombuffer(model, np.uint8), "inputs": len(inputs), "names": json.dumps(list(inputs))}
        answer = self._worker.ask(request | arrays, seconds)
        return [answer[f"output_{number}"] for number in range(len(answer))]

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._worker.close()


@functools.cache
def onnx_runtime() -> OnnxRuntime:
    """The one that all of this process share."""
    return OnnxRuntime()
