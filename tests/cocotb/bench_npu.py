"""cocotb side: the driver runs a network on the system, through a bus model that nobody here wrote.

``RONDO_WORK`` names a file with a ``Work``. Results must be those of the golden model and of the compiled engine.
"""

import faulthandler
import os
import pathlib
import pickle
import random
import typing

import cocotb
import numpy as np
from cocotb.task import bridge
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import load_config
from sim.cocotb_device import CocotbDevice
from sim.layers import layer_cycles
from sim.session import Measurement
from sim.verify import check_tensors
from sw.compiler import Compiled
from sw.driver import Counters, Driver

PATIENCE = 0.5
JOB_CYCLES_MAX = 20_000
RUN_SECONDS_MAX = 300

# Whatever hangs, the simulator too, ends with every thread's stack.
faulthandler.dump_traceback_later(RUN_SECONDS_MAX, exit=True)


class Work(typing.NamedTuple):
    """What to run, and what must come out of it."""

    npu: str
    compiled: Compiled
    inputs: dict[str, NDArray[np.int8]]
    golden: dict[str, NDArray[np.int8]]
    measured: Measurement


def _load() -> Work:
    return Work(*pickle.loads(pathlib.Path(os.environ["RONDO_WORK"]).read_bytes()))


def _device(dut: typing.Any, work: Work, name: str) -> CocotbDevice:
    rng = random.Random(f"{os.environ['RONDO_SEED']} {name}")
    return CocotbDevice(dut, load_config(work.npu), patience=PATIENCE, rng=rng)


def _counted(counters: Counters) -> dict[str, int]:
    """What does not depend on how long the host took."""
    idle = {f"{engine.name}_{Cause.IDLE.name}" for engine in Engine}
    return {name: value for name, value in counters.values.items() if name != "CYCLES" and name not in idle}


def _run(device: CocotbDevice, work: Work, break_off: int | None = None) -> None:
    """Run all frames, and compare; or break off after so many cycles of the first."""
    config, compiled, measured = load_config(work.npu), work.compiled, work.measured
    driver = Driver(device, config)
    driver.load(compiled.program)
    group = driver.allocate_group()
    for name, values in work.inputs.items():
        driver.write_input(group, name, values)
    if break_off is not None:
        driver.submit(group)
        assert not device.wait_for_interrupt(break_off), "the job ended too early to be broken off"
        return
    device.retirements()
    completion, retirements, cycles = None, [], []
    for frame in range(measured.frames):
        completion = driver.run(group, frame, JOB_CYCLES_MAX)
        retirements = device.retirements()
        cycles.append(completion.cycles)
    print(f"cycles: {cycles}", flush=True)
    for _, difference in check_tensors(
        compiled, work.golden, lambda base, offset, size: driver.read_bytes(group, base, offset, size)
    ):
        assert difference is None, str(difference)
    assert tuple(cycles) == measured.frame_cycles
    assert completion is not None
    layers = layer_cycles(compiled.program, retirements, completion.started)
    assert layers == tuple(layer.cycles for layer in measured.layers)
    assert _counted(driver.counters()) == _counted(measured.counters)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def frames(dut):
    """As many frames as were measured, after power-on."""
    work = _load()
    device = _device(dut, work, "frames")
    await device.reset()
    await bridge(_run)(device, work)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def frames_after_reset(dut):
    """The same after a reset in the middle of a job: nothing of that job is left."""
    work = _load()
    device = _device(dut, work, "frames_after_reset")
    await device.reset()
    cycle = random.Random(os.environ["RONDO_SEED"]).randrange(work.measured.frame_cycles[0] // 2)
    await bridge(_run)(device, work, cycle)
    await device.reset()
    await bridge(_run)(device, work)
