"""Networks on the NPU, on every engine: the golden model's bytes, and the same cycles on each."""

import os

import numpy as np
import pytest

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import load_config
from sim import golden
from sim.images import photograph
from sim.session import measure
from sim.testing.random_graphs import KINDS, random_graph, random_inputs
from sw.compiler import compile_graph
from sw.policy import POLICIES, policy
from sw.workloads import quantised_yolov5

CONFIGS = {
    "tiny": load_config("tiny"),
    "ecp5": load_config("ecp5"),
    "wide-bus": load_config("tiny", {"array.n": 8, "dma.bus_bits": 128, "dram.bytes_per_cycle": 16}),
}


def run(graph, inputs, config, buffers, engine, fused=True, frames=1):
    compiled = compile_graph(graph, config, policy(buffers), fused=fused, keep_tensors=True)
    measurement, checked = measure(
        compiled, config, inputs, title="test", engine=engine, frames=frames, golden=golden.run(graph, inputs)
    )
    assert checked.difference is None, str(checked.difference)
    return measurement


def _rng():
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs_on_compiled_rtl(kind):
    rng = _rng()
    for config in CONFIGS.values():
        for _ in range(2):
            graph = random_graph(rng, kind)
            inputs = random_inputs(rng, graph)
            for buffers in POLICIES:
                run(graph, inputs, config, buffers, "rtl", fused=bool(rng.integers(2)))


@pytest.mark.parametrize("buffers", POLICIES)
def test_engines_agree_on_bytes_cycles_and_counters(buffers):
    rng = np.random.default_rng(7)
    config = CONFIGS["tiny"]
    graph = random_graph(rng, "c3", max_size=8, max_channels=8)
    inputs = random_inputs(rng, graph)
    results = [run(graph, inputs, config, buffers, engine) for engine in ("rtl", "amaranth")]
    assert results[0].frame_cycles == results[1].frame_cycles
    assert results[0].layers == results[1].layers
    assert results[0].memory_counters == results[1].memory_counters
    # The host reads counters at the same cycle of both, so even the idle cycles are equal.
    assert results[0].counters == results[1].counters


@pytest.mark.parametrize("buffers", POLICIES)
def test_causes_add_up_to_the_cycles(buffers):
    rng = np.random.default_rng(11)
    graph = random_graph(rng, "layer")
    measurement = run(graph, random_inputs(rng, graph), CONFIGS["tiny"], buffers, "rtl", frames=3)
    counters = measurement.counters
    for engine in Engine:
        assert sum(counters.cause(engine, cause) for cause in Cause) == counters.values["CYCLES"]
    assert measurement.cycles == sum(measurement.frame_cycles) <= counters.values["CYCLES"]


def test_pingpong_is_faster_than_pool_and_moves_no_more_bytes():
    graph = quantised_yolov5("n", 64, 64)
    inputs = {"images": photograph("coffee", 64, 64)}
    slow, fast = (run(graph, inputs, CONFIGS["ecp5"], buffers, "rtl") for buffers in ("pool", "pingpong"))
    assert fast.cycles < slow.cycles
    assert fast.counters.values["WRITE_BYTES_STORE"] == slow.counters.values["WRITE_BYTES_STORE"]


@pytest.mark.parametrize("npu", ["tiny", "ecp5"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_yolov5n(npu, fused):
    graph = quantised_yolov5("n", 64, 64)
    run(graph, {"images": photograph("coffee", 64, 64)}, CONFIGS[npu], "pingpong", "rtl", fused=fused)
