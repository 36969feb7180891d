"""A whole model: programs for the NPU with the host's work before, between and behind them."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial

from hw.spec.config import NpuConfig
from hw.spec.numerics import Int8Array
from sim import golden as golden_model
from sim.engines import open_device
from sim.session import Checked, Measurement, combine, measure_on
from sw.check import check_program
from sw.compiler import Compiled, compile_graph
from sw.driver import Driver
from sw.graph import Graph
from sw.policy import BufferPolicy
from sw.reader.model import HostStage, Model, Values, evaluate


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledModel:
    """A model with a checked program for each of its graphs, in order."""

    model: Model
    policy: str
    programs: tuple[Compiled, ...]

    @property
    def planned_cycles(self) -> int:
        """Cycles that the compiler expects of a frame."""
        return sum(plan.cycles for compiled in self.programs for plan in compiled.plans)


@dataclasses.dataclass(frozen=True)
class HostWork:
    """What the host did in one stage, for one frame: ``seconds`` of its own time, bytes that went in and out."""

    position: int
    """Number of NPU programs that ran before it."""
    operators: tuple[str, ...]
    seconds: float
    read_bytes: int
    write_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class ModelRun:
    """What a run gave: ``measurement`` of all programs together, values of the model's outputs (last frame)."""

    measurement: Measurement
    outputs: Values
    host: tuple[HostWork, ...]
    checked: Checked | None


def compile_model(
    model: Model, config: NpuConfig, policy: BufferPolicy, *, fused: bool = True, keep_tensors: bool = False
) -> CompiledModel:
    """Compile and check a program for each graph. Raises ``PlanError`` and ``CheckError``."""
    programs = tuple(
        compile_graph(graph, config, policy, fused=fused, keep_tensors=keep_tensors) for graph in model.graphs
    )
    for compiled in programs:
        check_program(compiled.program, config)
    return CompiledModel(model, policy.name, programs)


def run_golden(model: Model, inputs: Values) -> tuple[Values, tuple[Mapping[str, Int8Array], ...]]:
    """The model's outputs as the golden model has them, and every tensor of each graph."""
    tensors: list[Mapping[str, Int8Array]] = []

    def run(graph: Graph, values: dict[str, Int8Array]) -> Mapping[str, Int8Array]:
        tensors.append(golden_model.run(graph, values))
        return tensors[-1]

    return evaluate(model, inputs, run), tuple(tensors)


def run_model(
    compiled: CompiledModel,
    config: NpuConfig,
    inputs: Values,
    *,
    title: str,
    engine: str,
    frames: int = 1,
    golden: tuple[Mapping[str, Int8Array], ...] | None = None,
    progress: Callable[[int], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> ModelRun:
    """Run ``frames`` frames of the same inputs on one device and compare the last with ``golden`` if given.

    The programs share the device: each is loaded when its turn comes and runs all frames before the next is loaded.
    Loading a program takes no NPU cycles. Host stages run once.

    Raises what ``sim.session.measure_on`` raises; ``ModelError`` when a host stage fails.
    """
    host: list[HostWork] = []
    parts: list[tuple[Measurement, Checked | None]] = []
    with open_device(engine, config, report=report) as device:
        driver = Driver(device, config)
        device.progress = progress

        def run(graph: Graph, tensors: dict[str, Int8Array]) -> Mapping[str, Int8Array]:
            index = len(parts)
            program = compiled.programs[index]
            measurement, outputs, checked = measure_on(
                device,
                driver,
                program,
                tensors,
                title=title,
                engine=engine,
                frames=frames,
                golden=golden[index] if golden else None,
            )
            parts.append((measurement, checked))
            return outputs

        def timed(stage: HostStage, values: Values) -> Values:
            start = time.perf_counter()
            results = stage.run(values)
            seconds = time.perf_counter() - start
            read, write = (sum(array.nbytes for array in arrays.values()) for arrays in (values, results))
            host.append(HostWork(len(parts), stage.operators, seconds, read, write))
            return results

        stages = tuple(
            dataclasses.replace(stage, run=partial(timed, stage)) if isinstance(stage, HostStage) else stage
            for stage in compiled.model.stages
        )
        outputs = evaluate(dataclasses.replace(compiled.model, stages=stages), inputs, run)
    measurement = dataclasses.replace(combine([measurement for measurement, _ in parts]), model=compiled.model.name)
    return ModelRun(measurement, outputs, tuple(host), _first_difference([checked for _, checked in parts]))


def _first_difference(parts: list[Checked | None]) -> Checked | None:
    """Outcome of all programs together."""
    found = [checked for checked in parts if checked is not None]
    if not found:
        return None
    difference = next((checked.difference for checked in found if checked.difference is not None), None)
    return Checked(
        sum(checked.tensors for checked in found),
        sum(checked.bytes for checked in found),
        difference,
        dataclasses.replace(
            found[0].spread,
            most_saturated=max(checked.spread.most_saturated for checked in found),
            fewest_values=min(checked.spread.fewest_values for checked in found),
        ),
    )
