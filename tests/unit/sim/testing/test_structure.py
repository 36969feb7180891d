import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from sim.testing.hostile import small_network
from sim.testing.structure import CHANGES, restructure
from sim.testing.tflite_files import pack, unpack

BASE = small_network()


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_change_makes_another_file(name: str) -> None:
    files = set()
    for i in range(20):
        model = unpack(BASE)
        CHANGES[name](model, np.random.default_rng(i))
        try:
            files.add(pack(model))
        except (ValueError, TypeError, OverflowError):  # a type that the schema cannot hold
            continue
    assert files - {pack(unpack(BASE))}


def test_changes_are_functions_of_the_seed() -> None:
    for i in range(20):
        assert restructure(BASE, np.random.default_rng(i)) == restructure(BASE, np.random.default_rng(i))


def test_float_only_holds_no_integers() -> None:
    model = unpack(BASE)
    CHANGES["float only"](model, np.random.default_rng(0))
    graph = unpack(pack(model)).subgraphs[0]
    kinds = {tensor.type for tensor in graph.tensors if tensor.quantization is None}
    assert kinds == {schema.TensorType.FLOAT32}
    weights = next(tensor for tensor in graph.tensors if tensor.name == b"dense/w")
    data = np.frombuffer(bytes(model.buffers[weights.buffer].data), np.float32)
    assert data.size == np.prod(weights.shape) and 0.1 < np.abs(data).max() < 10


def test_a_loop_reads_what_comes_later() -> None:
    model = unpack(BASE)
    CHANGES["a loop"](model, np.random.default_rng(3))
    made: set[int] = set()
    loops = 0
    for op in model.subgraphs[0].operators:
        later = {int(o.outputs[0]) for o in model.subgraphs[0].operators} - made
        loops += bool(later & {int(number) for number in op.inputs})
        made.add(int(op.outputs[0]))
    assert loops == 1
