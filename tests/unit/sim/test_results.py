"""``results.json``, the CSV of layers and the tables, of a measurement of two programs."""

import csv
import importlib.metadata
import json

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import load_config
from sim import report
from sim.layer_table import COLUMNS, layer_table, write_csv
from sim.pipeline import HostWork
from sim.results import SCHEMA, as_dict, write_json
from sim.session import combine, measure
from sim.testing.random_graphs import random_graph, random_inputs
from sw.compiler import compile_graph
from sw.policy import policy

CONFIG = load_config("tiny")
HOST = (HostWork(1, ("softmax", "argmax"), 0.25, 40, 8),)


@pytest.fixture(scope="module")
def measurement():
    rng = np.random.default_rng(9)
    parts = []
    for kind in ("c3", "max_pool"):
        graph = random_graph(rng, kind, max_size=8, max_channels=8)
        compiled = compile_graph(graph, CONFIG, policy("pingpong"))
        parts.append(measure(compiled, CONFIG, random_inputs(rng, graph), title="two parts", engine="rtl")[0])
    return combine(parts)


def _render(table, width):
    console = Console(width=width, markup=False, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_content_is_what_the_schema_says(measurement, tmp_path):
    content = as_dict([measurement, measurement], CONFIG, host=[HOST, ()])
    write_json(tmp_path / "results.json", content)
    assert json.loads((tmp_path / "results.json").read_text()) == content
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    assert content["rondo"] == importlib.metadata.version("rondo-npu")
    assert int(content["configuration_hash"], 16) == CONFIG.hash
    run, other = content["runs"]
    assert run["model"] == measurement.model
    assert other["host"] == [] and run["host"][0]["operators"] == ["softmax", "argmax"]
    parts = [*run["layers"], run["outside_layers"]]
    assert sum(part["cycles"] for part in parts) == run["metrics"]["cycles"]
    for key in ("dram_read_bytes", "dram_write_bytes"):
        assert sum(part[key] for part in parts) == run["metrics"][key]
    for engine, causes in run["causes"].items():
        assert {cause: sum(part["causes"][engine][cause] for part in parts) for cause in causes} == causes


@pytest.mark.parametrize("wrong", ["version", "cycles", "extra"])
def test_schema_refuses(measurement, wrong):
    content = as_dict([measurement], CONFIG)
    if wrong == "version":
        content["version"] = 1
    elif wrong == "cycles":
        del content["runs"][0]["layers"][0]["cycles"]
    else:
        content["runs"][0]["outside_layers"]["macs"] = 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SCHEMA)


def test_every_field_is_described():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def walk(schema, path):
        assert len(schema.get("description", "")) > 5, path
        for name, value in schema.get("properties", {}).items():
            walk(value, f"{path}.{name}")
        if schema.get("type") == "array":
            walk(schema["items"], f"{path}[]")

    walk(SCHEMA, "results")


def test_csv_round_trip(measurement, tmp_path):
    path = tmp_path / "layers.csv"
    write_csv(path, measurement)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    costs = (*measurement.layers, measurement.outside)
    assert [row["layer"] for row in rows] == [*map(str, range(len(measurement.layers))), ""]
    for row, cost in zip(rows, costs, strict=True):
        assert (row["name"], row["kind"]) == (cost.name, cost.kind)
        assert tuple(filter(None, row["operators"].split("|"))) == cost.operators
        for name in ("macs", "cycles", "dram_read_bytes", "dram_write_bytes", "scratchpad_bytes"):
            assert int(row[name]) == getattr(cost, name)
        assert float(row["array_utilisation"]) == cost.utilisation
        for engine in Engine:
            for cause in Cause:
                assert int(row[f"{engine.name}_{cause.name}".lower()]) == cost.causes[engine][cause]
    assert sum(int(row["cycles"]) for row in rows) == measurement.cycles
    assert [entry.name for entry in tmp_path.iterdir()] == ["layers.csv"]


def test_csv_that_cannot_be_written(measurement, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_csv(tmp_path / "nowhere" / "layers.csv", measurement)


def test_table_has_the_causes_that_occur(measurement):
    text = _render(layer_table(measurement), 159)
    lines = text.splitlines()
    assert max(map(len, lines)) < 160 and "…" not in text
    for layer in measurement.layers:
        (line,) = (line for line in lines if line.split()[:1] == [layer.name])
        assert f"{layer.cycles:,}" in line and layer.kind in line
        assert f"{layer.dram_read_bytes / 1e3:,.1f}" in line
    costs = (*measurement.layers, measurement.outside)
    header = lines[2:4]
    for cause in (Cause.PIPELINE, Cause.BANK_CONFLICT, Cause.WAIT_FILLED, Cause.WAIT_FREE, Cause.MEMORY):
        occurs = any(cost.causes[Engine.COMPUTE][cause] for cost in costs)
        assert any(cause.name.lower().split("_")[-1] in line for line in header) == occurs, cause
    (total,) = (line for line in lines if line.split()[:1] == ["frame"])
    assert f"{measurement.cycles:,}" in total


def test_host_work_is_a_row_a_stage(measurement):
    text = _render(report.host_work(HOST, measurement), 120)
    assert "softmax, argmax" in text and "0.250" in text
