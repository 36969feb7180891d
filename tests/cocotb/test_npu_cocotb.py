"""pytest side: a small network on the whole system under Icarus and Verilator, driven by ``bench_npu``.

The compiled engine (``sim.engines``) runs the same Verilog over the same memory, so cocotb's cycles must be its cycles.
"""

import os
import pathlib
import pickle
import random

import numpy as np
import pytest

from hw.npu import Npu
from hw.spec.config import load_config
from sim import golden
from sim.session import measure
from sim.system import System
from sim.testing.cocotb_runner import SIMULATORS, CocotbRunner
from sim.testing.random_graphs import random_graph, random_inputs
from sim.verilog import generate
from sw.compiler import compile_graph
from sw.policy import policy

BENCH = pathlib.Path(__file__).with_name("bench_npu.py")
NPU = "tiny"
FRAMES = 2


@pytest.fixture(scope="module")
def verilog() -> str:
    config = load_config(NPU)
    return generate(System(config, Npu(config)), "system")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The network, its results and its cycles, in a file."""
    config = load_config(NPU)
    rng = np.random.default_rng(4)
    graph = random_graph(rng, "c3", max_size=6, max_channels=8)
    inputs = random_inputs(rng, graph)
    values = golden.run(graph, inputs)
    compiled = compile_graph(graph, config, policy("pingpong"), keep_tensors=True)
    measured, checked = measure(compiled, config, inputs, title="cocotb", engine="rtl", frames=FRAMES, golden=values)
    assert checked is not None and checked.difference is None
    assert measured.cycles < 10_000 * FRAMES  # Icarus is slow
    path = tmp_path_factory.mktemp("work") / "work.pickle"
    path.write_bytes(pickle.dumps((NPU, compiled, inputs, values, measured)))
    return path


@pytest.mark.filterwarnings("default")  # the runner's own
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_network(
    simulator: str,
    verilog: str,
    work: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = CocotbRunner(simulator, verilog, "system", tmp_path_factory.mktemp(simulator), monkeypatch)
    seed = os.environ.get("RONDO_SEED", str(random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    assert runner.run(BENCH, {"RONDO_WORK": str(work), "RONDO_SEED": seed}) == 2
