"""The command line with model files and pictures."""

import csv
import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from sim.cli.main import rondo
from sim.layer_table import COLUMNS
from sim.pictures import read_picture
from sim.results import SCHEMA
from sim.testing.onnx_files import quantised
from sim.testing.tflite_layers import random_inputs
from sim.testing.tflite_zoo import NETWORKS

TINY = ["--npu", "tiny"]


def invoke(*arguments):
    return CliRunner().invoke(rondo, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Networks, a picture, labels, in one folder."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("resnet8", "keyword_spotter", "segmenter", "segmenter_nearest", "yolov5n"):
        (folder / f"{name}.tflite").write_bytes(NETWORKS[name](0))
    (folder / "resnet.onnx").write_bytes(quantised("resnet", 0, unsigned=True, per_channel=True)[0])
    picture = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(picture).save(folder / "picture.png")
    (folder / "labels.txt").write_text("\n".join(f"name {k}" for k in range(10)))
    (folder / "few.txt").write_text("cat\ndog\n")
    (folder / "broken.tflite").write_bytes(NETWORKS["resnet8"](0)[:5000])
    (folder / "text.onnx").write_text("this is no model")
    (folder / "device.tflite").symlink_to("/dev/zero")
    rng = np.random.default_rng(0)
    (inputs,) = random_inputs(NETWORKS["keyword_spotter"](0), rng).values()
    np.save(folder / "inputs.npy", inputs)
    np.savez_compressed(folder / "good.npz", x=inputs)
    damaged = bytearray((folder / "good.npz").read_bytes())
    damaged[60:70] = bytes(10)
    (folder / "damaged.npz").write_bytes(damaged)
    np.save(folder / "wrong_type.npy", inputs.astype(np.float64))
    np.save(folder / "wrong_shape.npy", inputs[:, :-1])
    return folder


def test_a_classifier_sees_a_picture(files, tmp_path):
    result = invoke(
        *("run", "--model", files / "resnet8.tflite", *TINY, "--check", "--image", files / "picture.png"),
        *("--labels", files / "labels.txt", "--draw", tmp_path / "out.png", "--csv", tmp_path / "layers.csv"),
        *("--save", tmp_path / "outputs.npz", "--out", tmp_path / "results"),
    )
    assert result.exit_code == 0, result.output
    assert "check passed: all 10 values of the outputs equal to those of TFLite's reference kernels" in result.output
    assert result.output.count("name ") == 5
    assert "SOFTMAX" in result.output
    assert read_picture(tmp_path / "out.png").shape == (48, 64, 3)
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert [outputs[name].shape for name in outputs.files] == [(1, 10)]
    content = json.loads((tmp_path / "results" / "results.json").read_text())
    jsonschema.validate(content, SCHEMA)
    (run,) = content["runs"]
    with (tmp_path / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert sum(int(row["cycles"]) for row in rows) == run["metrics"]["cycles"]
    assert sum(int(row["dram_read_bytes"]) for row in rows) == run["metrics"]["dram_read_bytes"]
    assert sum(int(row["macs"]) for row in rows) == 12_501_632
    assert [work["operators"] for work in run["host"]] == [["SOFTMAX 15"]]


def test_a_detector_decodes_its_boxes(files, tmp_path):
    result = invoke(
        *("run", "--model", files / "yolov5n.tflite", *TINY, "--image", files / "picture.png"),
        *("--draw", tmp_path / "out.jpg"),
    )
    assert result.exit_code == 0, result.output
    assert "Detections: " in result.output
    assert read_picture(tmp_path / "out.jpg").shape == (48, 64, 3)


def test_an_onnx_file(files):
    result = invoke("run", "--model", files / "resnet.onnx", *TINY, "--check", "--frames", 2)
    assert result.exit_code == 0, result.output
    assert "of the outputs" in result.output and "ONNX's reference evaluator" in result.output


def test_inputs_from_a_file_and_outputs_to_one(files, tmp_path):
    arguments = ["run", "--model", files / "keyword_spotter.tflite", *TINY, "--check", "--save", tmp_path / "o.npz"]
    result = invoke(*arguments, "--input", files / "inputs.npy")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "o.npz") as outputs:
        assert len(outputs.files) == 1


def test_what_the_host_runs_in_the_middle_is_counted(files, tmp_path):
    arguments = ["run", "--model", files / "segmenter.tflite", *TINY]
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert "TRANSPOSE_CONV (operator 3, output 'transpose_conv_4')" in refused.output
    result = invoke(*arguments, "--host-fallback", "--check", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    (work,) = run["host"]
    assert work["operators"] == ["TRANSPOSE_CONV 3"]
    assert work["read_bytes"] > 0 and work["write_bytes"] > 0 and work["seconds"] > 0


def test_other_verbs_take_files_too(files, tmp_path):
    model = files / "segmenter.tflite"
    plan = json.loads(invoke("plan", "--model", model, "--host-fallback", *TINY, "--json").output)
    assert len(plan["programs"]) == 2
    assert "left to the host: TRANSPOSE_CONV 3" in invoke("plan", "--model", model, "--host-fallback", *TINY).output
    result = invoke("compile", "--model", model, "--host-fallback", *TINY, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    images = sorted(tmp_path.iterdir())
    assert [path.name for path in images] == [f"segmenter-tiny-pingpong-{k}of2.rondo" for k in (1, 2)]
    assert "CONVOLVE" in invoke("disasm", images[0]).output
    result = invoke("compare", "--model", files / "segmenter_nearest.tflite", *TINY, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "outputs of every run are equal" in result.output


BAD = {
    "no file": (["plan", "--model", "none.tflite"], "cannot read none.tflite"),
    "broken": (["plan", "--model", "{files}/broken.tflite"], "the TFLite runtime refuses it"),
    "text": (["compile", "--model", "{files}/text.onnx"], "text.onnx: "),
    "suffix": (["plan", "--model", "{files}/labels.txt"], "unknown model"),
    "folder": (["plan", "--model", "{files}"], "unknown model"),
    "device": (["plan", "--model", "{files}/device.tflite"], "it is no file"),
    "device as input": (["run", "--model", "{files}/keyword_spotter.tflite", "--input", "/dev/zero"], "it is no file"),
    "size": (["plan", "--model", "{files}/resnet8.tflite", "--size", "64x64"], "says its own size"),
    "fallback": (["plan", "--host-fallback"], "--host-fallback is for model files"),
    "image and input": (["run", "--image", "a.png", "--input", "b.npy"], "exclude each other"),
    "draw without image": (["run", "--draw", "out.png"], "--draw needs a picture"),
    "draw elsewhere": (["run", "--image", "{files}/picture.png", "--draw", "/none/out.png"], "cannot write"),
    "draw as text": (["run", "--image", "{files}/picture.png", "--draw", "out.txt"], "ends in .png"),
    "no picture": (["run", "--image", "{files}/labels.txt"], "is no picture"),
    "csv": (["run", "--csv", "/none/layers.csv"], "cannot write /none/layers.csv"),
    "save": (["run", "--save", "{files}"], "cannot write"),
    "few labels": (
        ["run", "--model", "{files}/resnet8.tflite", "--labels", "{files}/few.txt"],
        "the labels have 2 lines, but resnet8 has 10 classes",
    ),
    "labels of nothing": (
        ["run", "--model", "{files}/segmenter_nearest.tflite", "--labels", "{files}/labels.txt"],
        "--labels is for YOLOv5 detectors and for classifiers",
    ),
    "picture for numbers": (
        ["run", "--model", "{files}/keyword_spotter.tflite", "--image", "{files}/picture.png"],
        "only input is a picture",
    ),
    "csv over the model": (
        ["run", "--model", "{files}/resnet8.tflite", "--csv", "{files}/resnet8.tflite"],
        "is named twice, or is to be read and written",
    ),
    "draw over the picture": (
        ["run", "--image", "{files}/picture.png", "--draw", "{files}/picture.png"],
        "is named twice, or is to be read and written",
    ),
    "one file for two": (["run", "--csv", "/tmp/same", "--save", "/tmp/same"], "is named twice"),
    "a line break in a name": (["plan", "--model", "no\nsuch.tflite"], "cannot read no such.tflite"),
    "an absurd name": (["plan", "--model", "a" * 300 + ".tflite"], "File name too long"),
    "damaged arrays": (
        ["run", "--model", "{files}/keyword_spotter.tflite", "--input", "{files}/damaged.npz"],
        "is no whole .npy or .npz file",
    ),
    "type": (
        ["run", "--model", "{files}/keyword_spotter.tflite", "--input", "{files}/wrong_type.npy"],
        "is int8, not float64",
    ),
    "shape": (
        ["run", "--model", "{files}/keyword_spotter.tflite", "--input", "{files}/wrong_shape.npy"],
        "has shape [1, 490], not [1, 489]",
    ),
    "no array": (
        ["run", "--model", "{files}/keyword_spotter.tflite", "--input", "{files}/labels.txt"],
        "is no whole .npy or .npz file",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name, files):
    arguments, message = BAD[name]
    done = subprocess.run(
        [sys.executable, "-m", "sim.cli.entry", *(text.format(files=files) for text in arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("rondo: ") and message in lines[0]
    assert done.stdout == ""
