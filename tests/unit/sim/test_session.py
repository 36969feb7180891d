"""Measurements of networks on the engines: layers are exact, and several programs are measured as one."""

import dataclasses
import os

import numpy as np
import pytest

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import load_config
from sim import golden
from sim.engines import open_device
from sim.layers import layer_causes, layer_cycles
from sim.session import combine, measure, measure_on
from sim.testing.random_graphs import KINDS, random_graph, random_inputs
from sw.compiler import compile_graph
from sw.driver import Driver
from sw.policy import POLICIES, policy

CONFIG = load_config("tiny")


def _rng():
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    return np.random.default_rng(seed)


def _check_sums(measurement, frames=1):
    """Layers and what is outside add up to the counters, and what is outside is what the counters call so."""
    parts = (*measurement.layers, measurement.outside)
    counters = measurement.counters
    assert sum(part.cycles for part in parts) == measurement.frame_cycles[-1]
    assert all(part.cycles >= 0 for part in parts)
    for engine in Engine:
        sums = {cause: sum(part.causes[engine][cause] for part in parts) for cause in Cause}
        assert sum(sums.values()) == measurement.frame_cycles[-1]
        if frames == 1:
            assert sums == {cause: counters.cause(engine, cause) for cause in Cause}
        # No layer has a cycle in which its engine was in no job.
        assert not any(layer.causes[engine][Cause.IDLE] for layer in measurement.layers)
    for layer in measurement.layers:
        assert layer.cycles == sum(layer.causes[Engine.COMPUTE].values())
    assert measurement.outside.dram_read_bytes * frames == counters.values["READ_BYTES_FETCH"]
    assert measurement.outside.dram_write_bytes * frames == counters.values["WRITE_BYTES_COMPLETION"]
    assert max(layer.scratchpad_bytes for layer in measurement.layers) <= CONFIG.scratchpad.bytes


@pytest.mark.parametrize("kind", KINDS)
def test_layers_add_up_to_the_counters(kind):
    rng = _rng()
    for buffers in POLICIES:
        graph = random_graph(rng, kind)
        compiled = compile_graph(graph, CONFIG, policy(buffers), fused=bool(rng.integers(2)))
        frames = int(rng.integers(1, 3))
        measurement, _ = measure(compiled, CONFIG, random_inputs(rng, graph), title="sums", engine="rtl", frames=frames)
        _check_sums(measurement, frames)
        assert [layer.operators for layer in measurement.layers] == [
            layer.operators for layer in compiled.program.layers
        ]


def test_engines_agree_on_activity():
    rng = _rng()
    graph = random_graph(rng, "layer", max_size=4, max_channels=6)
    inputs = random_inputs(rng, graph)
    program = compile_graph(graph, CONFIG, policy("pingpong")).program
    seen = []
    for engine in ("rtl", "amaranth"):
        with open_device(engine, CONFIG) as device:
            driver = Driver(device, CONFIG)
            driver.load(program)
            group = driver.allocate_group()
            for name, values in inputs.items():
                driver.write_input(group, name, values)
            device.retirements()
            device.activity()
            before, first = driver.counters(), device.cycle
            begun = device.activity()
            completion = driver.run(group)
            activity, retirements, cycles = device.activity(), device.retirements(), device.cycle - first
            counters = driver.counters() - before
            assert begun is not None and activity is not None
            assert (activity.sum(axis=(1, 2)) == cycles).all()
            for engine_ in Engine:
                # Whatever is not idle happened inside the job.
                for cause in Cause:
                    if cause is not Cause.IDLE:
                        assert activity[engine_, :, cause].sum() == counters.cause(engine_, cause)
                assert activity[engine_].shape[0] == 1 + max(map(program.commands, Engine))
            # An engine is at a layer until its last command is committed.
            found = tuple(sum(causes[Engine.COMPUTE].values()) for causes in layer_causes(program, activity))
            assert found == layer_cycles(program, retirements, completion.started)
            seen.append((begun.tolist(), activity.tolist()))
            assert device.activity() is not None  # reading the counters took time
            assert device.activity() is None
    assert seen[0] == seen[1]


def test_programs_on_one_device_are_measured_as_one():
    rng = _rng()
    graphs = [random_graph(rng, kind) for kind in ("layer", "max_pool")]
    inputs = [random_inputs(rng, graph) for graph in graphs]
    programs = [compile_graph(graph, CONFIG, policy("pingpong"), keep_tensors=True) for graph in graphs]
    alone = [
        measure(program, CONFIG, values, title="alone", engine="rtl", frames=2)[0]
        for program, values in zip(programs, inputs, strict=True)
    ]
    with open_device("rtl", CONFIG) as device:
        driver = Driver(device, CONFIG)
        parts = []
        for graph, program, values in zip(graphs, programs, inputs, strict=True):
            expected = golden.run(graph, values)
            measurement, outputs, checked = measure_on(
                device, driver, program, values, title="both", engine="rtl", frames=2, golden=expected
            )
            assert checked is not None and checked.difference is None
            assert set(outputs) == set(graph.outputs)
            for name, found in outputs.items():
                np.testing.assert_array_equal(found, expected[name])
            parts.append(measurement)
    for together, single in zip(parts, alone, strict=True):
        assert together.frame_cycles == single.frame_cycles
        assert (together.layers, together.outside) == (single.layers, single.outside)
        assert together.counters == single.counters
    both = combine(parts)
    _check_sums(both, frames=2)
    assert both.cycles == sum(part.cycles for part in parts) == sum(both.frame_cycles)
    assert both.macs == sum(program.program.macs for program in programs)
    assert both.layers == (*parts[0].layers, *parts[1].layers)
    assert both.memory_counters["bytes_read"] == sum(part.memory_counters["bytes_read"] for part in parts)
    assert both.scratchpad_peak_bytes == max(part.scratchpad_peak_bytes for part in parts)
    assert combine(parts[:1]) == parts[0]


def test_only_measurements_of_as_many_frames_are_combined():
    rng = np.random.default_rng(3)
    graph = random_graph(rng, "layer", max_size=4, max_channels=4)
    compiled = compile_graph(graph, CONFIG, policy("pool"))
    measurement, _ = measure(compiled, CONFIG, random_inputs(rng, graph), title="one", engine="rtl")
    for parts in ([], [measurement, dataclasses.replace(measurement, frames=2)]):
        with pytest.raises(ValueError, match="as many frames"):
            combine(parts)
