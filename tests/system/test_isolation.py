"""Nothing of one job or program is seen by the next: activation tables, and the places and shapes of rings."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hw.spec.commands import Cursor, Engine, Fault, Opcode
from hw.spec.config import load_config
from hw.spec.numerics import relu_table
from sim import golden
from sim.engines import open_device
from sim.testing.random_graphs import random_graph, random_inputs
from sw.compiler import compile_graph
from sw.driver import Driver, JobError
from sw.emit import Operand, Streams
from sw.graph import Activation, Graph
from sw.policy import policy
from sw.program import BASE_INPUT, BASE_OUTPUT, Program

CONFIG = load_config("tiny")
TIMEOUT = 200_000
PRODUCER = Cursor.PRODUCER
C0, C1 = Cursor.CONSUMER_0, Cursor.CONSUMER_1


def _rng():
    seed = int(os.environ.get("RONDO_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"RONDO_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def driver():
    with open_device("rtl", CONFIG) as device:
        yield Driver(device, CONFIG)


# --- activation tables ---------------------------------------------------------------------------------------------


def _silu_and_relu(rng) -> list[Graph]:
    """Two graphs that differ in the table alone."""
    while True:
        graph = random_graph(rng, "layer", max_size=6, max_channels=8)
        if any(isinstance(op, Activation) and op.kind == "silu" for op in graph.operators):
            break

    def relu(op):
        if not isinstance(op, Activation):
            return op
        before, after = (graph.tensors[name] for name in (op.inputs[0], op.output))
        table = relu_table(before.scale, before.zero_point, after.scale, after.zero_point, None)
        return dataclasses.replace(op, kind="relu", table=table)

    operators = [relu(op) for op in graph.operators]
    return [graph, Graph("relu", graph.inputs, graph.outputs, graph.tensors, operators)]


def test_a_program_uses_no_table_of_the_one_before(driver):
    rng = _rng()
    graphs = _silu_and_relu(rng)
    inputs = random_inputs(rng, graphs[0])
    expected = [golden.run(graph, inputs) for graph in graphs]
    name = graphs[0].outputs[0]
    assert not np.array_equal(expected[0][name], expected[1][name])
    for turn in (0, 1, 0):
        driver.load(compile_graph(graphs[turn], CONFIG, policy("pingpong")).program)
        group = driver.allocate_group()
        for tensor, values in inputs.items():
            driver.write_input(group, tensor, values)
        for job in range(2):
            driver.run(group, job, TIMEOUT)
            assert np.array_equal(driver.read_tensor(group, name), expected[turn][name])


# --- rings ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame():
    """Any program, for all but its streams."""
    graph = random_graph(np.random.default_rng(1), "activation", max_size=4, max_channels=4)
    return compile_graph(graph, CONFIG, policy("pingpong")).program


class Copy:
    """A program that copies its input to its output, slots of 16 bytes, through a ring."""

    SLOT = 16

    def __init__(self) -> None:
        self.streams = Streams()
        self.size = 0

    def configure(self, ring: int, base: int, slots: int, consumer: int = 0, mask: int = 0) -> None:
        body: dict[str, Any] = {
            "ring": ring, "consumer_mask": 1 << consumer, "slots": slots, "base": base, "slot_bytes": self.SLOT,
            "ring_bytes": slots * self.SLOT, "follows": [PRODUCER] * 4, "drained_mask": mask,
        }  # fmt: skip
        self.streams.add(Engine.LOAD, Opcode.RING_CONFIGURE, (), body)

    def move(self, ring: int, slots: int, consumer: Cursor = C0) -> None:
        def body(base: int) -> dict[str, Any]:
            return {"base": base, "run_bytes": slots * self.SLOT, "dram_offset": self.size, "count": [1, 1, 1]}

        self.streams.add(Engine.LOAD, Opcode.LOAD, [Operand(ring, PRODUCER, slots, slots)], body(BASE_INPUT))
        self.streams.add(Engine.STORE, Opcode.STORE, [Operand(ring, consumer, slots, slots)], body(BASE_OUTPUT))
        self.size += slots * self.SLOT

    def add(self, engine: Engine, opcode: Opcode, operands: Sequence[Operand]) -> None:
        self.streams.add(engine, opcode, operands)

    def program(self, frame: Program) -> Program:
        for engine in Engine:
            self.streams.add(engine, Opcode.END)
        sizes = frame.buffer_bytes | {"input": max(self.size, 1), "output": max(self.size, 1)}
        return dataclasses.replace(frame, streams=self.streams.finish(), buffer_bytes=sizes, tensors={})


def _growing() -> Copy:
    """Each shape has more slots than the one before, and in the end another consumer."""
    copy = Copy()
    for slots, consumer in ((1, C0), (3, C0), (4, C1), (6, C0)):
        copy.configure(2, 64 * slots, slots, int(consumer), 1 << 2)
        copy.move(2, slots, consumer)
        copy.move(2, slots, consumer)
    return copy


def _load(driver: Driver, copy: Copy, frame: Program):
    driver.load(copy.program(frame))
    return driver.allocate_group()


def _fill(driver, group, size: int, rng) -> bytes:
    values = rng.bytes(size)
    driver.device.write_memory(group.input, values)
    driver.device.write_memory(group.output, bytes(size))
    return values


def test_a_command_may_wait_for_a_shape_that_its_ring_does_not_have_yet(driver, frame):
    """Store looks at its ring long before load configures it anew, with more slots or another consumer."""
    rng, copy = _rng(), _growing()
    group = _load(driver, copy, frame)
    for job in range(2):
        values = _fill(driver, group, copy.size, rng)
        driver.run(group, job, TIMEOUT)
        assert driver.device.read_memory(group.output, copy.size) == values


def test_rings_last_while_jobs_overlap(driver, frame):
    rng, copy = _rng(), _growing()
    groups = [_load(driver, copy, frame), *(driver.allocate_group() for _ in range(3))]
    values = [_fill(driver, group, copy.size, rng) for group in groups]
    for job, group in enumerate(groups):
        driver.submit(group, job)
    completions = [driver.wait(TIMEOUT) for _ in groups]
    assert any(later.started < earlier.finished for earlier, later in itertools.pairwise(completions))
    for group, expected in zip(groups, values, strict=True):
        assert driver.device.read_memory(group.output, copy.size) == expected


def test_an_engine_between_two_jobs_may_still_configure(driver, frame):
    """Store is a job ahead and waits for a shape; load ends the job before, and only then begins that one."""
    rng, copy = _rng(), Copy()
    copy.configure(2, 0, 3)
    copy.move(2, 3)
    copy.configure(2, 64, 1, mask=1 << 2)
    copy.move(2, 1)
    for _ in range(100):
        copy.add(Engine.LOAD, Opcode.WAIT, [])
    group = _load(driver, copy, frame)
    values = _fill(driver, group, copy.size, rng)
    for job in range(4):
        driver.submit(group, job)
    assert [driver.wait(TIMEOUT).job for _ in range(4)] == [0, 1, 2, 3]
    assert driver.device.read_memory(group.output, copy.size) == values


def _fails(driver, group, fault: Fault, engine: Engine, command: int) -> None:
    with pytest.raises(JobError) as caught:
        driver.run(group, 9, TIMEOUT)
    assert f"{fault.name.lower()} fault at {engine.name.lower()} command {command}" in str(caught.value)
    assert caught.value.completion.fault == fault
    driver.resume()


@pytest.mark.parametrize("failed", [False, True], ids=["ended", "failed"])
def test_a_program_finds_no_ring_of_the_one_before(driver, frame, failed):
    """It may be used only after its own RING_CONFIGURE, whatever ran before and however that ended."""
    rng, before = _rng(), _growing()
    if failed:
        before.move(7, 1)  # a ring that is never configured
    group = _load(driver, before, frame)
    if failed:
        _fails(driver, group, Fault.RING, Engine.LOAD, 12)
    else:
        driver.run(group, 0, TIMEOUT)
    bare = Copy()
    bare.move(2, 1)
    group = _load(driver, bare, frame)
    _fill(driver, group, bare.size, rng)
    _fails(driver, group, Fault.RING, Engine.LOAD, 0)
    assert driver.device.read_memory(group.output, bare.size) == bytes(bare.size)
    good = _growing()
    group = _load(driver, good, frame)
    values = _fill(driver, group, good.size, rng)
    driver.run(group, 1, TIMEOUT)
    assert driver.device.read_memory(group.output, good.size) == values


UNFIT = {
    "need": (Engine.STORE, Operand(2, C0, 7, 1)),
    "advance": (Engine.STORE, Operand(2, C0, 1, 7)),
    "consumer": (Engine.STORE, Operand(2, C1, 1, 1)),
    "producer": (Engine.COMPUTE, Operand(2, PRODUCER, 7, 0)),
    "ring": (Engine.COMPUTE, Operand(9, C0, 0, 0)),
    "load": (Engine.LOAD, Operand(2, PRODUCER, 7, 7)),
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_operand_that_never_fits_its_ring_is_a_fault(driver, frame, name, jobs):
    engine, operand = UNFIT[name]
    rng, copy = _rng(), _growing()
    copy.move(2, 6)
    copy.add(engine, Opcode.WAIT, [operand])
    group = _load(driver, copy, frame)
    index = driver.program.commands(engine) - 2
    values = _fill(driver, group, copy.size, rng)
    for job in range(jobs - 1):
        driver.submit(group, job)
    with pytest.raises(JobError, match=f"ring fault at {engine.name.lower()} command {index}"):
        driver.run(group, 9, TIMEOUT)
    assert driver.device.read_memory(group.output, copy.size) == values
    driver.resume()


def test_a_command_that_waits_for_good_is_no_fault_while_it_fits(driver, frame):
    """A deadlock is the static check's concern; the host's timeout ends it."""
    copy = _growing()
    copy.add(Engine.STORE, Opcode.WAIT, [Operand(2, C0, 1, 1)])
    group = _load(driver, copy, frame)
    with pytest.raises(RuntimeError, match="no completion within 20000 cycles"):
        driver.run(group, 9, 20_000)
