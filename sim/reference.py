"""Runs graphs and model files in runtimes that are not ours: TFLite with its reference kernels, ONNX.

The reference kernels, unlike the default ones, round twice; see `hw.spec.numerics`.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from hw.spec.numerics import Int8Array
from sw.graph import Graph
from sw.reader.model import Reference, Values
from sw.tflite_writer import serialise


def run(graph: Graph, inputs: Mapping[str, Int8Array]) -> dict[str, Int8Array]:
    """Write the graph as a model, execute it, and return every tensor of the graph.

    Parameters
    ----------
    graph
        Any valid graph.
    inputs
        int8 ``[h, w, c]`` for each input tensor of the graph.

    Returns
    -------
    dict
        int8 ``[h, w, c]`` for every tensor of the graph by name.

    Raises
    ------
    GraphError
        If the graph cannot be written as a TFLite model.
    ModuleNotFoundError
        If `ai-edge-litert` is not installed.
    """
    model = serialise(graph)
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    places: dict[str, int] = {detail["name"]: detail["index"] for detail in interpreter.get_tensor_details()}
    for name in graph.inputs:
        interpreter.set_tensor(places[name], inputs[name][np.newaxis])
    interpreter.invoke()
    return {name: interpreter.get_tensor(places[name])[0] for name in graph.tensors}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outputs of a model file's own runtime beside ours."""

    runtime: str
    values: int
    different: int
    largest: float
    """Largest difference, in steps of an integer output or as a number."""
    exact: bool
    """Whether nothing may differ."""

    @property
    def passed(self) -> bool:
        return not self.exact or not self.different

    def __str__(self) -> str:
        if not self.different:
            return f"all {self.values:,} values of the outputs equal to those of {self.runtime}"
        return (
            f"{self.different:,} of {self.values:,} values of the outputs differ from those of {self.runtime}, "
            f"by at most {self.largest:g}"
        )


def compare_with_runtime(reference: Reference, inputs: Values, outputs: Values) -> Comparison:
    """Run a model file in the runtime of its format and compare. Raises ``ModelError`` if that fails."""
    return _compare(reference.runtime, reference.run(inputs), outputs, exact=reference.exact)


def _compare(runtime: str, expected: Values, found: Values, *, exact: bool) -> Comparison:
    different, largest = 0, 0.0
    for name, values in found.items():
        wrong = expected[name] != values
        different += int(wrong.sum())
        if wrong.any():
            largest = max(largest, float(np.abs(expected[name].astype(np.float64) - values)[wrong].max()))
    return Comparison(runtime, sum(values.size for values in found.values()), different, largest, exact)
