"""Broken, odd and malicious TFLite files: truncations, flipped bytes, and single fields changed.

Some of them are sound files in the end (a changed weight, an unused input); nothing here says which.  What a reader
has to do with them is in `sim.testing.file_property`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from sim.testing.hostile_files import built_files, not_files
from sim.testing.tflite_files import pack, unpack
from sim.testing.tflite_layers import Layers, quantised

Named = tuple[str, bytes]

_INTS = (0, 1, -1, 2, 7, 127, -128, 255, 65536, 2**31 - 1, -(2**31))
_FLOATS = (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e-45, 3e38, 1e-20, 0.3)
_KINDS = ("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "int4", "complex64")


def small_network(seed: int = 0) -> bytes:
    """A sound file with the common operators, a few kilobytes; the base of `mutations`."""

    def build(net: Layers) -> None:
        x = net.conv(net.input("image", (1, 8, 8, 3)), 8, 3, 2, activation="RELU", name="conv")
        x = net.binary("ADD", x, net.depthwise(x, 3, activation="RELU6", name="depthwise"))
        x = net.concat([x, net.pool("MAX_POOL_2D", x, 3, 1, "SAME")])
        x = net.reshape(net.pool("AVERAGE_POOL_2D", x, 4, 4), (1, 16))
        net.output(net.softmax(net.dense(x, 5, name="dense")))

    return quantised(build, "small", seed, samples=2)


def truncations(data: bytes, parts: int = 64) -> Iterator[Named]:
    """The file cut off after every 1/`parts` of its length, nothing left included."""
    for i in range(parts):
        yield f"truncated to {i}/{parts}", data[: len(data) * i // parts]


def flips(data: bytes, rng: np.random.Generator, count: int) -> Iterator[Named]:
    """The file with one to eight random bytes changed, or a word overwritten with an extreme number."""
    for i in range(count):
        broken = bytearray(data)
        if rng.random() < 0.3:
            place = int(rng.integers(len(data) // 4)) * 4
            word = int(rng.choice(_INTS)) & 0xFFFFFFFF
            broken[place : place + 4] = word.to_bytes(4, "little")[: len(data) - place]
            yield f"flip {i}: word {word:#x} at {place}", bytes(broken)
            continue
        places = rng.integers(len(data), size=int(rng.integers(1, 9)))
        for place in places:
            broken[place] ^= int(rng.integers(1, 256))
        yield f"flip {i}: bytes at {sorted(places.tolist())}", bytes(broken)


def mutations() -> Iterator[Named]:
    """Files of `small_network` with one thing changed, files that are none, and the odd ones of `hostile_files`."""
    base = small_network()
    yield from not_files(base)
    for name, change in _changes().items():
        edit = Edit(base)
        change(edit)
        yield name, pack(edit.model)
    yield from built_files()


class Edit:
    """A file taken apart: its tensors by name and its operators by kind."""

    def __init__(self, data: bytes) -> None:
        self.model: Any = unpack(data)
        self.graph: Any = self.model.subgraphs[0]

    def tensor(self, name: str) -> Any:
        """The tensor of that name."""
        return self.graph.tensors[self.number(name)]

    def number(self, name: str) -> int:
        """The number of the tensor of that name."""
        return next(i for i, t in enumerate(self.graph.tensors) if t.name == name.encode())

    def quantisation(self, name: str) -> Any:
        """The quantisation of a tensor."""
        return self.tensor(name).quantization

    def operator(self, kind: str) -> Any:
        """The first operator of that kind."""
        code = getattr(schema.BuiltinOperator, kind)
        return next(op for op in self.graph.operators if self.model.operatorCodes[op.opcodeIndex].builtinCode == code)

    def code(self, kind: str) -> Any:
        """The operator code of that kind."""
        return self.model.operatorCodes[self.operator(kind).opcodeIndex]

    def options(self, kind: str) -> Any:
        """The options of the first operator of that kind."""
        return self.operator(kind).builtinOptions

    def resize(self, name: str, change: int) -> None:
        """Make the data of a tensor longer or shorter by bytes."""
        buffer = self.model.buffers[self.tensor(name).buffer]
        buffer.data = np.resize(buffer.data, max(len(buffer.data) + change, 0))


Change = Callable[[Edit], None]


def _set(place: Callable[[Edit], Any], **fields: Any) -> Change:
    def change(edit: Edit) -> None:
        target = place(edit)
        for field, value in fields.items():
            assert hasattr(target, field), field
            setattr(target, field, value)

    return change


def _put(place: Callable[[Edit], Any], field: str, index: int, value: int) -> Change:
    """Change one number of a list."""

    def change(edit: Edit) -> None:
        numbers = list(getattr(place(edit), field))
        numbers[index] = value
        setattr(place(edit), field, np.asarray(numbers, np.int32))

    return change


def _ints(*values: int) -> Any:
    return np.asarray(values, np.int32)


def _changes() -> dict[str, Change]:
    return {
        **_model_changes(),
        **_tensor_changes(),
        **_name_changes(),
        **_quantisation_changes(),
        **_operator_changes(),
        **_option_changes(),
        **_graph_changes(),
    }


def _model_changes() -> dict[str, Change]:
    def model(edit: Edit) -> Any:
        return edit.model

    def conv(edit: Edit) -> Any:
        return edit.code("CONV_2D")

    changes = {f"schema version {v}": _set(model, version=v) for v in (0, 1, 2, 4, 2**32 - 1)}
    changes |= {f"operator version {v}": _set(conv, version=v) for v in (0, -1, 1, 2, 5, 99)}
    for code in (-1, 32, 51, 127, 209, 210, 500, 2**31 - 1):
        changes[f"builtin code {code}"] = _set(conv, builtinCode=code, deprecatedBuiltinCode=min(max(code, -128), 127))
    return {
        **changes,
        "deprecated code alone": _set(conv, builtinCode=0),
        "codes that disagree": _set(conv, deprecatedBuiltinCode=9),
        "custom code beside a builtin one": _set(conv, customCode="Mine"),
        "no operator codes": _set(model, operatorCodes=[]),
        "no subgraphs": _set(model, subgraphs=[]),
        "the subgraph twice": lambda edit: edit.model.subgraphs.append(edit.graph),
        "no buffers": _set(model, buffers=[]),
        "fewer buffers": lambda edit: edit.model.buffers.__delitem__(slice(3, None)),
        "data in the first buffer": _set(lambda edit: edit.model.buffers[0], data=np.ones(64, np.uint8)),
        "no description": _set(model, description=None),
        "metadata of no buffer": _set(model, metadata=[_metadata(99)]),
        "metadata buffers out of range": _set(model, metadataBuffer=[99, -1]),
        "signature": lambda edit: _sign(edit, 0, edit.graph.inputs[0]),
        "signature of no tensor": lambda edit: _sign(edit, 0, 999),
        "signature of no subgraph": lambda edit: _sign(edit, 7, edit.graph.inputs[0]),
    }


def _metadata(buffer: int) -> Any:
    metadata = schema.MetadataT()
    metadata.name, metadata.buffer = "min_runtime_version", buffer
    return metadata


def _sign(edit: Edit, subgraph: int, tensor: int) -> None:
    def entry(name: str, number: int) -> Any:
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = name, number
        return entry

    signature: Any = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = "serving_default", subgraph
    signature.inputs, signature.outputs = [entry("in", tensor)], [entry("out", int(edit.graph.outputs[0]))]
    edit.model.signatureDefs = [signature]


def _tensor_changes() -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name in ("image", "conv", "conv/w", "conv/b", "dense/w", "dense"):

        def place(edit: Edit, name: str = name) -> Any:
            return edit.tensor(name)

        for kind in _KINDS:
            changes[f"{name} of type {kind}"] = _set(place, type=getattr(schema.TensorType, kind.upper()))
        changes |= {
            f"{name} of type 99": _set(place, type=99),
            f"{name} of type -1": _set(place, type=-1),
            f"{name} variable": _set(place, isVariable=True),
            f"{name} sparse": _set(place, sparsity=_sparsity()),
            f"{name} in an external buffer": _set(place, externalBuffer=1),
            f"{name} in no buffer": _set(place, buffer=999),
            f"{name} in buffer 2**32 - 1": _set(place, buffer=2**32 - 1),
            f"{name} with the data of another": lambda edit, name=name: setattr(
                edit.tensor(name), "buffer", edit.tensor("depthwise/w").buffer
            ),
            f"{name} without shape": _set(place, shape=None),
            f"{name} scalar": _set(place, shape=_ints()),
            f"{name} without rank": _set(place, shape=_ints(), hasRank=False),
            f"{name} of rank 6": _set(place, shape=_ints(1, 1, 1, 1, 4, 4)),
            f"{name} with a signature of another rank": _set(place, shapeSignature=_ints(-1, 8)),
            f"{name} with a free batch": lambda edit, name=name: _free(edit, name, 0),
            f"{name} with a free axis": lambda edit, name=name: _free(edit, name, 1),
        }
        for size in (0, -1, 2, 7, 65536, 2**31 - 1, -(2**31)):
            for axis in (0, -1):
                changes[f"{name} with size {size} on axis {axis}"] = _put(place, "shape", axis, size)
        changes[f"{name} of sizes 65536"] = _set(place, shape=_ints(1, 65536, 65536, 65536))
    for name in ("conv/w", "conv/b", "dense/w"):

        def buffer(edit: Edit, name: str = name) -> Any:
            return edit.model.buffers[edit.tensor(name).buffer]

        changes |= {
            f"{name} one byte short": lambda edit, name=name: edit.resize(name, -1),
            f"{name} one byte long": lambda edit, name=name: edit.resize(name, 1),
            f"{name} four bytes long": lambda edit, name=name: edit.resize(name, 4),
            f"{name} empty": _set(buffer, data=np.zeros(0, np.uint8)),
            f"{name} without data": _set(buffer, data=None),
            f"{name} at an offset": _set(buffer, data=None, offset=16, size=64),
            f"{name} at an offset behind the end": _set(buffer, data=None, offset=2**40, size=2**40),
            f"{name} at offset 2**64 - 1": _set(buffer, data=None, offset=2**64 - 1, size=8),
        }
    return changes


def _free(edit: Edit, name: str, axis: int) -> None:
    signature = np.array(edit.tensor(name).shape)
    signature[min(axis, len(signature) - 1)] = -1
    edit.tensor(name).shapeSignature = signature


def _sparsity() -> Any:
    sparsity, axis = schema.SparsityParametersT(), schema.DimensionMetadataT()
    axis.denseSize = 8
    sparsity.traversalOrder, sparsity.blockMap, sparsity.dimMetadata = _ints(0), _ints(), [axis]
    return sparsity


def _name_changes() -> dict[str, Change]:
    names: dict[str, Any] = {
        "no name": None,
        "an empty name": "",
        "a line feed": "a\nb",
        "an escape sequence": "\x1b[31mred\x07",
        "markup": "[bold red]x[/] {0} %s <b>",
        "a NUL": "a\0b",
        "a path": "../../../tmp/x",
        "bytes that are no UTF-8": b"\xff\xfe\xc3(",
        "a name of 100000 letters": "n" * 100_000,
        "a bidirectional override": "a\u202eb",
        "the name of another": "conv/w",
    }
    changes: dict[str, Change] = {}
    for label, value in names.items():
        for name in ("image", "conv", "softmax"):

            def rename(edit: Edit, name: str = name, value: Any = value) -> None:
                number = int(edit.graph.outputs[0]) if name == "softmax" else edit.number(name)
                edit.graph.tensors[number].name = value

            changes[f"{label} for {name}"] = rename
            if name == "conv":  # together with an error that names the tensor

                def worse(edit: Edit, value: Any = value) -> None:
                    tensor = edit.tensor("conv")
                    tensor.name, tensor.quantization.scale = value, np.zeros(1, np.float32)

                changes[f"{label} for a broken tensor"] = worse
        changes[f"{label} for the graph"] = _set(lambda edit: edit.graph, name=value)
    return changes


def _quantisation_changes() -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name in ("image", "conv", "conv/w", "conv/b", "depthwise/w", "dense/w"):

        def place(edit: Edit, name: str = name) -> Any:
            return edit.quantisation(name)

        for scale in _FLOATS:

            def rescale(edit: Edit, name: str = name, scale: float = scale) -> None:
                scales = np.array(edit.quantisation(name).scale, np.float32)
                scales[-1] = scale
                edit.quantisation(name).scale = scales

            changes[f"{name} with scale {scale}"] = rescale
        for point in (1, -1, 127, 128, -128, -129, 2**31, -(2**63), 2**63 - 1):

            def shift(edit: Edit, name: str = name, point: int = point) -> None:
                points = np.array(edit.quantisation(name).zeroPoint, np.int64)
                points[-1] = point
                edit.quantisation(name).zeroPoint = points

            changes[f"{name} with zero point {point}"] = shift
        changes |= {
            f"{name} without quantisation": lambda edit, name=name: setattr(edit.tensor(name), "quantization", None),
            f"{name} without scales": _set(place, scale=None, zeroPoint=None),
            f"{name} without zero points": _set(place, zeroPoint=None),
            f"{name} with too many zero points": _set(place, zeroPoint=np.zeros(9, np.int64)),
            f"{name} with two scales": _set(place, scale=np.full(2, 0.1, np.float32), zeroPoint=np.zeros(2, np.int64)),
            f"{name} with one scale": _set(place, scale=np.full(1, 0.1, np.float32), zeroPoint=np.zeros(1, np.int64)),
            f"{name} with a scale for each of 8": _set(
                place, scale=np.full(8, 0.1, np.float32), zeroPoint=np.zeros(8, np.int64), quantizedDimension=0
            ),
            f"{name} with custom quantisation": lambda edit, name=name: _custom_quantisation(edit, name),
        }
        changes |= {
            f"{name} along {axis}": _set(place, quantizedDimension=axis) for axis in (-1, 1, 2, 3, 4, 2**31 - 1)
        }
    for layer, axis, channels in (("conv", 0, 8), ("depthwise", 3, 8), ("dense", 0, 5)):
        for weights, bias in ((1, 1), (1, channels), (channels, 1), (channels, channels), (2, 2), (channels, 0)):
            changes[f"{layer} with {weights} scales of weights and {bias} of the bias"] = _mixture(
                layer, axis, weights, bias
            )
    return changes


def _mixture(layer: str, axis: int, weights: int, bias: int) -> Change:
    """So many scales; those of the bias fit as far as there are as many."""

    def change(edit: Edit) -> None:
        scales = np.linspace(0.01, 0.02, weights, dtype=np.float32)
        source = edit.quantisation("image" if layer == "conv" else "conv").scale[0]
        for name, values, dimension in (("w", scales, axis), ("b", np.resize(scales, bias) * source, 0)):
            quantisation = edit.quantisation(f"{layer}/{name}")
            quantisation.scale, quantisation.quantizedDimension = values.astype(np.float32), dimension
            quantisation.zeroPoint = np.zeros(len(values), np.int64)

    return change


def _custom_quantisation(edit: Edit, name: str) -> None:
    quantisation, details = edit.quantisation(name), schema.CustomQuantizationT()
    details.custom = np.ones(4, np.uint8)
    quantisation.detailsType, quantisation.details = schema.QuantizationDetails.CustomQuantization, details


def _operator_changes() -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for kind in ("CONV_2D", "ADD", "CONCATENATION", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"):

        def place(edit: Edit, kind: str = kind) -> Any:
            return edit.operator(kind)

        for number in (-1, -2, 999, 2**31 - 1, -(2**31)):
            changes[f"{kind} reads tensor {number}"] = _put(place, "inputs", 0, number)
            changes[f"{kind} writes tensor {number}"] = _put(place, "outputs", 0, number)
        changes |= {
            f"{kind} reads nothing": _set(place, inputs=_ints()),
            f"{kind} reads None": _set(place, inputs=None),
            f"{kind} writes nothing": _set(place, outputs=_ints()),
            f"{kind} reads one thing": lambda edit, kind=kind: setattr(
                edit.operator(kind), "inputs", edit.operator(kind).inputs[:1]
            ),
            f"{kind} reads a tensor more": lambda edit, kind=kind: setattr(
                edit.operator(kind), "inputs", np.append(edit.operator(kind).inputs, edit.graph.inputs[0])
            ),
            f"{kind} lacks its last input": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "inputs", -1, -1
            )(edit),
            f"{kind} writes twice": lambda edit, kind=kind: setattr(
                edit.operator(kind), "outputs", np.repeat(edit.operator(kind).outputs, 2)
            ),
            f"{kind} reads what it writes": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "inputs", 0, int(edit.operator(kind).outputs[0])
            )(edit),
            f"{kind} reads the output": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "inputs", 0, int(edit.graph.outputs[0])
            )(edit),
            f"{kind} reads weights": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "inputs", 0, edit.number("conv/w")
            )(edit),
            f"{kind} writes the input": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "outputs", 0, int(edit.graph.inputs[0])
            )(edit),
            f"{kind} writes weights": lambda edit, kind=kind: _put(
                lambda edit: edit.operator(kind), "outputs", 0, edit.number("conv/w")
            )(edit),
            f"{kind} of code 99": _set(place, opcodeIndex=99),
            f"{kind} without options": _set(place, builtinOptionsType=0, builtinOptions=None),
            f"{kind} with the options of another": _set(
                place, builtinOptionsType=schema.BuiltinOptions.LSTMOptions, builtinOptions=schema.LSTMOptionsT()
            ),
            f"{kind} with options of type 255": _set(place, builtinOptionsType=255),
            f"{kind} with custom options": _set(place, customOptions=np.ones(8, np.uint8)),
            f"{kind} with large options": _set(place, largeCustomOptionsOffset=2**50, largeCustomOptionsSize=2**50),
            f"{kind} with intermediates": _set(place, intermediates=_ints(999)),
            f"{kind} changes its inputs": _set(place, mutatingVariableInputs=[True] * 3),
        }
    return changes


def _option_changes() -> dict[str, Change]:
    windows = ("strideH", "strideW")
    fields: dict[str, tuple[str, ...]] = {
        "CONV_2D": (*windows, "dilationHFactor", "dilationWFactor"),
        "DEPTHWISE_CONV_2D": (*windows, "dilationHFactor", "dilationWFactor", "depthMultiplier"),
        "MAX_POOL_2D": (*windows, "filterHeight", "filterWidth"),
        "AVERAGE_POOL_2D": (*windows, "filterHeight", "filterWidth"),
        "CONCATENATION": ("axis",),
    }
    changes: dict[str, Change] = {}
    for kind, names in fields.items():

        def place(edit: Edit, kind: str = kind) -> Any:
            return edit.options(kind)

        for name in names:
            for value in _INTS:
                changes[f"{kind} with {name} {value}"] = _set(place, **{name: value})
        for value in (1, 2, 3, 4, 5, 6, 99, -1):
            changes[f"{kind} with fused activation {value}"] = _set(place, fusedActivationFunction=value)
        if kind != "CONCATENATION":
            changes |= {f"{kind} with padding {value}": _set(place, padding=value) for value in (0, 1, 2, 99, -1)}

    def dense(edit: Edit) -> Any:
        return edit.options("FULLY_CONNECTED")

    changes |= {f"weights in format {value}": _set(dense, weightsFormat=value) for value in (1, 99, -1)}
    changes |= {f"beta {value}": _set(lambda edit: edit.options("SOFTMAX"), beta=value) for value in _FLOATS}
    for value in ([4, 4], [-1, 16], [-1, -1], [], [0, 16], [2**31 - 1, 16], [1, 1, 1, 16]):
        changes[f"reshape to {value}"] = lambda edit, value=value: _reshape(edit, value)
    return {
        **changes,
        "dimensions kept": _set(dense, keepNumDims=True),
        "asymmetric inputs": _set(dense, asymmetricQuantizeInputs=True),
        "bias of int64 announced": _set(
            lambda edit: edit.options("CONV_2D"), quantizedBiasType=schema.TensorType.INT64
        ),
        "power-of-two scales": _set(lambda edit: edit.options("ADD"), potScaleInt16=True),
    }


def _reshape(edit: Edit, shape: list[int]) -> None:
    op = edit.operator("RESHAPE")
    tensor = edit.graph.tensors[op.inputs[1]]
    tensor.shape = _ints(len(shape))
    edit.model.buffers[tensor.buffer].data = np.frombuffer(_ints(*shape).tobytes(), np.uint8)
    op.builtinOptions.newShape = _ints(*shape)


def _graph_changes() -> dict[str, Change]:
    def graph(edit: Edit) -> Any:
        return edit.graph

    changes: dict[str, Change] = {}
    for field in ("inputs", "outputs"):
        for number in (-1, -2, 999, 2**31 - 1, -(2**31)):
            changes[f"{field} with tensor {number}"] = _set(graph, **{field: _ints(number)})
        for name in ("conv", "conv/w", "image", "dense"):
            changes[f"{field} are {name}"] = lambda edit, field=field, name=name: setattr(
                edit.graph, field, _ints(edit.number(name))
            )
            changes[f"{field} have {name} as well"] = lambda edit, field=field, name=name: setattr(
                edit.graph, field, np.append(getattr(edit.graph, field), np.int32(edit.number(name)))
            )
        changes |= {
            f"no {field}": _set(graph, **{field: _ints()}),
            f"{field} None": _set(graph, **{field: None}),
            f"{field} twice": lambda edit, field=field: setattr(
                edit.graph, field, np.repeat(getattr(edit.graph, field), 2)
            ),
        }
    return {
        **changes,
        "no tensors": _set(graph, tensors=[]),
        "no operators": _set(graph, operators=[]),
        "operators reversed": lambda edit: edit.graph.operators.reverse(),
        "first operator last": lambda edit: edit.graph.operators.append(edit.graph.operators.pop(0)),
        "first operator missing": lambda edit: edit.graph.operators.__delitem__(0),
        "last operator missing": lambda edit: edit.graph.operators.__delitem__(-1),
        "an operator twice": lambda edit: edit.graph.operators.append(edit.operator("CONV_2D")),
        "an operator 3000 times": lambda edit: edit.graph.operators.extend([edit.operator("ADD")] * 3000),
        "an unused input": _unused_input,
    }


def _unused_input(edit: Edit) -> None:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type = "unused", _ints(1, 3), schema.TensorType.FLOAT32
    edit.graph.tensors.append(tensor)
    edit.graph.inputs = np.append(edit.graph.inputs, np.int32(len(edit.graph.tensors) - 1))
