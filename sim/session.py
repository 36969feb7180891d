"""One measurement: a compiled program on an engine, frames run, counters read."""

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.engines import open_device
from sim.verify import Difference, Spread, check_tensors, spread
from sw.compiler import Compiled
from sw.device import Retirement
from sw.driver import Completion, Counters, Driver, DriverError, DriverTimeout
from sw.program import Program

Int8Array = NDArray[np.int8]

PATIENCE = 50
"""A frame that takes this many times its planned cycles, and ``PATIENCE_CYCLES`` more, is given up."""
PATIENCE_CYCLES = 2_000_000


@dataclasses.dataclass(frozen=True)
class LayerCycles:
    """One layer's share of the frame: from the last commit of the layer before to its own last commit."""

    name: str
    kind: str
    macs: int
    cycles: int
    utilisation: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one run gave. Cycles and counters are of all its frames; layers are of the last frame.

    ``counters`` are those of the cycles in which a job ran (``cycles``, see ``job_counters``).
    """

    title: str
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
    layers: tuple[LayerCycles, ...]
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
    """Run ``frames`` frames, one after the other, and compare the last with ``golden`` if given.

    Raises
    ------
    EngineError
        If the engine cannot run.
    JobError
        If a job fails.
    DriverError
        If a frame takes far longer than planned (``time_limit``), with what each engine committed last.
    """
    program, limit = compiled.program, time_limit(compiled)
    with open_device(engine, config, report=report) as device:
        driver = Driver(device, config)
        driver.load(program)
        group = driver.allocate_group()
        for name, values in inputs.items():
            driver.write_input(group, name, values)
        device.progress = progress
        before = driver.counters()
        device.retirements()
        started, first_cycle = time.perf_counter(), device.cycle
        completions: list[Completion] = []
        retirements: list[Retirement] = []
        for frame in range(frames):
            try:
                completions.append(driver.run(group, frame, limit))
            except DriverTimeout as error:
                raise DriverError(f"frame {frame}: {error}; {last_commits(program, device.retirements())}") from None
            retirements = device.retirements()
        seconds = time.perf_counter() - started
        simulated = device.cycle - first_cycle
        cycles = sum(completion.cycles for completion in completions)
        counters = job_counters(driver.counters() - before, cycles)
        checked = None
        if golden is not None:
            checked = _check(compiled, golden, lambda base, offset, size: driver.read_bytes(group, base, offset, size))
        return (
            Measurement(
                title=title,
                policy=program.policy,
                engine=engine,
                npu=config.name,
                frames=frames,
                cycles=cycles,
                frame_cycles=tuple(completion.cycles for completion in completions),
                macs=program.macs,
                clock_mhz=config.clock_mhz,
                array_n=config.array.n,
                counters=counters,
                memory_counters=device.counters(),
                layers=layer_cycles(compiled, config, retirements, completions[-1].started),
                scratchpad_peak_bytes=program.scratchpad_peak,
                dram_peak_bytes=driver.heap.peak_bytes,
                seconds=seconds,
                simulated_cycles=simulated,
            ),
            checked,
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


def layer_cycles(
    compiled: Compiled, config: NpuConfig, retirements: list[Retirement], started: int
) -> tuple[LayerCycles, ...]:
    """Cycles of each layer from the compute engine's commits of one frame."""
    commits = {r.index: r.cycle for r in retirements if r.engine == Engine.COMPUTE}
    layers = []
    previous = started
    for layer in compiled.program.layers:
        end = commits.get(layer.commands["compute"][1] - 1)
        if end is None:
            continue
        cycles = max(end - previous, 0)
        layers.append(
            LayerCycles(
                layer.name,
                layer.kind,
                layer.macs,
                cycles,
                layer.macs / (config.array.n**2 * cycles) if cycles else 0.0,
            )
        )
        previous = end
    return tuple(layers)
