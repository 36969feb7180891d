"""Inputs of a network: from files, from pictures, by default; and its outputs into a file."""

import numpy as np
import pytest

from sim.inputs import InputError, default, of_file, of_picture, save
from sw.reader.model import Model, Port


def model(*ports):
    return Model("m", ports, (), ())


A, B = Port("a", (1, 4), "int8"), Port("b", (1, 2, 3), "float32")


def test_outputs_of_any_name_are_saved(tmp_path):
    outputs = {"file": np.arange(3), "allow_pickle": np.zeros((2, 2), np.int8), "a/b: c": np.float32(1.5).reshape(1)}
    save(tmp_path / "o.npz", outputs)
    with np.load(tmp_path / "o.npz", allow_pickle=False) as read:
        assert sorted(read.files) == sorted(outputs)
        for name, values in outputs.items():
            assert np.array_equal(read[name], values) and read[name].dtype == values.dtype


def test_arrays_by_name_with_or_without_the_batch(tmp_path):
    np.savez(tmp_path / "i.npz", a=np.ones(4, np.int8), b=np.ones((1, 2, 3), np.float32))
    values = of_file(model(A, B), tmp_path / "i.npz")
    assert values["a"].shape == (1, 4) and values["b"].shape == (1, 2, 3)
    np.save(tmp_path / "i.npy", np.ones((1, 4), np.int8))
    assert of_file(model(A), tmp_path / "i.npy")["a"].tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(4, np.int8)}, "has no array 'b'"),
        ({"a": np.ones(4, np.uint8), "b": np.ones((2, 3), np.float32)}, "input 'a' is int8, not uint8"),
        ({"a": np.ones(5, np.int8), "b": np.ones((2, 3), np.float32)}, r"has shape \[1, 4\], not \[5\]"),
        ({"a": np.ones(4, np.int8), "b": np.full((2, 3), np.nan, np.float32)}, "no finite numbers"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message, tmp_path):
    np.savez(tmp_path / "i.npz", **arrays)
    with pytest.raises(InputError, match=message):
        of_file(model(A, B), tmp_path / "i.npz")


def test_damaged_files(tmp_path):
    np.savez_compressed(tmp_path / "good.npz", a=np.arange(400, dtype=np.int8))
    data = (tmp_path / "good.npz").read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(200):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            changed[place] = rng.integers(256)
        (tmp_path / "bad.npz").write_bytes(changed[: rng.integers(1, len(data))])
        with pytest.raises(InputError, match="bad"):
            of_file(model(A), tmp_path / "bad.npz")


def test_defaults_are_the_same_every_time():
    image = Port("x", (1, 32, 32, 3), "uint8", (1 / 255, 0))
    first, second = default(model(A, B, image)), default(model(A, B, image))
    assert set(first) == {"a", "b", "x"}
    for name, values in first.items():
        assert np.array_equal(values, second[name])
    assert len(np.unique(first["x"])) > 50  # a photograph


def test_a_picture_is_for_one_picture_only():
    with pytest.raises(InputError, match="only input is a picture"):
        of_picture(model(A), np.zeros((4, 4, 3), np.uint8))
