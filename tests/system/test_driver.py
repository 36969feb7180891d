"""The driver on the compiled NPU: restarts, lost completions, jobs that hang, programs that follow each other."""

import dataclasses
import os
import re

import numpy as np
import pytest

from hw.spec.causes import Cause
from hw.spec.commands import COMMAND_BYTES, Engine, Opcode
from hw.spec.config import load_config
from sim import golden, session
from sim.engines import open_device
from sim.session import measure
from sim.testing.random_graphs import random_graph, random_inputs
from sw.compiler import compile_graph
from sw.decode import decode_stream
from sw.driver import Counters, Driver, DriverError, DriverTimeout, JobError
from sw.emit import encode
from sw.policy import policy

CONFIG = load_config("tiny")
TIMEOUT = 1_000_000


@pytest.fixture(scope="module")
def rng():
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    return np.random.default_rng(seed)


def _network(rng, kind):
    graph = random_graph(rng, kind, max_size=8, max_channels=8)
    inputs = random_inputs(rng, graph)
    return compile_graph(graph, CONFIG, policy("pingpong")), inputs, golden.run(graph, inputs)


@pytest.fixture(scope="module")
def network(rng):
    return _network(rng, "c3")


@pytest.fixture
def device():
    with open_device("rtl", CONFIG) as device:
        yield device


def _start(device, network, change=lambda program: program):
    driver = Driver(device, CONFIG, settle_cycles=TIMEOUT)
    driver.load(change(network[0].program))
    return driver, _group(driver, network)


def _group(driver, network):
    group = driver.allocate_group()
    for name, values in network[1].items():
        driver.write_input(group, name, values)
    return group


def _expect_good_job(driver, group, network, job):
    assert driver.run(group, job, TIMEOUT).job == job
    for name in network[0].program.outputs:
        assert np.array_equal(driver.read_tensor(group, name), network[2][name])


def _first(program, engine, opcode):
    for index, command in enumerate(decode_stream(program, engine)):
        if command.opcode == opcode:
            return index
    raise AssertionError("no such command")


def _patched(program, engine, opcode, bits):
    """The program with the first command of ``opcode`` replaced."""
    stream, place = bytearray(program.streams[engine]), _first(program, engine, opcode) * COMMAND_BYTES
    stream[place : place + COMMAND_BYTES] = bits.to_bytes(COMMAND_BYTES, "little")
    return dataclasses.replace(program, streams=program.streams | {engine: bytes(stream)})


def _faulty(program):
    return _patched(program, Engine.STORE, Opcode.STORE, 0)


def _hanging(program):
    """Store waits for a tile that compute leaves out."""
    return _patched(program, Engine.COMPUTE, Opcode.CONVOLVE, encode(Opcode.WAIT, 0, ()))


def test_a_lost_completion_is_an_error_and_the_next_job_is_fine(device, network):
    driver, group = _start(device, network)
    ring = driver.read("COMPLETION_RING_ADDRESS_LOW")
    driver.write("COMPLETION_RING_ADDRESS_LOW", device.memory_bytes)
    with pytest.raises(
        DriverError, match=r"the completion of job 3 is lost: the bus answered its write with an error$"
    ):
        driver.run(group, 3, TIMEOUT)
    driver.write("COMPLETION_RING_ADDRESS_LOW", ring)
    for job in (4, 5):
        _expect_good_job(driver, group, network, job)


@pytest.mark.parametrize("moment", ["never enabled", "idle", "unread", "running", "stopped"])
def test_a_new_driver_takes_a_used_device_over(device, network, rng, moment):
    driver, group = _start(device, network, _faulty if moment == "stopped" else lambda program: program)
    if moment == "never enabled":
        driver.write("CONTROL", 0)
        driver.submit(group, 2)
    elif moment == "idle":
        driver.run(group, 1, TIMEOUT)
    else:
        for job in (2, 3, 4):
            driver.submit(group, job)
        device.step(int(rng.integers(10, 5000)) if moment == "running" else 100_000)
        assert driver.read("JOB_HEAD") != 3 or moment == "unread"
    new, group = _start(device, network)
    assert list(new.completions()) == []
    for job in (10, 11):
        _expect_good_job(new, group, network, job)


