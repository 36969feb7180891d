"""What each layer of a frame cost: cycles of every engine by cause, bytes to and from DRAM, scratchpad."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import Engine, Opcode
from hw.spec.config import NpuConfig
from sw.decode import Command, decode
from sw.device import Activity, Retirement
from sw.driver import Counters, DriverError
from sw.program import Program

Causes = dict[Engine, dict[Cause, int]]
"""Cycles by cause of each engine."""


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """One layer's part of a frame, or what belongs to none (``LayerCost.name`` is then empty).

    An engine is *at* the layer of its oldest command that is not committed, whether it works on that command or waits
    for it: for its operands, or for it to arrive from DRAM. The cycle of a commit still belongs to the command. What
    belongs to no layer: commands that the program has around its layers (the first RING_CONFIGURE, the last WAIT, END),
    and the cycles in which the engine has not begun the job, or has ended it.

    Attributes
    ----------
    kind, operators
        What the layer does, and the names of the graph's operators in it.
    macs
        Multiply-accumulates of the graph's operators.
    cycles
        Cycles in which the compute engine was at the layer. They add up to the frame's.
    utilisation
        MACs over N² times ``cycles``; 0 without either. While the epilogue of a layer's last command drains, the array
        may work on the next layer already, which can show over 1 when it is short.
    dram_read_bytes, dram_write_bytes
        Of the layer's LOADs and STOREs, in whole beats of the bus, as the counters count them. Belonging to no layer:
        fetched commands and jobs, completions.
    scratchpad_bytes
        What the layer's rings occupy.
    causes
        Where each engine's cycles at the layer went; empty when the device does not say.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    macs: int
    cycles: int
    utilisation: float
    dram_read_bytes: int
    dram_write_bytes: int
    scratchpad_bytes: int
    causes: Causes


def layer_costs(
    program: Program,
    config: NpuConfig,
    *,
    counters: Counters,
    activity: Activity | None,
    retirements: Sequence[Retirement],
    started: int,
) -> tuple[tuple[LayerCost, ...], LayerCost]:
    """Costs of each layer, and of what belongs to none: together they are the frame's, exactly.

    Parameters
    ----------
    counters
        Of the cycles of that frame's job, and no others.
    activity
        Of a time that includes the whole frame and no other. Without it there are no causes, and cycles are those
        between commits, which comes to the same.
    retirements
        Of the frame.
    started
        Cycle in which the job began.

    Raises
    ------
    DriverError
        If the layers have more of anything than the counters: the two are not of the same frame.
    """
    causes = [{} for _ in program.layers] if activity is None else layer_causes(program, activity)
    cycles = (
        layer_cycles(program, retirements, started)
        if activity is None
        else tuple(sum(found[Engine.COMPUTE].values()) for found in causes)
    )
    layers = []
    for index, (layer, (read, written)) in enumerate(zip(program.layers, layer_traffic(program, config), strict=True)):
        products = config.array.n**2 * cycles[index]
        layers.append(
            LayerCost(
                name=layer.name,
                kind=layer.kind,
                operators=layer.operators,
                macs=layer.macs,
                cycles=cycles[index],
                utilisation=layer.macs / products if products else 0.0,
                dram_read_bytes=read,
                dram_write_bytes=written,
                scratchpad_bytes=sum(use.slots * use.slot_bytes for use in program.rings if use.layer == layer.name),
                causes=causes[index],
            )
        )

    def rest(what: str, total: int, parts: Sequence[int]) -> int:
        if sum(parts) > total:
            raise DriverError(f"the layers have {sum(parts)} {what}, the counters {total}")
        return total - sum(parts)

    outside = LayerCost(
        name="",
        kind="outside layers",
        operators=(),
        macs=0,
        cycles=rest("cycles", counters.values["CYCLES"], cycles),
        utilisation=0.0,
        dram_read_bytes=rest("bytes read", counters.read_bytes, [layer.dram_read_bytes for layer in layers]),
        dram_write_bytes=rest("bytes written", counters.write_bytes, [layer.dram_write_bytes for layer in layers]),
        scratchpad_bytes=0,
        causes={}
        if activity is None
        else {
            engine: {
                cause: rest(
                    f"{engine.name.lower()} cycles {cause.name.lower()}",
                    counters.cause(engine, cause),
                    [layer.causes[engine][cause] for layer in layers],
                )
                for cause in Cause
            }
            for engine in Engine
        },
    )
    return tuple(layers), outside


def add_costs(costs: Sequence[LayerCost]) -> LayerCost:
    """What several programs cost outside their layers."""
    first = costs[0]
    return dataclasses.replace(
        first,
        cycles=sum(cost.cycles for cost in costs),
        dram_read_bytes=sum(cost.dram_read_bytes for cost in costs),
        dram_write_bytes=sum(cost.dram_write_bytes for cost in costs),
        causes={
            engine: {cause: sum(cost.causes[engine][cause] for cost in costs) for cause in causes}
            for engine, causes in first.causes.items()
        },
    )


def layer_causes(program: Program, activity: Activity) -> list[Causes]:
    """Cycles of each layer by engine and cause."""
    found = []
    for layer in program.layers:
        causes: Causes = {}
        for engine in Engine:
            first, last = layer.commands[engine.name.lower()]
            sums = activity[engine][1 + first : 1 + last].sum(axis=0)
            causes[engine] = {cause: int(sums[cause]) for cause in Cause}
        found.append(causes)
    return found


def layer_cycles(program: Program, retirements: Sequence[Retirement], started: int) -> tuple[int, ...]:
    """Cycles of each layer from the compute engine's commits in one frame: from the last commit of the layer before (at
    first, the job's beginning) to its own last commit."""
    commits = {retirement.index: retirement.cycle for retirement in retirements if retirement.engine == Engine.COMPUTE}
    cycles, previous = [], started
    for layer in program.layers:
        end = commits.get(layer.commands["compute"][1] - 1, previous)
        cycles.append(end - previous)
        previous = end
    return tuple(cycles)


def layer_traffic(program: Program, config: NpuConfig) -> list[tuple[int, int]]:
    """Bytes that each layer's commands read from DRAM and write to it, in whole beats of the bus."""

    def moved(engine: Engine, span: tuple[int, int]) -> int:
        return sum(transfer_bytes(decode(program.command(engine, index)), config.bus_bytes) for index in range(*span))

    return [
        (moved(Engine.LOAD, layer.commands["load"]), moved(Engine.STORE, layer.commands["store"]))
        for layer in program.layers
    ]


def transfer_bytes(command: Command, bus_bytes: int) -> int:
    """Bytes that a command moves over the bus, in whole beats. Each run has its own beats; buffers begin at a beat."""
    if command.opcode not in (Opcode.LOAD, Opcode.STORE):
        return 0
    body = command.body
    places: NDArray[np.int64] = np.zeros(bus_bytes, np.int64)
    """Runs that begin in each lane of a beat."""
    places[body["dram_offset"] % bus_bytes] = 1
    for count, stride in zip(body["count"], body["dram_stride"], strict=True):
        if count == 1 or stride % bus_bytes == 0:
            places *= count
            continue
        steps = np.bincount(np.arange(count, dtype=np.int64) * stride % bus_bytes, minlength=bus_bytes)
        places = np.sum([steps[lane] * np.roll(places, lane) for lane in np.flatnonzero(steps)], axis=0)
    beats = -(-(np.arange(bus_bytes) + body["run_bytes"]) // bus_bytes)
    return int(places @ beats) * bus_bytes
