"""A bad command, address or bus answer fails its job with code and place; the next job runs as if nothing had been."""

import dataclasses
import itertools

import numpy as np
import pytest

from hw.spec.commands import COMMAND_BYTES, Engine, Fault, Opcode
from hw.spec.config import load_config
from sim import golden
from sim.engines import open_device
from sw.compiler import compile_graph
from sw.decode import decode_stream
from sw.driver import Driver, DriverError, JobError
from sw.emit import encode
from sw.policy import policy
from sw.program import BASE_ARENA, BASE_OUTPUT
from sw.random_graphs import random_graph, random_inputs

CONFIG = load_config("tiny")
TIMEOUT = 2_000_000


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(5)
    graph = random_graph(rng, "c3", max_size=8, max_channels=8)
    inputs = random_inputs(rng, graph)
    return compile_graph(graph, CONFIG, policy("pingpong")).program, inputs, golden.run(graph, inputs)


@pytest.fixture
def driver(network):
    with open_device("rtl", CONFIG) as device:
        driver = Driver(device, CONFIG)
        driver.load(network[0])
        yield driver


def _first(program, engine, opcode, condition=lambda command: True):
    for index, command in enumerate(decode_stream(program, engine)):
        if command.opcode == opcode and condition(command):
            return index, command
    raise AssertionError("no such command")


def _patch(driver, program, engine, index, bits):
    """Overwrite one command in memory; returns what undoes it."""
    address = driver.read(f"PROGRAM_{engine.name}_ADDRESS_LOW") + index * COMMAND_BYTES
    before = driver.device.read_memory(address, COMMAND_BYTES)
    driver.device.write_memory(address, bits.to_bytes(COMMAND_BYTES, "little"))
    return lambda: driver.device.write_memory(address, before)


def _group(driver, network):
    group = driver.allocate_group()
    for name, values in network[1].items():
        driver.write_input(group, name, values)
    return group


def _expect_good_job(driver, group, network):
    program, _, expected = network
    assert driver.run(group, 77, TIMEOUT).job == 77
    for name in program.outputs:
        assert np.array_equal(driver.read_tensor(group, name), expected[name])


def _bits(command, **body):
    return encode(Opcode(command.opcode), command.layer, command.operands, command.body | body)


BAD = {
    "opcode": (Engine.COMPUTE, Opcode.CONVOLVE, lambda c: 0, Fault.OPCODE),
    "opcode of another stream": (
        Engine.STORE,
        Opcode.STORE,
        lambda c: encode(Opcode.LOAD, 0, c.operands, c.body),
        Fault.OPCODE,
    ),
    "ring": (
        Engine.LOAD,
        Opcode.LOAD,
        lambda c: encode(Opcode.LOAD, 0, (dataclasses.replace(c.operands[0], ring=40),), c.body),
        Fault.RING,
    ),
    "empty run": (Engine.LOAD, Opcode.LOAD, lambda c: _bits(c, run_bytes=0), Fault.FIELD),
    "too many pixels": (
        Engine.COMPUTE,
        Opcode.CONVOLVE,
        lambda c: _bits(c, out_rows=1000, out_width=1000),
        Fault.FIELD,
    ),
    "load address": (Engine.LOAD, Opcode.LOAD, lambda c: _bits(c, dram_offset=1 << 40), Fault.ADDRESS),
    "store address": (Engine.STORE, Opcode.STORE, lambda c: _bits(c, dram_offset=1 << 24), Fault.ADDRESS),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_command_fails_its_job_and_no_other(driver, network, name):
    engine, opcode, change, fault = BAD[name]
    program = network[0]
    index, command = _first(program, engine, opcode)
    group = _group(driver, network)
    _expect_good_job(driver, group, network)
    undo = _patch(driver, program, engine, index, change(command))
    with pytest.raises(JobError) as caught:
        driver.run(group, 5, TIMEOUT)
    completion = caught.value.completion
    assert (completion.job, completion.fault, completion.engine, completion.command) == (5, fault, engine, index)
    assert f"{fault.name.lower()} fault at {engine.name.lower()} command {index}" in str(caught.value)
    undo()
    # Stopped: nothing runs until the driver resumes the task.
    driver.submit(group, 77)
    with pytest.raises(DriverError, match="no completion within"):
        driver.wait(20_000)
    driver.resume()
    assert driver.wait(TIMEOUT).job == 77
    _expect_good_job(driver, group, network)


def test_a_buffer_beyond_the_memory_is_a_bus_fault(driver, network):
    group = _group(driver, network)
    beyond = dataclasses.replace(group, arena=driver.device.memory_bytes)
    assert {BASE_ARENA, BASE_OUTPUT} <= set(range(4))
    with pytest.raises(JobError) as caught:
        driver.run(beyond, 1, TIMEOUT)
    assert caught.value.completion.fault == Fault.BUS
    driver.resume()
    _expect_good_job(driver, group, network)


def test_a_stream_that_runs_past_its_end_is_a_fetch_fault(driver, network):
    program = network[0]
    group = _group(driver, network)
    count = program.commands(Engine.STORE)
    driver.write("PROGRAM_STORE_COMMANDS", count - 1)
    with pytest.raises(JobError) as caught:
        driver.run(group, 1, TIMEOUT)
    assert (caught.value.completion.fault, caught.value.completion.engine) == (Fault.FETCH, Engine.STORE)
    driver.write("PROGRAM_STORE_COMMANDS", count)
    driver.resume()
    _expect_good_job(driver, group, network)


def test_jobs_queue_and_complete_in_order(driver, network):
    groups = [_group(driver, network) for _ in range(3)]
    for number, group in enumerate(groups):
        driver.submit(group, 100 + number)
    completions = [driver.wait(TIMEOUT) for _ in groups]
    assert [completion.job for completion in completions] == [100, 101, 102]
    for earlier, later in itertools.pairwise(completions):
        assert earlier.finished < later.finished
    for group in groups:
        for name in network[0].outputs:
            assert np.array_equal(driver.read_tensor(group, name), network[2][name])


def test_a_full_job_ring_is_refused(driver, network):
    group = _group(driver, network)
    for number in range(16):
        driver.submit(group, number)
    with pytest.raises(DriverError, match="the job ring is full"):
        driver.submit(group, 16)


def test_another_configuration_is_refused(network):
    other = load_config("tiny", {"dma.outstanding": 4})
    with open_device("rtl", CONFIG) as device, pytest.raises(DriverError, match="has configuration"):
        Driver(device, other)
