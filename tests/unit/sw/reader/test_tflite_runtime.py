"""The TFLite runtime in its process: crashes, runs without end, restarts, threads."""

import threading
from pathlib import Path

import numpy as np
import pytest

from sim.testing.tflite_files import FileBuilder, dtype_of, run_reference, unpack
from sw.reader.model import ModelError
from sw.reader.tflite_runtime import TensorInfo, TfliteRuntime

CORPUS = Path(__file__).parents[3] / "corpus"


@pytest.fixture
def runtime():
    runtime = TfliteRuntime()
    yield runtime
    runtime.close()


def sound(channels=3, scale=0.1):
    b = FileBuilder()
    x = b.input("x", (1, 2, 2, channels), "int8", 0.1, 3)
    y = b.tensor("y", (1, 2, 2, channels), "int8", scale, -5)
    b.operator("LEAKY_RELU", [x], [y], {"alpha": 0.3})
    b.output(y)
    return b.serialise()


def numbers(channels=3, seed=0):
    return np.random.default_rng(seed).integers(-128, 128, (1, 2, 2, channels)).astype(np.int8)


def works(runtime):
    (found,) = runtime.run(sound(), [numbers()])
    assert np.array_equal(found, run_reference(sound(), {"x": numbers()})["y"])


def test_describes_tensors(runtime):
    described = runtime.describe(sound(5))
    assert described[0] == described[1] == TensorInfo((1, 2, 2, 5), "int8")


def test_runs(runtime):
    works(runtime)


@pytest.mark.parametrize("name", ["infinite-scale", "flipped-dense", "reshape-without-shape"])
def test_a_file_that_crashes_it_while_it_loads(runtime, name):
    with pytest.raises(ModelError, match=r"^the TFLite runtime crashes on it \((signal|exit code) \d+\)$"):
        runtime.describe((CORPUS / f"{name}.tflite").read_bytes())
    works(runtime)


def test_a_run_that_does_not_end(runtime):
    data = (CORPUS / "endless-while.tflite").read_bytes()
    inputs = inputs_of(data)
    with pytest.raises(ModelError, match=r"^the TFLite runtime does not come to an end within 0\.5 seconds$"):
        runtime.run(data, inputs, seconds=0.5)
    works(runtime)


def inputs_of(data):
    graph = unpack(data).subgraphs[0]
    return [np.zeros([int(n) for n in graph.tensors[i].shape], dtype_of(graph.tensors[i].type)) for i in graph.inputs]


def test_a_refused_file_does_not_end_the_process(runtime):
    works(runtime)
    process = runtime._worker._process
    with pytest.raises(ModelError, match=r"^the TFLite runtime refuses it: "):
        runtime.describe(b"\0\0\0\0TFL3" + b"\0" * 40)
    with pytest.raises(ModelError, match=r"^the TFLite runtime refuses it: "):
        runtime.run(sound(), [numbers(4)])
    works(runtime)
    assert runtime._worker._process is process


def test_a_process_that_was_killed_is_started_again(runtime):
    works(runtime)
    runtime._worker._process.kill()
    runtime._worker._process.wait()
    works(runtime)
    runtime.close()
    works(runtime)


def test_two_threads(runtime):
    """Each gets the answers to its own requests, though the other's crash the process now and then."""
    crashing = (CORPUS / "infinite-scale.tflite").read_bytes()
    faults = []

    def work(channels):
        try:
            data = sound(channels, 0.1 * channels)
            for seed in range(12):
                values = numbers(channels, seed)
                (found,) = runtime.run(data, [values])
                assert np.array_equal(found, run_reference(data, {"x": values})["y"])
                if seed % 5 == channels % 5:
                    with pytest.raises(ModelError, match="crashes on it"):
                        runtime.describe(crashing)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(channels,), daemon=True) for channels in (3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not faults and not any(thread.is_alive() for thread in threads)
