import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import golden
from sim.testing import file_property
from sim.testing.file_property import Outcome, check
from sim.testing.hostile_files import built_files
from sim.testing.random_graphs import random_graph, random_inputs
from sim.testing.tflite_files import FileBuilder

CORPUS = Path(__file__).parents[3] / "corpus"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("model.tflite: float32 (CONV_2D #0): quantise it first", "refused"),
        ("x" * 400, "refused"),
        ("x" * 401, "fault"),
        ("two\nlines of text", "fault"),
        ("an escape \x1b[31m sequence", "fault"),
        ("", "fault"),
    ],
)
def test_messages(message: str, kind: str) -> None:
    assert file_property._judge_message(message).kind == kind


@pytest.mark.parametrize(
    ("ours", "text"),
    [
        (np.zeros((1, 4), np.int8), "differ; 0 at 2, not 1"),
        (np.zeros((4,), np.int8), r"int8 (4,), not int8 (1, 4)"),
        (np.zeros((1, 4), np.uint8), "uint8 (1, 4), not int8 (1, 4)"),
    ],
)
def test_differences_are_faults(ours: np.ndarray, text: str) -> None:
    theirs = np.array([[0, 0, 1, 0]], np.int8)
    outcome = file_property._compare([("y", ours)], [("y", theirs)])
    assert outcome.kind == "fault"
    assert text in outcome.text


def test_equal_outputs_with_nan_are_equal() -> None:
    array = np.array([1.0, np.nan], np.float32)
    assert file_property._compare([("y", array)], [("z", array.copy())]) == Outcome("equal", "2 values")
    assert file_property._compare([("y", array)], []).kind == "fault"


def test_processes_that_answer_err_end_and_crash() -> None:
    assert file_property._apart(operator.call, ("ran", 1), (60.0,)) == [("ran", 1)]
    ((kind, text),) = file_property._apart(operator.add, (1,), (60.0,))
    assert (kind, text.split(" at ")[0]) == ("error", "TypeError")
    ((kind, text),) = file_property._apart(operator.is_, (1,), (60.0,))
    assert (kind, text) == ("crash", "the process ended with code 0")
    data = (CORPUS / "hard-swish-tiny-output.tflite").read_bytes()
    inputs = [np.full((1, 4, 9, 17), 100, np.int8)]
    ready, (kind, text) = file_property._apart(file_property._run_runtime, (data, inputs), (60.0, 60.0))
    assert ready == ("ready", None)
    assert (kind, text) == ("crash", "the process ended with code -6")


def test_a_process_that_hangs_is_ended() -> None:
    endless = dict(built_files())["endless while with condition 1"]
    inputs = [np.zeros((1, 2, 2, 4), np.int8)]
    reports = file_property._apart(file_property._run_runtime, (endless, inputs), (60.0, 1.0))
    assert reports == [("ready", None), ("timeout", "no answer in 1 s")]


def test_files_of_unknown_endings_are_refused() -> None:
    outcome = check(b"", suffix=".bin")
    assert outcome.kind == "refused"
    assert "ends in .tflite or .onnx" in outcome.text


def test_programs_are_compiled_and_carried_out() -> None:
    rng = np.random.default_rng(11)
    graph = random_graph(rng, "layer")
    inputs = random_inputs(rng, graph)
    values = golden.run(graph, inputs)
    reports: list[tuple[str, Any]] = []

    def send(kind: str, value: Any = None) -> None:
        reports.append((kind, value))

    for seed in range(4):
        file_property._compile(send, [(graph, inputs, values)], np.random.default_rng(seed))
    assert reports == [("compiled", 1)] * 4
    name = graph.outputs[0]
    file_property._compile(send, [(graph, inputs, {**values, name: values[name] ^ 1})], np.random.default_rng(0))
    kind, text = reports[-1]
    assert kind == "error" and f"tensor {name} differs" in text


@pytest.mark.parametrize(
    ("reports", "kind", "text"),
    [
        ([("refused", "model.tflite: no such operator")], "refused", "no such operator"),
        ([("error", "KeyError at reader.py:1: 7")], "fault", "read_model: KeyError"),
        ([("timeout", "no answer in 120 s")], "fault", "read_model: no answer"),
        ([("read", None), ("large", "too large")], "fault", "the runtime refuses"),
        ([("read", []), ("refused", "the host fails here")], "fault", "the runtime refuses"),
    ],
)
def test_judgements(reports: list[tuple[str, Any]], kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = file_property._apart

    def reader_says(target: Any, *arguments: Any) -> Any:
        return reports if target is file_property._read_and_run else apart(target, *arguments)

    monkeypatch.setattr(file_property, "_apart", reader_says)
    outcome = check(b"\x08\0\0\0TFL3")
    assert outcome.kind == kind and text in outcome.text


@pytest.mark.parametrize(
    ("reports", "kind", "text"),  # of what runs, how far the results are from the runtime's
    [
        ([("ran", 0), ("compiled", 1)], "equal", "10 values"),
        ([("ran", 0), ("no plan", "step y does not fit the scratchpad")], "equal", "10 values"),
        ([("ran", 0), ("no plan", "two\nlines of text")], "fault", "not one printable line"),
        ([("ran", 0), ("error", "KeyError at tiling.py:1: 7")], "fault", "compiled: KeyError"),
        ([("ran", 1), ("compiled", 1)], "fault", "differ"),
        ([("refused", "the host fails here")], "fault", "refused when it runs"),
        ([("error", "ValueError at golden.py:1: 7")], "fault", "evaluate: ValueError"),
        ([("timeout", "no answer in 120 s")], "fault", "evaluate: no answer"),
    ],
)
def test_judgements_of_a_sound_file(
    reports: list[tuple[str, Any]], kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = FileBuilder()
    y = b.tensor("y", (1, 10), "int8", 0.1)
    b.operator("RELU", [b.input("x", (1, 10), "int8", 0.1)], [y])
    b.output(y)
    x = np.arange(10, dtype=np.int8)[None]
    apart = file_property._apart

    def reader_says(target: Any, *arguments: Any) -> Any:
        if target is not file_property._read_and_run:
            return apart(target, *arguments)
        return [("read", [x]), *((kind, [("y", x + value)] if kind == "ran" else value) for kind, value in reports)]

    monkeypatch.setattr(file_property, "_apart", reader_says)
    outcome = check(b.serialise())
    assert outcome.kind == kind and text in outcome.text