def test_a_device_whose_job_hangs_is_refused_by_a_new_driver(device, network):
    driver, group = _start(device, network, _hanging)
    driver.submit(group)
    with pytest.raises(DriverError, match="does not end within 50000 cycles: only a reset of the hardware can end it"):
        Driver(device, CONFIG, settle_cycles=50_000)


def test_a_hung_job_keeps_its_buffers(device, network):
    driver, group = _start(device, network, _hanging)
    with pytest.raises(DriverTimeout, match=r"no completion within 50000 cycles$"):
        driver.run(group, 0, 50_000)
    with pytest.raises(DriverError, match="does not end within 50000 cycles"):
        driver.abandon(50_000)
    with pytest.raises(DriverError, match=r"in use by 1 job\(s\) under way"):
        driver.release_group(group)


def test_jobs_queued_behind_a_fault_can_be_given_up(device, network):
    driver, group = _start(device, network, _faulty)
    for job in range(3):
        driver.submit(group, job)
    with pytest.raises(JobError, match="job 0 failed: opcode fault at store"):
        driver.wait(TIMEOUT)
    with pytest.raises(DriverTimeout, match="no completion within 20000 cycles; the task is stopped by fault 1 until"):
        driver.wait(20_000)
    driver.abandon(TIMEOUT)
    driver.release_group(group)
    driver.load(network[0].program)
    _expect_good_job(driver, _group(driver, network), network, 9)


def test_programs_follow_each_other_in_the_same_memory(device, network, rng):
    driver, group = _start(device, network)
    other = _network(rng, "max_pool")
    used = driver.heap.used_bytes
    for job in range(3):
        _expect_good_job(driver, group, network, job)
        driver.load(other[0].program)
        with pytest.raises(DriverError, match="which is no longer the one that is loaded"):
            driver.submit(group)
        theirs = _group(driver, other)
        _expect_good_job(driver, theirs, other, 100 + job)
        driver.release_group(theirs)
        driver.load(network[0].program)
    assert driver.heap.used_bytes == used


def test_a_measurement_of_a_hang_ends_and_says_where(network, monkeypatch):
    compiled, inputs, _ = network
    monkeypatch.setattr(session, "PATIENCE_CYCLES", 10_000)
    limit = session.time_limit(compiled)
    assert limit == 10_000 + 50 * sum(plan.cycles for plan in compiled.plans)
    program = _hanging(compiled.program)
    stores = program.commands(Engine.STORE)
    with pytest.raises(DriverError) as caught:
        measure(dataclasses.replace(compiled, program=program), CONFIG, inputs, title="hang", engine="rtl")
    message = str(caught.value)
    assert message.startswith(f"frame 0: no completion within {limit} cycles; last committed: load command ")
    assert re.search(r", compute command \d+ of \d+ in cycle \d+, ", message) and "\n" not in message
    assert message.endswith(f", store none of {stores}")


def test_counters_of_a_measurement_are_those_of_its_jobs(network):
    compiled, inputs, _ = network
    measured, _ = measure(compiled, CONFIG, inputs, title="counters", engine="rtl", frames=3)
    assert measured.counters.values["CYCLES"] == measured.cycles == sum(measured.frame_cycles)
    for engine in Engine:
        causes = measured.counters.causes(engine)
        assert sum(causes.values()) == measured.cycles
        assert 0 < causes["busy"] < measured.cycles
        # A retirement may stand for RING_CONFIGUREs before it, so the load engine has fewer than commands.
        retired = measured.counters.values[f"RETIRED_{engine.name}"]
        commands = 3 * compiled.program.commands(engine)
        assert 0 < retired <= commands
        assert engine == Engine.LOAD or retired == commands


def test_counters_that_do_not_fit_the_jobs_are_refused():
    names = {f"{engine.name}_{cause.name}": 0 for engine in Engine for cause in Cause}
    window = Counters(names | {"CYCLES": 100, "LOAD_IDLE": 40, "COMPUTE_IDLE": 30, "STORE_IDLE": 30, "STORE_BUSY": 70})
    assert session.job_counters(window, 70).values["LOAD_IDLE"] == 10
    with pytest.raises(DriverError, match="compute was idle in 30 cycles, of 31 in which no job ran"):
        session.job_counters(window, 69)
