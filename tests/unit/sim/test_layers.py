"""Costs of layers: bytes by a walk over every run, cycles of made-up activity, sums that are exact or refused."""

import dataclasses
import os

import numpy as np
import pytest

from hw.spec.causes import Cause
from hw.spec.commands import Engine, Opcode
from hw.spec.config import load_config
from sim.layers import add_costs, layer_causes, layer_costs, layer_cycles, layer_traffic, transfer_bytes
from sim.testing.random_graphs import random_graph
from sw.compiler import compile_graph
from sw.decode import Command
from sw.device import Retirement
from sw.driver import Counters, DriverError
from sw.policy import policy

CONFIG = load_config("tiny")


@pytest.fixture(scope="module")
def program():
    rng = np.random.default_rng(5)
    return compile_graph(random_graph(rng, "c3", max_size=6, max_channels=8), CONFIG, policy("pingpong")).program


def _rng():
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    return np.random.default_rng(seed)


def _walk(body, bus_bytes):
    """Beats of each run, one after the other."""
    total = 0
    for i in np.ndindex(*body["count"]):
        first = body["dram_offset"] + sum(int(k) * stride for k, stride in zip(i, body["dram_stride"], strict=True))
        total += (first + body["run_bytes"] - 1) // bus_bytes - first // bus_bytes + 1
    return total * bus_bytes


@pytest.mark.parametrize("bus_bytes", [4, 16, 64])
def test_bytes_of_random_transfers(bus_bytes):
    rng = _rng()
    for _ in range(60):
        body = {
            "run_bytes": int(rng.integers(1, 3 * bus_bytes)),
            "dram_offset": int(rng.integers(0, 1 << 20)),
            "count": [int(count) for count in rng.integers(1, 7, 3)],
            "dram_stride": [int(stride) for stride in rng.integers(-200, 200, 3) * rng.choice([1, bus_bytes], 3)],
        }
        for opcode in (Opcode.LOAD, Opcode.STORE):
            assert transfer_bytes(Command(opcode, 0, (None,) * 5, body), bus_bytes) == _walk(body, bus_bytes)
        assert transfer_bytes(Command(Opcode.FILL, 0, (None,) * 5, body), bus_bytes) == 0


def test_a_large_transfer_is_not_walked():
    body = {"run_bytes": 1, "dram_offset": 3, "count": [65535] * 3, "dram_stride": [1, 0, 4096]}
    assert transfer_bytes(Command(Opcode.LOAD, 0, (None,) * 5, body), 64) == 65535**3 * 64


def _activity(program, rng):
    """Random cycles for every command, and for no job."""
    rows = 1 + max(map(program.commands, Engine))
    activity = rng.integers(0, 9, (len(Engine), rows, len(Cause))).astype(np.uint64)
    for engine in Engine:
        activity[engine, 1 + program.commands(engine) :] = 0
    # The engines share the clock.
    for engine in Engine:
        activity[engine, 0, Cause.IDLE] += activity.sum(axis=(1, 2)).max() - activity[engine].sum()
    return activity


def _counters(program, activity):
    """What the counters show when exactly that happened."""
    traffic = layer_traffic(program, CONFIG)
    values = {
        f"{engine.name}_{cause.name}": int(activity[engine, :, cause].sum()) for engine in Engine for cause in Cause
    }
    values |= {
        "CYCLES": int(activity[0].sum()),
        "READ_BYTES_LOAD": sum(read for read, _ in traffic),
        "READ_BYTES_FETCH": 128,
        "WRITE_BYTES_STORE": sum(written for _, written in traffic),
        "WRITE_BYTES_COMPLETION": 32,
    }
    return Counters(values)


def test_costs_add_up(program):
    activity = _activity(program, _rng())
    counters = _counters(program, activity)
    layers, outside = layer_costs(program, CONFIG, counters=counters, activity=activity, retirements=[], started=0)
    assert len(layers) == len(program.layers)
    for engine in Engine:
        for cause in Cause:
            total = sum(layer.causes[engine][cause] for layer in (*layers, outside))
            assert total == counters.cause(engine, cause)
    for layer in (*layers, outside):
        assert layer.cycles == sum(layer.causes[Engine.COMPUTE].values())
    assert (outside.dram_read_bytes, outside.dram_write_bytes) == (128, 32)
    # Commands around the layers, and no job.
    first, last = program.layers[0].commands["load"][0], program.layers[-1].commands["load"][1]
    assert first == 1 and last < program.commands(Engine.LOAD)
    rows = [0, 1, *range(1 + last, 1 + program.commands(Engine.LOAD))]
    assert list(outside.causes[Engine.LOAD].values()) == activity[Engine.LOAD, rows].sum(axis=0).tolist()


def test_layers_that_have_more_than_the_counters_are_refused(program):
    activity = _activity(program, np.random.default_rng(1))
    counters = _counters(program, activity)
    for name in ("STORE_BUSY", "READ_BYTES_LOAD", "WRITE_BYTES_STORE", "CYCLES"):
        less = Counters(counters.values | {name: 0})
        with pytest.raises(DriverError, match=r"^the layers have \d+ [a-z ]+, the counters \d+$"):
            layer_costs(program, CONFIG, counters=less, activity=activity, retirements=[], started=0)


def test_commands_that_no_engine_came_to_have_no_cycles(program):
    activity = np.zeros((len(Engine), 1, len(Cause)), np.uint64)
    for causes in layer_causes(program, activity):
        assert all(cycles == 0 for engine in Engine for cycles in causes[engine].values())


def test_without_probes_cycles_come_from_commits(program):
    ends = [layer.commands["compute"][1] - 1 for layer in program.layers]
    retirements = [Retirement(100 + 7 * end, Engine.COMPUTE, 0, end) for end in ends]
    retirements += [Retirement(5, Engine.LOAD, 0, index) for index in range(3)]
    cycles = layer_cycles(program, retirements, 90)
    assert cycles[0] == 10 + 7 * ends[0]
    assert sum(cycles) == 10 + 7 * ends[-1]
    activity = _activity(program, np.random.default_rng(2))
    counters = Counters(_counters(program, activity).values | {"CYCLES": sum(cycles) + 20})
    layers, outside = layer_costs(
        program, CONFIG, counters=counters, activity=None, retirements=retirements, started=90
    )
    assert tuple(layer.cycles for layer in layers) == cycles
    assert outside.cycles == 20
    assert not outside.causes and not any(layer.causes for layer in layers)
    assert add_costs([outside, outside]) == dataclasses.replace(
        outside, cycles=40, dram_read_bytes=256, dram_write_bytes=64
    )
