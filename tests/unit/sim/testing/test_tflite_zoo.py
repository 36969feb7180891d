import os
import secrets

import numpy as np
import pytest

from sim.testing import file_property
from sim.testing.random_files import random_file
from sim.testing.tflite_files import run_reference, unpack
from sim.testing.tflite_layers import quantisation_of, random_inputs
from sim.testing.tflite_zoo import FALLBACK, NETWORKS, yolov5n

OPERATORS = {
    "resnet8": 16,
    "resnet20": 34,
    "mobilenet_v1": 33,
    "keyword_spotter": 14,
    "autoencoder": 10,
}
"""Operators of a few networks, counted by hand from their descriptions."""


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one that RONDO_SEED gives; printed, so that a failure can be repeated."""
    value = int(os.environ.get("RONDO_SEED") or secrets.randbits(31))
    print(f"RONDO_SEED={value}")
    return value


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_values_use_their_range(name: str) -> None:
    data = NETWORKS[name](0)
    values = run_reference(data, random_inputs(data, np.random.default_rng(9)), all_tensors=True)
    graph = unpack(data).subgraphs[0]
    written = {graph.tensors[int(number)].name.decode() for op in graph.operators for number in op.outputs}
    images = [name for name in written if values[name].dtype == np.int8 and values[name].size > 2000]
    assert images or name.startswith("autoencoder")
    for tensor in images:
        assert np.unique(values[tensor]).size > 20, tensor
        assert np.mean(values[tensor] == 127) < 0.2, tensor


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_number_of_operators(name: str) -> None:
    assert len(unpack(NETWORKS[name](0)).subgraphs[0].operators) == OPERATORS[name]


def test_a_network_is_a_function_of_its_seed() -> None:
    build = NETWORKS["segmenter"]
    assert build(3) == build(3)
    assert build(3) != build(4)


def test_yolov5_has_a_row_for_every_box() -> None:
    data = yolov5n(height=96, width=64, classes=3)
    (result,) = run_reference(data, random_inputs(data, np.random.default_rng(0))).values()
    assert result.shape == (1, 3 * (12 * 8 + 6 * 4 + 3 * 2), 8)


def test_fallback_names_exist() -> None:
    assert set(NETWORKS) > FALLBACK


def test_ranges_include_zero() -> None:
    assert quantisation_of(1.0, 5.1) == (pytest.approx(0.02), -128)
    assert quantisation_of(-5.1, -1.0) == (pytest.approx(0.02), 127)
    assert quantisation_of(-1.0, 1.55) == (pytest.approx(0.01), -28)


def test_random_files_run(seed: int) -> None:
    kinds: set[int] = set()
    ran = 0
    for i in range(40):
        data = random_file((seed + i) % 2**31)
        kinds |= {code.builtinCode for code in unpack(data).operatorCodes}
        inputs = list(random_inputs(data, np.random.default_rng(i)).values())
        kind, _ = file_property._ask_runtime(data, inputs)
        ran += kind == "ran"
    assert ran >= 38  # the runtime aborts on HARD_SWISH between some scales
    assert len(kinds) > 8
