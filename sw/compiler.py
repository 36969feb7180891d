"""From a quantised graph to a program image, for one configuration and one buffer policy."""

import dataclasses

from hw.spec.commands import MAX_SLOTS, Engine, Opcode
from hw.spec.config import NpuConfig
from sw.arena import Buffer, Placement, place, place_apart
from sw.constants import identity_parameter_block, weight_slot
from sw.emit import StoreOrder, Streams
from sw.graph import Graph
from sw.layout import TensorLayout
from sw.lower import ConvolveStep, Lowered, lower
from sw.policy import BufferPolicy
from sw.program import (
    BASE_ARENA,
    BASE_INPUT,
    BASE_OUTPUT,
    Layer,
    Program,
    RingUse,
    StoredTensor,
)
from sw.step_emitter import ROLES, StepEmitter
from sw.tiling import PlanError, StepPlan, Tiler

ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A program with what lowering decided."""

    program: Program
    lowered: Lowered
    plans: tuple[StepPlan, ...]


class Constants:
    """Bytes behind base register 0, each distinct piece once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self.bytes = 0

    def add(self, raw: bytes) -> int:
        """Offset of ``raw``."""
        if raw not in self._known:
            self._known[raw] = self.bytes
            padded = raw + bytes(-len(raw) % ALIGNMENT)
            self._parts.append(padded)
            self.bytes += len(padded)
        return self._known[raw]

    def blob(self) -> bytes:
        return b"".join(self._parts)


def compile_graph(
    graph: Graph, config: NpuConfig, policy: BufferPolicy, *, fused: bool = True, keep_tensors: bool = False
) -> Compiled:
    """Compile ``graph``.

    With ``keep_tensors`` no tensor is placed over another, so that all can be read back.

    Raises
    ------
    PlanError
        If a step does not fit the scratchpad, or the program the memory.
    """
    if config.rings.count < 2 * len(ROLES) + 1:
        raise PlanError(f"the compiler needs {2 * len(ROLES) + 1} rings; rings.count is {config.rings.count}")
    lowered = lower(graph, config.array.n, fused=fused)
    if not lowered.steps:
        raise PlanError("the network has nothing to compute")
    tiler = Tiler(config, policy, lowered.shapes)
    plans = tuple(tiler.plan(step) for step in lowered.steps)
    tensors, buffer_bytes, bound = _place_tensors(lowered, config, keep_tensors)
    read = {name for step in lowered.steps for name in step.reads}
    streams = Streams()
    constants = Constants()
    order = StoreOrder(2 * len(ROLES))
    tags: dict[bytes, int] = {}
    layers: list[Layer] = []
    rings: list[RingUse] = []
    streams.configure(order.ring, 0, MAX_SLOTS, 0, 1 << order.ring)
    peak = 0
    alone = False
    """Whether the step before had the whole scratchpad."""
    for index, plan in enumerate(plans):
        streams.layer = index
        before = streams.position()
        step = plan.step
        table_offset = tag = 0
        if isinstance(step, ConvolveStep):
            weights = []
            offsets: list[int] = []
            for block in range(plan.out_blocks):
                raw, offsets = weight_slot(step, config.array.n, block, plan.averages)
                weights.append((constants.add(raw.tobytes()), raw.size))
            if step.table is not None:
                table = step.table.tobytes()
                tag = tags.setdefault(table, len(tags) + 1)
                table_offset = constants.add(table)
        else:
            raw = identity_parameter_block(config.array.n)
            weights, offsets = [(constants.add(raw.tobytes()), raw.size)], [0]
        ring_set = index % policy.sets
        share = config.scratchpad.bytes // policy.sets
        region = (0, config.scratchpad.bytes) if plan.whole_scratchpad else (share * ring_set, share)
        sets = range(policy.sets) if plan.whole_scratchpad or alone else (ring_set,)
        mask = sum(((1 << len(ROLES)) - 1) << len(ROLES) * number for number in sets)
        alone = plan.whole_scratchpad
        emitter = StepEmitter(
            config=config,
            plan=plan,
            streams=streams,
            order=order,
            tensors=tensors,
            ring_set=ring_set,
            region=region,
            drained_mask=mask,
            weights=weights,
            tile_offsets=offsets,
            table_offset=table_offset,
            table_tag=tag,
            output_is_read=step.output in read,
        )
        try:
            emitter.emit()
        except ValueError as error:
            raise PlanError(f"{step.name}: {error}") from None
        peak = max(peak, emitter.peak)
        rings += [
            RingUse(step.name, role, emitter.ring[role], emitter.base[role], plan.slots[role], plan.slot_bytes[role])
            for role in plan.slots
        ]
        after = streams.position()
        layers.append(
            Layer(
                step.name,
                step.kind,
                step.operators,
                step.macs,
                {name: (before[name], after[name]) for name in before},
            )
        )
    settle = order.settle()
    if settle is not None:
        streams.add(Engine.LOAD, Opcode.WAIT, (settle,))
    for engine in Engine:
        streams.add(engine, Opcode.END)
    buffer_bytes["constants"] = constants.bytes
    program = Program(
        name=graph.name,
        config_hash=config.hash,
        n=config.array.n,
        policy=policy.name,
        streams=streams.finish(),
        constants=constants.blob(),
        buffer_bytes=buffer_bytes,
        tensors=tensors,
        inputs=graph.inputs,
        outputs=graph.outputs,
        layers=tuple(layers),
        rings=tuple(rings),
        scratchpad_peak=peak,
        arena_lower_bound=bound,
        tensors_kept=keep_tensors,
    )
    return Compiled(program, lowered, plans)


def _place_tensors(
    lowered: Lowered, config: NpuConfig, keep: bool
) -> tuple[dict[str, StoredTensor], dict[str, int], int]:
    n = config.array.n
    graph = lowered.graph
    tensors: dict[str, StoredTensor] = {}

    def line_up(names: tuple[str, ...], base: int) -> int:
        position = 0
        for name in names:
            shape = lowered.shapes[name]
            packed = base == BASE_INPUT and shape[2] < n
            tensors[name] = StoredTensor(name, base, position, shape, packed)
            size = TensorLayout(*shape, n, packed).size
            position += -(-size // ALIGNMENT) * ALIGNMENT
        return max(position, ALIGNMENT)

    produced = {step.output: index for index, step in enumerate(lowered.steps)}
    input_bytes = line_up(graph.inputs, BASE_INPUT)
    output_bytes = line_up(tuple(name for name in graph.outputs if name in produced), BASE_OUTPUT)
    buffers = []
    for name, index in produced.items():
        if name in tensors:
            continue
        last = max((i for i, step in enumerate(lowered.steps) if name in step.reads), default=index)
        buffers.append(Buffer(name, index, last + 1, TensorLayout(*lowered.shapes[name], n).size))
    placement: Placement = (place_apart if keep else place)(buffers, ALIGNMENT) if buffers else Placement({}, 0, 0)
    for name, offset in placement.offsets.items():
        tensors[name] = StoredTensor(name, BASE_ARENA, offset, lowered.shapes[name])
    sizes = {"input": input_bytes, "output": output_bytes, "arena": max(placement.peak, ALIGNMENT)}
    return tensors, sizes, placement.lower_bound
