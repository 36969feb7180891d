"""A bad command, address or bus answer fails its job with code and place; the next job runs as if nothing had been."""

import dataclasses
import itertools

import numpy as np
import pytest

from hw.spec.commands import COMMAND_BYTES, JOB_BYTES, Engine, Fault, Opcode
from hw.spec.config import load_config
from hw.spec.register_map import REGISTERS
from sim import golden
from sim.engines import open_device
from sim.testing.random_graphs import random_graph, random_inputs
from sw.compiler import compile_graph
from sw.decode import decode_stream
from sw.driver import Driver, DriverError, JobError
from sw.emit import encode
from sw.policy import policy
from sw.program import BASE_ARENA, BASE_INPUT, BASE_OUTPUT

CONFIG = load_config("tiny")
SIZE = CONFIG.scratchpad.bytes
SPACE = 1 << CONFIG.address_bits
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


def _into_the_semaphore(command):
    """The operand that publishes, in place of the data's."""
    semaphore = next(operand for operand in command.operands[1:] if operand)
    return encode(Opcode.STORE, 0, (dataclasses.replace(semaphore, need=0, advance=0),), command.body)


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
    "no such cursor": (
        Engine.STORE,
        Opcode.STORE,
        lambda c: encode(Opcode.STORE, 0, (dataclasses.replace(c.operands[0], cursor=5),), c.body),
        Fault.RING,
    ),
    "more slots than the ring has": (
        Engine.STORE,
        Opcode.STORE,
        lambda c: encode(Opcode.STORE, 0, (dataclasses.replace(c.operands[0], need=9999),), c.body),
        Fault.RING,
    ),
    "a consumer that is not active": (
        Engine.STORE,
        Opcode.STORE,
        lambda c: encode(Opcode.STORE, 0, (dataclasses.replace(c.operands[0], cursor=2),), c.body),
        Fault.RING,
    ),
    "run longer than its ring": (Engine.LOAD, Opcode.LOAD, lambda c: _bits(c, run_bytes=SIZE), Fault.FIELD),
    "stride longer than its ring": (
        Engine.STORE,
        Opcode.STORE,
        lambda c: _bits(c, count=[2, 1, 1], scratchpad_stride=[SIZE, 0, 0]),
        Fault.FIELD,
    ),
    "row longer than its ring": (
        Engine.COMPUTE,
        Opcode.CONVOLVE,
        lambda c: _bits(c, out_rows=2, out_width=1, out_row_stride=SIZE),
        Fault.FIELD,
    ),
    "stride beyond the scratchpad": (
        Engine.COMPUTE,
        Opcode.CONVOLVE,
        lambda c: _bits(c, in_row_stride=1 << 30),
        Fault.FIELD,
    ),
    "data in a semaphore": (Engine.STORE, Opcode.STORE, _into_the_semaphore, Fault.FIELD),
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
    # The first of its opcode that the change fits.
    accumulating = opcode != Opcode.CONVOLVE
    publishes = name == "data in a semaphore"
    index, command = _first(
        program,
        engine,
        opcode,
        lambda c: (accumulating or c.body["accumulate_last"]) and (not publishes or any(c.operands[1:])),
    )
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


@pytest.mark.parametrize("name", ["ring", "too many pixels", "store address", "more slots than the ring has"])
def test_a_bad_command_in_the_amaranth_simulator(name):
    rng = np.random.default_rng(3)
    graph = random_graph(rng, "activation", max_size=4, max_channels=4)
    inputs = random_inputs(rng, graph)
    small = compile_graph(graph, CONFIG, policy("pingpong")).program, inputs, golden.run(graph, inputs)
    engine, opcode, change, fault = BAD[name]
    with open_device("amaranth", CONFIG) as device:
        driver = Driver(device, CONFIG)
        driver.load(small[0])
        index, command = _first(small[0], engine, opcode)
        group = _group(driver, small)
        undo = _patch(driver, small[0], engine, index, change(command))
        with pytest.raises(JobError, match=f"{fault.name.lower()} fault at {engine.name.lower()} command {index}"):
            driver.run(group, 5, 20_000)
        undo()
        driver.resume()
        _expect_good_job(driver, group, small)


