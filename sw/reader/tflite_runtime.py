"""TFLite's own runtime with its reference kernels, in a process of its own."""

import dataclasses
import functools
import json
from collections.abc import Sequence

import numpy as np

from sw.reader.messages import text
from sw.reader.model import Array
from sw.reader.worker import Worker

LOADING_SECONDS = 60.0
"""How long the runtime may take to say whether it takes a file."""
RUNNING_SECONDS = 1800.0
"""How long it may take to run one: a large network takes minutes with reference kernels."""


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What the runtime makes of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class TfliteRuntime:
    """The runtime; see `sw.reader.worker.Worker` for what becomes of crashes."""

    def __init__(self) -> None:
        self._worker = Worker("sw.reader.tflite_worker", "the TFLite runtime")

    def describe(self, model: bytes) -> dict[int, TensorInfo]:
        """Tensors of the first subgraph by number. Raises ``ModelError`` if the runtime does not take the file."""
        answer = self._worker.ask({"model": np.frombuffer(model, np.uint8)}, LOADING_SECONDS)
        return {t["index"]: TensorInfo(tuple(t["shape"]), t["dtype"]) for t in json.loads(text(answer["text"]))}

    def run(self, model: bytes, inputs: Sequence[Array], *, seconds: float = RUNNING_SECONDS) -> list[Array]:
        """The model's outputs, in the file's order. Raises ``ModelError`` if it fails or takes longer."""
        arrays = {f"input_{number}": array for number, array in enumerate(inputs)}
        answer = self._worker.ask({"model": np.frombuffer(model, np.uint8), "inputs": len(inputs), **arrays}, seconds)
        return [answer[f"output_{number}"] for number in range(len(answer))]

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._worker.close()


@functools.cache
def tflite_runtime() -> TfliteRuntime:
    """The one that all of this process share."""
    return TfliteRuntime()
