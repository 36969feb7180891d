"""pytest side: the register file's Verilog under Icarus and Verilator, driven by ``bench_registers``."""

import os
import pathlib
import random

import pytest
from amaranth.back import verilog

from hw.registers import RegisterFile
from hw.spec.config import load_config
from sim.testing.cocotb_runner import SIMULATORS, CocotbRunner

BENCH = pathlib.Path(__file__).with_name("bench_registers.py")


@pytest.mark.filterwarnings("default")  # the runner's own
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_registers(simulator: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")
    config = load_config("tiny")
    text = verilog.convert(RegisterFile(config), name="registers", emit_src=False)
    runner = CocotbRunner(simulator, text, "registers", tmp_path, monkeypatch)
    seed = os.environ.get("RONDO_SEED", str(random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    for patience in ("1.0", "0.4"):
        environment = {"RONDO_SEED": seed, "RONDO_PATIENCE": patience, "RONDO_HASH": str(config.hash)}
        assert runner.run(BENCH, environment, f"results_{patience}") == 4
