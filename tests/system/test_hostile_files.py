"""Model files that are broken, odd or malicious: refused with one clear line, or the bytes the runtime computes."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import pytest

from sim.testing import fuzz
from sim.testing.file_property import check
from sim.testing.hostile import mutations, small_network, truncations
from sim.testing.tflite_zoo import NETWORKS

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.tflite"))

REFUSED = {
    "wrong versions": (
        "schema version 0",
        "schema version 4",
        "operator version 0",
        "operator version 99",
        "another identifier",
        "builtin code 500",
    ),
    "missing buffers": (
        "no buffers",
        "fewer buffers",
        "conv/w in no buffer",
        "conv/w in buffer 2**32 - 1",
        "conv/w one byte short",
        "conv/w without data",
        "conv/b at offset 2**64 - 1",
    ),
    "absurd shapes": (
        "image with size -1 on axis 0",
        "conv/w with size 2147483647 on axis 0",
        "image with size 0 on axis 0",
        "dense/w with size 0 on axis 0",
        "conv/w scalar",
    ),
    "graphs that are none": (
        "ADD reads what it writes",
        "CONV_2D reads the output",
        "operators reversed",
        "first operator last",
        "CONCATENATION writes the input",
        "SOFTMAX writes tensor 999",
        "outputs with tensor -1",
        "no subgraphs",
        "no operators",
        "endless while with condition 1",
    ),
    "dynamic shapes": ("reshape by an input", "image without rank"),
    "other arithmetic": ("float32", "hybrid", "float16 weights", "int16 activations", "uint8 activations"),
    "scales": (
        "image without quantisation",
        "conv with scale nan",
        "conv with two scales",
        "conv/w with two scales",
        "conv with a scale for each of 8",
        "conv/w along 3",
    ),
}
"""Kinds of files that no reader may accept, with a few of each, by their names in `sim.testing.hostile`."""

EITHER = {
    "bytes around the file": ("something in front", "something behind"),
    "shapes that the runtime works out anew": ("conv of sizes 65536", "dense with size 0 on axis -1"),
    "free axes": ("image with a free batch", "image with a free axis"),
    "odd quantisation": (
        "conv/w with scale 0.0",
        "conv with zero point 128",
        "dense/w along 1",
        "conv/b with zero point 127",
    ),
    "scales of weights and bias": (
        "conv with 1 scales of weights and 1 of the bias",
        "conv with 8 scales of weights and 1 of the bias",
        "depthwise with 1 scales of weights and 8 of the bias",
        "dense with 5 scales of weights and 5 of the bias",
    ),
    "names": ("an escape sequence for a broken tensor", "a line feed for conv", "bytes that are no UTF-8 for image"),
    "odd but sound": (
        "unused subgraph",
        "an operator 3000 times",
        "the subgraph twice",
        "outputs twice",
        "dimensions kept",
        "GATHER of 3",
    ),
}
"""Kinds of files that a reader may accept or not."""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(mutations())


def faults(files: Iterable[tuple[str, bytes]], *, refused: bool = False, host_fallback: bool = True) -> list[str]:
    """What is wrong, a line for each file; with `refused` also that a file is accepted."""
    found = []
    for name, data in files:
        outcome = check(data, host_fallback=host_fallback)
        if outcome.kind == "fault" or (refused and outcome.kind != "refused"):
            found.append(f"{name}: {outcome}")
    return found


def test_a_sound_file_is_accepted_and_compared() -> None:
    outcome = check(small_network())
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_kept_files(path: Path) -> None:
    assert faults([(path.stem, path.read_bytes())]) == []


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_files_that_must_be_refused(kind: str, files: dict[str, bytes]) -> None:
    assert faults(((name, files[name]) for name in REFUSED[kind]), refused=True) == []


@pytest.mark.parametrize("kind", sorted(EITHER))
def test_files_that_may_be_accepted(kind: str, files: dict[str, bytes]) -> None:
    assert faults((name, files[name]) for name in EITHER[kind]) == []


def test_a_file_cut_off_anywhere_is_refused() -> None:
    assert faults(truncations(small_network(), 24), refused=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("network", ["small network", *fuzz.ZOO])
def test_a_network_cut_off_anywhere_is_refused(network: str) -> None:
    data = NETWORKS[network](0) if network in NETWORKS else small_network()
    assert faults(truncations(data, 64), refused=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("host_fallback", [True, False])
def test_every_single_change(host_fallback: bool, files: dict[str, bytes]) -> None:
    assert faults(files.items(), host_fallback=host_fallback) == []


@pytest.mark.slow
def test_random_files(tmp_path: Path) -> None:
    seed = int(os.environ.get("RONDO_SEED") or secrets.randbits(31))
    print(f"RONDO_SEED={seed}")
    reports: list[str] = []
    tally = fuzz.fuzz(seed, 600.0, tmp_path, reports.append, first=5000, most=400)
    assert reports == []
    assert tally.kinds["equal"] > 20
