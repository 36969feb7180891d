"""The command line: what it prints and writes, and one clear line with exit code 2 for bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from sim.cli.main import rondo
from sim.results import SCHEMA

SMALL = ["--model", "yolov5n", "--size", "32x32", "--npu", "tiny"]


def invoke(*arguments):
    return CliRunner().invoke(rondo, [str(argument) for argument in arguments])


def test_run_checks_every_tensor_and_writes_results(tmp_path):
    result = invoke("run", *SMALL, "--check", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "check passed: 79 tensors" in result.output
    assert "cycles a second" in result.output
    content = json.loads((tmp_path / "results.json").read_text())
    jsonschema.validate(content, SCHEMA)
    (only,) = content["runs"]
    for causes in only["causes"].values():
        assert sum(causes.values()) == only["counters"]["cycles"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_check_all_compares_tensors_that_fusion_hides(tmp_path):
    result = invoke("run", *SMALL, "--check=all")
    assert result.exit_code == 0, result.output
    assert "check passed: 146 tensors" in result.output


def test_a_mismatch_is_exit_code_1_and_names_the_first_place(monkeypatch):
    def wrong(graph, inputs):
        values = real(graph, inputs)
        changed = values["model.1"].copy()
        changed[2, 3, 5] ^= 1
        return values | {"model.1": changed}

    from sim import golden

    real = golden.run
    monkeypatch.setattr("sim.pipeline.golden_model.run", wrong)
    result = invoke("run", *SMALL, "--check")
    assert result.exit_code == 1
    assert "tensor model.1 differs in 1 values, first at row 2, column 3, channel 5" in result.output


def test_compare_prints_json_alone_on_standard_output(tmp_path):
    command = [sys.executable, "-m", "sim.cli.entry", "compare", *SMALL, "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    content = json.loads(done.stdout)
    jsonschema.validate(content, SCHEMA)
    assert [run["buffers"] for run in content["runs"]] == ["pool", "pingpong"]
    assert content == json.loads((tmp_path / "results.json").read_text())


def test_plan_compile_and_disasm(tmp_path):
    result = invoke("plan", *SMALL)
    assert result.exit_code == 0
    assert "lower bound" in result.output
    (plan,) = json.loads(invoke("plan", *SMALL, "--json").output)["programs"]
    assert plan["arena_peak_bytes"] >= plan["arena_lower_bound_bytes"] > 0
    assert invoke("compile", *SMALL, "--out", tmp_path).exit_code == 0
    (image,) = tmp_path.iterdir()
    text = invoke("disasm", image).output
    assert "# layer 0: model.0" in text
    assert text.count("END") == 3
    assert "CONVOLVE" not in invoke("disasm", image, "--stream", "load").output


BAD = {
    "size": (["run", "--size", "65x64"], "must be multiples of 32"),
    "size text": (["run", "--size", "640"], "--size wants HEIGHTxWIDTH"),
    "model": (["run", "--model", "resnet"], "unknown model 'resnet'"),
    "preset": (["plan", "--npu", "huge"], "unknown NPU preset 'huge'"),
    "policy": (["compare", "--buffers", "pool,magic"], "unknown buffer policy 'magic'"),
    "engine": (["run", "--engine", "fpga"], "unknown engine 'fpga'"),
    "check": (["run", "--check=some"], "--check is either alone or --check=all"),
    "setting": (["run", "--set", "array.n=7"], "array.n must be"),
    "setting key": (["run", "--set", "array.m=7"], "unknown configuration key array.m"),
    "setting text": (["run", "--set", "array.n"], "wants KEY=VALUE"),
    "two policies": (["run", "--buffers", "pool,pingpong"], "takes one buffer policy"),
    "frames": (["run", "--frames", "0"], "--frames"),
    "option": (["run", "--no-such"], "No such option"),
    "verb": (["fly"], "No such command"),
    "scratchpad": (["plan", "--set", "scratchpad.bytes=32768"], "does not fit the scratchpad"),
    "rings": (["plan", "--set", "rings.count=8"], "the compiler needs 13 rings"),
    "memory": (["run", "--size", "64x64", "--set", "dram.bytes=1048576"], "dram.bytes is 1,048,576"),
    "name": (["plan", "--set", "name=[red]x[/nope]"], "name must be 1 to 64"),
    "run that does not fit": (["compare", "--set", "scratchpad.bytes=32768"], "does not fit the scratchpad"),
    "image": (["disasm", "/nowhere.rondo"], "cannot read /nowhere.rondo"),
    "folder": (["compare", "--out", "/proc/nothing/here"], "cannot write to /proc/nothing/here"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name):
    arguments, message = BAD[name]
    done = subprocess.run(
        [sys.executable, "-m", "sim.cli.entry", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("rondo: ")
    assert message in lines[0]
    assert done.stdout == ""


def test_a_missing_compiler_is_one_line(tmp_path):
    environment = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("CXX", None)
    done = subprocess.run(
        [sys.executable, "-m", "sim.cli.entry", "run", *SMALL],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "rondo: engine 'rtl' needs a C++ compiler (g++), which is not on PATH; try engine 'amaranth'"
    ]


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sim.cli.entry", "run", "--model", "yolov5n", "--size", "64x64", "--npu", "tiny"]
    process = subprocess.Popen(
        [*command, "--frames", "1000", "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not out.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert list(out.iterdir()) == []


def test_layers_add_up_to_the_frame(tmp_path):
    invoke("run", *SMALL, "--out", tmp_path)
    (only,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    total = sum(layer["cycles"] for layer in only["layers"])
    assert 0.9 * only["metrics"]["cycles"] <= total <= only["metrics"]["cycles"]
    assert np.isclose(
        only["metrics"]["array_utilisation"],
        sum(layer["macs"] for layer in only["layers"]) / (16 * only["metrics"]["cycles"]),
    )
