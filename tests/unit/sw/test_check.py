"""The static check passes what the compiler writes, and finds each kind of planted fault."""

import dataclasses

import pytest

from hw.spec.commands import Engine, Opcode
from hw.spec.config import load_config
from sw.check import CheckError, check_program, check_streams
from sw.compiler import compile_graph
from sw.decode import decode_stream
from sw.policy import POLICIES, policy
from sw.workloads import quantised_yolov5

CONFIG = load_config("tiny")


@pytest.fixture(scope="module")
def program():
    graph = quantised_yolov5("n", 32, 32)
    return compile_graph(graph, CONFIG, policy("pingpong")).program


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_programs_pass_as_consecutive_jobs(name):
    graph = quantised_yolov5("n", 32, 32)
    check_program(compile_graph(graph, CONFIG, policy(name)).program, CONFIG, jobs=2)


def _streams(program):
    return {engine: decode_stream(program, engine) for engine in Engine}


def _check(program, streams, buffer_bytes=None):
    check_streams(streams, buffer_bytes or program.buffer_bytes, CONFIG)


def _find(commands, opcode, condition=lambda command: True):
    return next(i for i, c in enumerate(commands) if c.opcode == opcode and condition(c))


def _change(command, operand=None, body=None, **fields):
    operands = list(command.operands)
    if operand is not None:
        operands[operand] = dataclasses.replace(operands[operand], **fields)
    return dataclasses.replace(command, operands=tuple(operands), body=command.body | (body or {}))


def test_another_configuration_is_refused(program):
    with pytest.raises(CheckError, match="is for configuration"):
        check_program(program, load_config("ecp5"))


def test_a_load_that_is_left_out_is_a_deadlock(program):
    streams = _streams(program)
    del streams[Engine.LOAD][_find(streams[Engine.LOAD], Opcode.LOAD)]
    with pytest.raises(CheckError, match=r"deadlock: .*compute command 0 .*waits for 1 filled slots"):
        _check(program, streams)


def test_a_store_that_is_left_out_is_a_deadlock(program):
    streams = _streams(program)
    del streams[Engine.STORE][_find(streams[Engine.STORE], Opcode.STORE, lambda c: c.operands[1] is not None)]
    with pytest.raises(CheckError, match="deadlock"):
        _check(program, streams)


def test_a_store_that_no_load_waits_for_is_missed_by_the_load_itself(program):
    streams = _streams(program)
    del streams[Engine.STORE][_find(streams[Engine.STORE], Opcode.STORE, lambda c: c.operands[1] is None)]
    with pytest.raises(CheckError, match=r"reads DRAM that nothing has written"):
        _check(program, streams)


def test_publishing_more_than_reserved_is_an_overflow(program):
    streams = _streams(program)
    index = _find(streams[Engine.COMPUTE], Opcode.CONVOLVE)
    streams[Engine.COMPUTE][index] = _change(streams[Engine.COMPUTE][index], 4, need=0)
    with pytest.raises(CheckError, match="beyond"):
        _check(program, streams)


def test_a_read_before_the_slot_is_written_is_found(program):
    streams = _streams(program)
    index = _find(streams[Engine.LOAD], Opcode.LOAD, lambda c: c.body["run_bytes"] > 300)
    command = streams[Engine.LOAD][index]
    streams[Engine.LOAD][index] = _change(command, body={"run_bytes": command.body["run_bytes"] - 128})
    with pytest.raises(CheckError, match="that nothing has written"):
        _check(program, streams)


def test_a_load_that_does_not_wait_for_its_store_is_found(program):
    streams = _streams(program)
    index = _find(streams[Engine.LOAD], Opcode.LOAD, lambda c: c.operands[1] is not None)
    command = streams[Engine.LOAD][index]
    streams[Engine.LOAD][index] = dataclasses.replace(command, operands=(command.operands[0], *[None] * 4))
    with pytest.raises(CheckError, match=r"reads DRAM that nothing has written|may read DRAM before"):
        _check(program, streams)


def test_a_store_over_bytes_still_to_be_loaded_is_found(program):
    streams = _streams(program)
    stores = streams[Engine.STORE]
    # The first layer's second store lands on the network's input, which later loads still read.
    stores[1] = _change(stores[1], body={"base": 2, "dram_offset": 0})
    with pytest.raises(CheckError):
        _check(program, streams)


def test_a_ring_over_another_that_is_not_waited_for_is_found(program):
    streams = _streams(program)
    loads = streams[Engine.LOAD]
    configures = [i for i, c in enumerate(loads) if c.opcode == Opcode.RING_CONFIGURE]
    first = loads[configures[1]]
    index = next(i for i in configures[2:] if loads[i].body["ring"] != first.body["ring"] and loads[i].body["ring"] < 6)
    loads[index] = _change(loads[index], body={"base": first.body["base"], "drained_mask": 0})
    with pytest.raises(CheckError, match="without waiting for it"):
        _check(program, streams)


def test_an_address_outside_a_buffer_is_found(program):
    sizes = program.buffer_bytes | {"arena": program.buffer_bytes["arena"] // 2}
    with pytest.raises(CheckError, match="of a buffer of"):
        _check(program, _streams(program), sizes)


def test_a_stream_without_end_is_found(program):
    streams = _streams(program)
    streams[Engine.STORE].pop()
    with pytest.raises(CheckError, match="does not end with END"):
        _check(program, streams)
