"""Runs a quantised graph in a runtime that is not ours: TFLite with its reference kernels.

The reference kernels, unlike the default ones, round twice; see `hw.spec.numerics`.
"""

from collections.abc import Mapping

import numpy as np

from hw.spec.numerics import Int8Array
from sw.graph import Graph
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
