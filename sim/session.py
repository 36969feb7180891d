"""One measurement: a compiled program on an engine, frames run, counters read."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.engines import open_device
from sim.layers import LayerCost, add_costs, layer_costs
from sim.verify import Difference, Spread, check_tensors, spread
from sw.compiler import Compiled
from sw.device import Retirement, SimulatedDevice
from sw.driver import Completion, Counters, Driver, DriverError, DriverTimeout
from sw.program import Program

Int8Array = NDArray[np.int8]

PATIENCE = 50
"""A frame that takes this many times its planned cycles, and ``PATIENCE_CYCLES`` more, is given up."""
PATIENCE_CYCLES = 2_000_000


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one run gave. Cycles and counters are of all its frames; layers are of the last frame.

    ``counters`` are those of the cycles in which a job ran (``cycles``, see ``job_counters``). ``layers`` and
    ``outside`` (what belongs to no layer) add up to the last frame's cycles, causes and bytes. ``model`` is the name of
    the network, ``title`` what a report is headed by.
    """

    title: str
    model: str
    policy: str
    engine: str
    npu: str
    frames: int
    cycles: int
    frame_cycles: tuple[int, ...]
    macs: int
    clock_mhz: float
    array_n: int
    counters: Counters
    memory_counters: dict[str, int]
    layers: tuple[LayerCost, ...]
    outside: LayerCost
    scratchpad_peak_bytes: int
    dram_peak_bytes: int
    seconds: float
    simulated_cycles: int

    @property
    def array_utilisation(self) -> float:
        return self.macs * self.frames / (self.array_n**2 * self.cycles)

    @property
    def frames_per_second(self) -> float:
        return self.frames * self.clock_mhz * 1e6 / self.cycles

    @property
    def cycles_per_second(self) -> float:
        """Simulated cycles in a second of the host's time."""
        return self.simulated_cycles / self.seconds

    def stall_cycles(self, engine: Engine) -> dict[str, int]:
        """Cycles of each cause while jobs ran."""
        return {name: value for name, value in self.counters.causes(engine).items() if name != Cause.IDLE.name.lower()}


@dataclasses.dataclass(frozen=True)
class Checked:
    """Outcome of comparing tensors with the golden model; ``difference`` is the first, in program order."""

    tensors: int
    bytes: int
    difference: Difference | None
    spread: Spread


