import numpy as np

from sim.testing.hostile import flips, mutations, small_network, truncations
from sim.testing.mutate import mutate
from sim.testing.tflite_files import unpack


def test_truncations_are_heads_of_the_file() -> None:
    data = small_network()
    parts = [part for _, part in truncations(data)]
    assert len(parts) == 64
    assert parts[0] == b""
    assert all(data.startswith(part) and len(part) < len(data) for part in parts)


def test_flips_change_few_bytes_and_repeat() -> None:
    data = small_network()
    broken = list(flips(data, np.random.default_rng(5), 50))
    again = list(flips(data, np.random.default_rng(5), 50))
    assert broken == again
    for name, other in broken:
        assert len(other) == len(data)
        assert sum(a != b for a, b in zip(data, other, strict=True)) <= 8, name


def test_mutations_are_many_and_differ_from_the_base() -> None:
    files = list(mutations())
    names = [name for name, _ in files]
    assert len(set(names)) == len(names) > 1000
    base = files[0][1]
    assert names[0] == "the base"
    assert sum(data == base for _, data in files) < 40  # some set what is already there
    wrong = dict(files)["conv with scale nan"]
    conv = next(tensor for tensor in unpack(wrong).subgraphs[0].tensors if tensor.name == b"conv")
    assert np.isnan(conv.quantization.scale[0])


def test_random_mutations_stay_files_and_repeat() -> None:
    data = small_network()
    changed = 0
    for i in range(30):
        results = []
        for _ in range(2):
            try:
                results.append(mutate(data, np.random.default_rng(i)))
            except (ValueError, TypeError, OverflowError, AttributeError) as error:
                results.append(type(error))
        assert results[0] == results[1]
        if isinstance(results[0], bytes):
            unpack(results[0])
            changed += results[0] != data
    assert changed > 10