def _submit(driver, group, job, buffers):
    """Queue a job whose entry names other buffers: (address, bytes) by base register."""
    driver.write("CONTROL", 0)
    slot = driver.read("DOORBELL") % 16
    driver.submit(group, job)
    entry = _address(driver, "JOB_RING_ADDRESS") + slot * JOB_BYTES
    for base, (address, size) in buffers.items():
        raw = address.to_bytes(8, "little") + size.to_bytes(8, "little")
        driver.device.write_memory(entry + JOB_BYTES // 2 + 16 * base, raw)
    driver.write("CONTROL", 1)


def _address(driver, register):
    return driver.read(f"{register}_LOW") | driver.read(f"{register}_HIGH") << 32


def _point(driver, register, address):
    driver.write(f"{register}_LOW", address & 0xFFFFFFFF)
    driver.write(f"{register}_HIGH", address >> 32)


@pytest.mark.parametrize("bit", [CONFIG.address_bits, 40, 50, 63])
@pytest.mark.parametrize(
    ("base", "engine", "opcode"), [(BASE_INPUT, Engine.LOAD, Opcode.LOAD), (BASE_OUTPUT, Engine.STORE, Opcode.STORE)]
)
def test_a_buffer_beyond_the_address_space_is_an_address_fault(driver, network, base, engine, opcode, bit):
    """Its address without the upper bits would be the right one."""
    program = network[0]
    group = _group(driver, network)
    address = group.input if base == BASE_INPUT else group.output
    index, _ = _first(program, engine, opcode, lambda command: command.body["base"] == base)
    _submit(driver, group, 5, {base: (address | 1 << bit, 1 << 20)})
    with pytest.raises(JobError, match=f"address fault at {engine.name.lower()} command {index}"):
        driver.wait(TIMEOUT)
    driver.resume()
    _expect_good_job(driver, group, network)


def test_a_buffer_that_reaches_beyond_the_address_space_is_an_address_fault_there(driver, network):
    program = network[0]
    group = _group(driver, network)
    index, command = _first(program, Engine.STORE, Opcode.STORE, lambda command: command.body["base"] == BASE_OUTPUT)
    for offset, fault in ((4095, "bus"), (4096, "address")):  # the last byte there is, though not of memory; the next
        undo = _patch(driver, program, Engine.STORE, index, _bits(command, run_bytes=1, dram_offset=offset))
        _submit(driver, group, 5, {BASE_OUTPUT: (SPACE - 4096, 1 << 20)})
        with pytest.raises(JobError, match=f"{fault} fault at store command {index}"):
            driver.wait(TIMEOUT)
        undo()
        driver.resume()
    _expect_good_job(driver, group, network)


@pytest.mark.parametrize("size", [SPACE, SPACE + 4, 1 << 40, (1 << 64) - 1])
def test_a_size_beyond_the_address_space_is_the_whole_of_it(driver, network, size):
    program, _, expected = network
    group = _group(driver, network)
    _submit(driver, group, 5, {BASE_INPUT: (group.input, size), BASE_OUTPUT: (group.output, size)})
    assert driver.wait(TIMEOUT).job == 5
    for name in program.outputs:
        assert np.array_equal(driver.read_tensor(group, name), expected[name])


BEYOND = {"no memory": None, "address space": CONFIG.address_bits, "upper bits": 45}
"""Places where nothing is: after the memory, or where they should be but for one address bit."""


def _beyond(driver, address, where):
    bit = BEYOND[where]
    return driver.device.memory_bytes if bit is None else address | 1 << bit


@pytest.mark.parametrize("where", BEYOND)
@pytest.mark.parametrize("engine", list(Engine))
def test_a_program_that_is_not_there_is_a_fetch_fault(driver, network, engine, where):
    group = _group(driver, network)
    register = f"PROGRAM_{engine.name}_ADDRESS"
    good = _address(driver, register)
    _point(driver, register, _beyond(driver, good, where))
    with pytest.raises(JobError, match=f"job 5 failed: fetch fault at {engine.name.lower()} command 0"):
        driver.run(group, 5, TIMEOUT)
    _point(driver, register, good)
    driver.resume()
    _expect_good_job(driver, group, network)


@pytest.mark.parametrize("where", BEYOND)
def test_a_job_ring_that_is_not_there_is_a_fetch_fault(driver, network, where):
    group = _group(driver, network)
    good = _address(driver, "JOB_RING_ADDRESS")
    _point(driver, "JOB_RING_ADDRESS", _beyond(driver, good, where))
    with pytest.raises(JobError, match="job 0 failed: fetch fault at load command 0"):  # nobody knows its number
        driver.run(group, 5, TIMEOUT)
    _point(driver, "JOB_RING_ADDRESS", good)
    driver.resume()
    _expect_good_job(driver, group, network)


@pytest.mark.parametrize("where", BEYOND)
def test_a_completion_ring_that_is_not_there_is_a_completion_error(driver, network, where):
    """The error stays until it is cleared; the job itself ran, and the next one's completion arrives."""
    group = _group(driver, network)
    good = _address(driver, "COMPLETION_RING_ADDRESS")
    _point(driver, "COMPLETION_RING_ADDRESS", _beyond(driver, good, where))
    driver.submit(group, 5)
    assert driver.device.wait_for_interrupt(TIMEOUT)
    error = REGISTERS["INTERRUPT_STATUS"].fields["COMPLETION_ERROR"].mask
    assert driver.read("INTERRUPT_STATUS") & error
    assert driver.read("INTERRUPT_STATUS") & error
    with pytest.raises(DriverError, match="the completion of job 5 is lost"):
        driver.wait(TIMEOUT)
    assert not driver.read("INTERRUPT_STATUS") & error
    for name in network[0].outputs:
        assert np.array_equal(driver.read_tensor(group, name), network[2][name])
    _point(driver, "COMPLETION_RING_ADDRESS", good)
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
