"""Compiled commands carried out without hardware give the golden model's bytes: the compiler is right."""

import os

import numpy as np
import pytest

from hw.spec.config import load_config
from sim import golden
from sim.functional import Functional
from sim.images import photograph
from sim.testing.random_graphs import KINDS, random_graph, random_inputs
from sim.verify import check_tensors
from sw.check import check_program
from sw.compiler import compile_graph
from sw.layout import TensorLayout
from sw.policy import POLICIES, policy
from sw.workloads import quantised_yolov5

CONFIGS = [
    load_config("tiny"),
    load_config("ecp5"),
    load_config("tiny", {"array.n": 8, "dma.bus_bits": 128}),
    load_config("tiny", {"array.n": 16, "dma.bus_bits": 32, "accumulator.lines": 64}),
]


def differences(graph, inputs, config, buffers, fused):
    compiled = compile_graph(graph, config, policy(buffers), fused=fused, keep_tensors=True)
    program = compiled.program
    check_program(program, config)
    memory = {
        base: np.zeros(program.buffer_bytes[name], np.uint8)
        for base, name in enumerate(("constants", "arena", "input", "output"))
    }
    memory[0][:] = np.frombuffer(program.constants, np.uint8)
    for name, values in inputs.items():
        stored = program.tensors[name]
        raw = TensorLayout(*stored.shape, program.n, stored.packed).pack(values)
        memory[2][stored.offset : stored.offset + len(raw)] = np.frombuffer(raw, np.uint8)
    Functional(config, memory).run(program)

    def read(base, offset, size):
        return memory[base][offset : offset + size].tobytes()

    return [str(d) for _, d in check_tensors(compiled, golden.run(graph, inputs), read) if d is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_random_graphs(kind, fused):
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    rng = np.random.default_rng(seed)
    for config in CONFIGS:
        graph = random_graph(rng, kind)
        inputs = random_inputs(rng, graph)
        for buffers in POLICIES:
            assert differences(graph, inputs, config, buffers, fused) == []


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 160)])
@pytest.mark.parametrize("buffers", POLICIES)
def test_yolov5n(height, width, buffers):
    graph = quantised_yolov5("n", height, width)
    inputs = {"images": photograph("coffee", height, width)}
    assert differences(graph, inputs, load_config("edge"), buffers, True) == []
