"""What a model file becomes: stages that run one after the other, each on the NPU or on the host."""

import dataclasses
import pathlib
import typing
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hw.spec.numerics import Int8Array
from sw.graph import Graph
from sw.operators import Quantisation

Array = NDArray[typing.Any]
Values = dict[str, Array]
"""Arrays by the names of the file's tensors, in the file's shapes and types."""


_LONGEST_MESSAGE = 400


class ModelError(ValueError):
    """A model file that cannot be used; the message is one line fit for the user, whatever names the file holds."""

    def __init__(self, message: str) -> None:
        line = "".join(c if c.isprintable() else " " for c in message)
        line = " ".join(line.split())
        super().__init__(line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…")


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of the whole model, as the file declares it.

    ``dtype`` is a NumPy name; ``quantisation`` is None for real numbers and for integers that are plain numbers.
    ``channels_first`` says that an image is ``[1, c, h, w]``, not ``[1, h, w, c]``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantisation: Quantisation | None = None
    channels_first: bool = False

    def real(self, values: Array) -> NDArray[np.float64]:
        """The real numbers that an array of this port stands for."""
        x = values.astype(np.float64)
        if self.quantisation is None:
            return x
        scale, zero_point = self.quantisation
        return (x - zero_point) * scale


@dataclasses.dataclass(frozen=True)
class Binding:
    """How an array of the file becomes a tensor of a graph, ``int8 [h, w, c]``, and back.

    ``value`` names the array and ``tensor`` the graph's tensor; ``shape`` and ``dtype`` (int8 or uint8, whose values
    are shifted by 128) are the array's. Whatever its rank, its elements lie in the order of ``[h, w, c]``, or with
    ``channels_first`` in that of ``[c, h, w]``, of the tensor.
    """

    value: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    channels_first: bool = False

    def to_graph(self, array: Array, shape: tuple[int, int, int]) -> Int8Array:
        """The tensor, of the graph's ``shape``. Raises ``ModelError`` for an array of another shape or type."""
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ModelError(f"{self.value} must be {self.dtype} {self.shape}, not {array.dtype} {array.shape}")
        if array.dtype == np.uint8:
            array = array ^ 0x80
        if self.channels_first:
            height, width, channels = shape
            array = np.moveaxis(array.reshape(channels, height, width), 0, 2)
        return np.ascontiguousarray(array.reshape(shape)).view(np.int8)

    def from_graph(self, tensor: Int8Array) -> Array:
        """The inverse of ``to_graph``."""
        array = np.moveaxis(tensor, 2, 0) if self.channels_first else tensor
        array = np.ascontiguousarray(array).reshape(self.shape)
        return (array.view(np.uint8) ^ 0x80) if self.dtype == "uint8" else array


@dataclasses.dataclass(frozen=True, eq=False)
class NpuStage:
    """A graph with the arrays that go in and come out."""

    graph: Graph
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class HostStage:
    """Operators that the host runs, with a runtime of the file's own format.

    ``operators`` are names fit for a report; ``run`` takes the arrays ``inputs`` and returns the arrays ``outputs``;
    it raises ``ModelError`` if the runtime fails.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[str, ...]
    run: Callable[[Mapping[str, Array]], Values]


Stage = NpuStage | HostStage


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """A whole file in the runtime of its format; ``exact``: the model's outputs must be the same bytes.

    ``run`` raises ``ModelError`` if the runtime fails.
    """

    runtime: str
    exact: bool
    run: Callable[[Mapping[str, Array]], Values]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A network with its stages in order; each stage's inputs are inputs of the model or outputs of earlier stages.

    ``reference`` is there if a file was read.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    stages: tuple[Stage, ...]
    reference: Reference | None = None

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Graphs of the stages on the NPU, in order."""
        return tuple(stage.graph for stage in self.stages if isinstance(stage, NpuStage))

    @property
    def host_operators(self) -> tuple[tuple[str, ...], ...]:
        """Operators of each of the host's stages, in order."""
        return tuple(stage.operators for stage in self.stages if isinstance(stage, HostStage))


RunGraph = Callable[[Graph, dict[str, Int8Array]], Mapping[str, Int8Array]]


def evaluate(model: Model, inputs: Mapping[str, Array], run_graph: RunGraph) -> Values:
    """Run all stages; ``run_graph`` computes a graph's outputs from its inputs. Returns the model's outputs."""
    values: Values = dict(inputs)
    for stage in model.stages:
        if isinstance(stage, HostStage):
            values.update(stage.run({name: values[name] for name in stage.inputs}))
            continue
        tensors = {
            binding.tensor: binding.to_graph(values[binding.value], stage.graph.tensors[binding.tensor].shape)
            for binding in stage.inputs
        }
        results = run_graph(stage.graph, tensors)
        values.update({binding.value: binding.from_graph(results[binding.tensor]) for binding in stage.outputs})
    return {port.name: values[port.name] for port in model.outputs}


def of_graph(graph: Graph) -> Model:
    """The model of a graph that was built, not read: int8 ``[1, h, w, c]`` in and out."""

    def port(name: str) -> Port:
        tensor = graph.tensors[name]
        return Port(name, (1, *tensor.shape), "int8", tensor.quantisation)

    def bindings(names: tuple[str, ...]) -> tuple[Binding, ...]:
        return tuple(Binding(name, name, (1, *graph.tensors[name].shape)) for name in names)

    stage = NpuStage(graph, bindings(graph.inputs), bindings(graph.outputs))
    return Model(graph.name, tuple(map(port, graph.inputs)), tuple(map(port, graph.outputs)), (stage,))


def read_model(path: pathlib.Path, *, host_fallback: bool = False) -> Model:
    """Read a TFLite or ONNX file, by its ending. Raises ``ModelError``."""
    kind = path.suffix.lower()
    if kind == ".tflite":
        from sw.reader.tflite import read_tflite

        return read_tflite(path, host_fallback=host_fallback)
    if kind == ".onnx":
        from sw.reader.onnx import read_onnx

        return read_onnx(path, host_fallback=host_fallback)
    raise ModelError(f"{path}: the name of a model file ends in .tflite or .onnx")