def measure(
    compiled: Compiled,
    config: NpuConfig,
    inputs: Mapping[str, Int8Array],
    *,
    title: str,
    engine: str,
    frames: int = 1,
    golden: Mapping[str, Int8Array] | None = None,
    progress: Callable[[int], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[Measurement, Checked | None]:
    """Run ``frames`` frames on a device of their own, and compare the last with ``golden`` if given.

    Raises ``EngineError`` if the engine cannot run, and what ``measure_on`` raises.
    """
    with open_device(engine, config, report=report) as device:
        driver = Driver(device, config)
        device.progress = progress
        measurement, _, checked = measure_on(
            device, driver, compiled, inputs, title=title, engine=engine, frames=frames, golden=golden
        )
    return measurement, checked


def measure_on(
    device: SimulatedDevice,
    driver: Driver,
    compiled: Compiled,
    inputs: Mapping[str, Int8Array],
    *,
    title: str,
    engine: str,
    frames: int = 1,
    golden: Mapping[str, Int8Array] | None = None,
) -> tuple[Measurement, dict[str, Int8Array], Checked | None]:
    """Load a program into an open device, which runs no job, and run ``frames`` frames, one after the other.

    ``engine`` is the device's name, for the report. The buffers are released again; the program stays loaded. Returns
    what was measured, the program's outputs (int8 ``[height, width, channels]``) of the last frame, and how it compares
    with ``golden`` if that is given.

    Raises
    ------
    JobError
        If a job fails.
    DriverError
        If a frame takes far longer than planned (``time_limit``), with what each engine committed last.
    """
    program, config, limit = compiled.program, driver.config, time_limit(compiled)
    driver.load(program)
    group = driver.allocate_group()
    for name, values in inputs.items():
        driver.write_input(group, name, values)
    memory_before = device.counters()
    snapshots = [driver.counters()]
    completions: list[Completion] = []
    retirements, activity = device.retirements(), device.activity()  # of before; only the last frame's are kept
    started, first_cycle = time.perf_counter(), device.cycle
    for frame in range(frames):
        try:
            completions.append(driver.run(group, frame, limit))
        except DriverTimeout as error:
            raise DriverError(f"frame {frame}: {error}; {last_commits(program, device.retirements())}") from None
        retirements, activity = device.retirements(), device.activity()
        snapshots.append(driver.counters())
    simulated, seconds = device.cycle - first_cycle, time.perf_counter() - started
    last = completions[-1]
    layers, outside = layer_costs(
        program,
        config,
        counters=job_counters(snapshots[-1] - snapshots[-2], last.cycles),
        activity=activity,
        retirements=retirements,
        started=last.started,
    )
    cycles = sum(completion.cycles for completion in completions)
    measurement = Measurement(
        title=title,
        model=program.name,
        policy=program.policy,
        engine=engine,
        npu=config.name,
        frames=frames,
        cycles=cycles,
        frame_cycles=tuple(completion.cycles for completion in completions),
        macs=program.macs,
        clock_mhz=config.clock_mhz,
        array_n=config.array.n,
        counters=job_counters(snapshots[-1] - snapshots[0], cycles),
        memory_counters={name: value - memory_before[name] for name, value in device.counters().items()},
        layers=layers,
        outside=outside,
        scratchpad_peak_bytes=program.scratchpad_peak,
        dram_peak_bytes=driver.heap.peak_bytes,
        seconds=seconds,
        simulated_cycles=simulated,
    )
    checked = None
    if golden is not None:
        checked = _check(compiled, golden, lambda base, offset, size: driver.read_bytes(group, base, offset, size))
    outputs = {name: driver.read_tensor(group, name) for name in program.outputs}
    driver.release_group(group)
    return measurement, outputs, checked


def combine(parts: Sequence[Measurement]) -> Measurement:
    """The measurement of a model whose programs ran one after the other, each as many frames, on one device.

    Cycles, counters and MACs add up, layers follow each other; of peaks the largest counts. Title,
    model and policy are those of the first.

    Raises
    ------
    ValueError
        If there is no program, or they ran different numbers of frames.
    """
    if not parts or any(part.frames != parts[0].frames for part in parts):
        raise ValueError("measurements of as many frames can be combined, at least one of them")

    def total(dictionaries: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return {name: sum(values[name] for values in dictionaries) for name in dictionaries[0]}

    return dataclasses.replace(
        parts[0],
        cycles=sum(part.cycles for part in parts),
        frame_cycles=tuple(map(sum, zip(*(part.frame_cycles for part in parts), strict=True))),
        macs=sum(part.macs for part in parts),
        counters=Counters(total([part.counters.values for part in parts])),
        memory_counters=total([part.memory_counters for part in parts]),
        layers=tuple(layer for part in parts for layer in part.layers),
        outside=add_costs([part.outside for part in parts]),
        scratchpad_peak_bytes=max(part.scratchpad_peak_bytes for part in parts),
        dram_peak_bytes=max(part.dram_peak_bytes for part in parts),
        seconds=sum(part.seconds for part in parts),
        simulated_cycles=sum(part.simulated_cycles for part in parts),
    )


def time_limit(compiled: Compiled) -> int:
    """Cycles after which a frame is taken to hang."""
    return PATIENCE * sum(plan.cycles for plan in compiled.plans) + PATIENCE_CYCLES


def last_commits(program: Program, retirements: list[Retirement]) -> str:
    """In one line, the last command that each engine committed."""
    last = {Engine(retirement.engine): retirement for retirement in retirements}
    parts = []
    for engine in Engine:
        name, total = engine.name.lower(), program.commands(engine)
        if engine in last:
            parts.append(f"{name} command {last[engine].index} of {total} in cycle {last[engine].cycle}")
        else:
            parts.append(f"{name} none of {total}")
    return f"last committed: {', '.join(parts)}"


def job_counters(window: Counters, cycles: int) -> Counters:
    """Counters of the ``cycles`` in which jobs ran, from those of a window that has these jobs, whole, and no other.

    A snapshot is a register access, so a window also has the cycles before a job begins and after it has ended, among
    them the write of its completion. In those every engine is idle; they are taken off IDLE and CYCLES, and then the
    causes of each engine add up to ``cycles`` exactly. All other counters are as counted.

    Raises
    ------
    DriverError
        If an engine was not idle in that many cycles.
    """
    values = dict(window.values)
    outside = values["CYCLES"] - cycles
    values["CYCLES"] = cycles
    for engine in Engine:
        name = f"{engine.name}_{Cause.IDLE.name}"
        if not 0 <= outside <= values[name]:
            raise DriverError(
                f"{engine.name.lower()} was idle in {values[name]} cycles, of {outside} in which no job ran"
            )
        values[name] -= outside
    return Counters(values)


def _check(compiled: Compiled, golden: Mapping[str, Int8Array], read: Callable[[int, int, int], bytes]) -> Checked:
    tensors = size = 0
    for name, difference in check_tensors(compiled, golden, read):
        if difference is not None:
            return Checked(tensors, size, difference, spread(golden))
        tensors += 1
        size += golden[compiled.lowered.aliases.get(name, name)].size
    return Checked(tensors, size, None, spread(golden))
