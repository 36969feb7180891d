"""How a step is cut: tiles that are loaded, groups of pixels that one command computes, and the rings for them.

A *tile* is a run of output rows whose input rows are in the scratchpad together. Its commands go over output blocks,
and within a block over *groups*: as many pixels as half the accumulator holds.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from hw.spec.commands import PARAMETER_LINES, TABLE_BYTES
from hw.spec.config import NpuConfig
from sw.constants import packed_taps
from sw.layout import TensorLayout, blocks
from sw.lower import ConvolveStep, PoolStep, Source, Step
from sw.policy import BufferPolicy


class PlanError(ValueError):
    """A step that no tiling fits into the scratchpad; the message is one line fit for the user."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows ``first <= row < last``."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclasses.dataclass(frozen=True)
class Group:
    """Output pixels of one command."""

    rows: Rows
    columns: Rows

    @property
    def pixels(self) -> int:
        return len(self.rows) * len(self.columns)


@dataclasses.dataclass(frozen=True)
class SourcePlan:
    """One source's part of an input slot.

    ``offset`` bytes into the slot; ``left`` and ``right`` are pixels of padding beside each row of a packed source.
    """

    source: Source
    layout: TensorLayout
    offset: int
    row_stride: int
    block_stride: int
    pixel_stride: int
    loop_taps: int
    in_blocks: int
    """Most blocks of input channels that a command reads."""
    left: int = 0
    right: int = 0

    @property
    def tiles(self) -> int:
        """Most weight tiles in one kernel row."""
        return self.in_blocks * self.loop_taps


@dataclasses.dataclass(frozen=True, eq=False)
class StepPlan:
    """A step with its cuts and the bytes of its rings (zero slots: no such ring)."""

    step: Step
    sources: tuple[SourcePlan, ...]
    output: TensorLayout
    tiles: tuple[Rows, ...]
    group_rows: int
    group_columns: int
    weights_resident: bool
    whole_scratchpad: bool
    """Whether its rings fit only if no other step's are there."""
    slot_bytes: dict[str, int]
    slots: dict[str, int]
    cycles: int
    """Estimate that the choice was made by."""
    averages: tuple[int, ...] = ()
    """Of an averaging step, the numbers of pixels inside the window that occur."""

    @property
    def out_blocks(self) -> int:
        return self.output.blocks

    def input_rows(self, plan: SourcePlan, tile: Rows) -> Rows:
        """Stored rows of a source that a tile reads."""
        return input_rows(self.step, plan.source, plan.layout.height, tile)

    def groups(self, tile: Rows) -> Iterator[Group]:
        """Pixels of one command each; those of an averaging step are all divided by the same number."""
        for rows in _cut(tile, self._borders(0, tile.last), self.group_rows):
            for columns in _cut(Rows(0, self.output.width), self._borders(1, self.output.width), self.group_columns):
                yield Group(rows, columns)

    def _borders(self, axis: int, size: int) -> list[int]:
        step, source = self.step, self.sources[0].layout
        if not isinstance(step, ConvolveStep) or not step.average:
            return []
        inside = pixels_inside(step, axis, (source.height, source.width)[axis], size)
        return [position for position in range(1, size) if inside[position] != inside[position - 1]]

    def average(self, group: Group) -> int:
        """Number that an averaging step divides a group's sums by."""
        step, source = self.step, self.sources[0].layout
        assert isinstance(step, ConvolveStep)
        down = pixels_inside(step, 0, source.height, group.rows.first + 1)[-1]
        across = pixels_inside(step, 1, source.width, group.columns.first + 1)[-1]
        return down * across

    @property
    def scratchpad_bytes(self) -> int:
        return sum(self.slots[ring] * self.slot_bytes[ring] for ring in self.slots)


def _cut(whole: Rows, borders: Sequence[int], most: int) -> Iterator[Rows]:
    """Pieces of at most ``most``, none across a border."""
    edges = [whole.first, *(border for border in borders if whole.first < border < whole.last), whole.last]
    for first, last in itertools.pairwise(edges):
        for start in range(first, last, most):
            yield Rows(start, min(start + most, last))


def pixels_inside(step: ConvolveStep, axis: int, size: int, outputs: int) -> list[int]:
    """How many pixels of the window of each of the first ``outputs`` outputs are inside an input of ``size`` pixels,
    along one axis."""
    before = (step.padding.top, step.padding.left)[axis]
    firsts = [position * step.stride[axis] - before for position in range(outputs)]
    return [min(first + step.kernel[axis], size) - max(first, 0) for first in firsts]


def geometry(step: Step) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and dilation of a step."""
    return step.kernel, step.stride, step.dilation if isinstance(step, ConvolveStep) else (1, 1)


def input_rows(step: Step, source: Source, height: int, tile: Rows) -> Rows:
    """Stored rows of a source of ``height`` stored rows that output rows ``tile`` read; at least one row."""
    kernel, stride, dilation = geometry(step)
    scale = 2 if source.upsample else 1
    first = tile.first * stride[0] - step.padding.top
    last = (tile.last - 1) * stride[0] - step.padding.top + (kernel[0] - 1) * dilation[0] + 1
    first, last = max(first, 0), min(last, height * scale)
    first, last = first // scale, -(-last // scale)
    first = min(first, height - 1)
    return Rows(first, max(last, first + 1))


def _balanced(total: int, most: int) -> int:
    """Size of equal parts of ``total``, none larger than ``most``."""
    return -(-total // -(-total // most))


class Tiler:
    """Chooses a plan for each step of a program for one configuration and policy."""

    def __init__(self, config: NpuConfig, policy: BufferPolicy, shapes: dict[str, tuple[int, int, int]]) -> None:
        self.config = config
        self.policy = policy
        self.shapes = shapes
        self.budget = config.scratchpad.bytes // policy.sets

    def layout(self, source: Source) -> TensorLayout:
        return TensorLayout(*self.shapes[source.tensor], self.config.array.n, source.packed)

    def plan(self, step: Step) -> StepPlan:
        """The cheapest plan that fits. Raises ``PlanError`` if none does."""
        output = TensorLayout(*self.shapes[step.output], self.config.array.n)
        columns, rows = self._group(step, output)
        least = 0
        for budget in sorted({self.config.scratchpad.bytes // self.policy.sets, self.config.scratchpad.bytes}):
            self.budget = budget
            # Smaller groups serve fewer pixels with each weight tile: only if larger ones do not fit.
            height = rows
            while height:
                best, smallest = self._best(step, output, height, columns)
                if best is not None:
                    return best
                least = smallest
                height //= 2
        raise PlanError(
            f"{step.name} does not fit the scratchpad: it needs at least {least} bytes; there are "
            f"{self.config.scratchpad.bytes}"
        )

    def _best(self, step: Step, output: TensorLayout, rows: int, columns: int) -> tuple[StepPlan | None, int]:
        """The cheapest plan with groups of ``rows`` x ``columns`` that fits, and the fewest bytes that any needs."""
        best: StepPlan | None = None
        smallest = 0
        tile_rows = rows
        while True:
            for slots in range(self.policy.slots, 0, -1):
                plan = self._build(step, output, rows, columns, min(tile_rows, output.height), slots)
                smallest = min(smallest or plan.scratchpad_bytes, plan.scratchpad_bytes)
                if plan.scratchpad_bytes <= self.budget:
                    if best is None or plan.cycles < best.cycles:
                        best = plan
                    break
            if tile_rows >= output.height:
                return best, smallest
            tile_rows += rows

    def _group(self, step: Step, output: TensorLayout) -> tuple[int, int]:
        """Columns and rows of a group."""
        taps = self._taps(step)
        # A weight tile takes N + 1 cycles however few pixels it serves.
        if not isinstance(step, PoolStep) and taps * (self.config.array.n + 1) > self.config.command_cycles_max:
            raise PlanError(
                f"{step.name} takes at least {taps * (self.config.array.n + 1)} cycles a command; "
                f"command_cycles_max allows {self.config.command_cycles_max}"
            )
        most = min(self.config.accumulator_half, max(1, self.config.command_cycles_max // taps))
        columns = _balanced(output.width, most)
        rows = _balanced(output.height, max(1, most // columns)) if columns == output.width else 1
        return columns, rows

    def _taps(self, step: Step) -> int:
        """Cycles that each output pixel takes."""
        if isinstance(step, PoolStep):
            return step.kernel[0] * step.kernel[1]
        return sum(plan.tiles * step.kernel[0] for plan in self._sources(step, Rows(0, 1)))

    def _sources(self, step: Step, largest: Rows) -> tuple[SourcePlan, ...]:
        n = self.config.array.n
        word = self.config.word_bytes
        plans = []
        offset = 0
        sources = step.sources if isinstance(step, ConvolveStep) else (step.source,)
        for source in sources:
            layout = self.layout(source)
            rows = self._most_rows(step, source, layout.height, len(largest))
            kernel_width = step.kernel[1]
            if source.packed:
                assert isinstance(step, ConvolveStep)
                taps = packed_taps(n, source.channels, kernel_width, step.dilation[1])
                loop_taps = -(-kernel_width // taps)
                # Taps beyond the kernel have zero weights but their bytes are read: the row must hold them.
                right = step.padding.right + loop_taps * taps - kernel_width + -(-n // source.channels)
                pixels = step.padding.left + layout.width + right
                stride = -(-pixels * source.channels // word) * word
                plan = SourcePlan(
                    source, layout, offset, stride, 0, source.channels, loop_taps, 1, step.padding.left, right
                )
            else:
                depth = layout.blocks
                if isinstance(step, ConvolveStep) and step.groups > 1:
                    outputs = blocks(len(step.weights), n)
                    depth = max(step.input_blocks(n, block)[1] for block in range(outputs))
                plan = SourcePlan(source, layout, offset, layout.row_bytes, layout.block_bytes, n, kernel_width, depth)
            plans.append(plan)
            offset += -(-rows * plan.row_stride // word) * word
        return tuple(plans)

    def _most_rows(self, step: Step, source: Source, height: int, tile_rows: int) -> int:
        """Most stored rows that any tile of ``tile_rows`` output rows reads."""
        kernel, stride, dilation = geometry(step)
        rows = (tile_rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
        if source.upsample:
            rows = rows // 2 + 1
        return min(rows, height)

    def _build(self, step: Step, output: TensorLayout, rows: int, columns: int, tile_rows: int, slots: int) -> StepPlan:
        n = self.config.array.n
        word = self.config.word_bytes
        tile_rows = _balanced(output.height, tile_rows) if tile_rows > rows else tile_rows
        tiles = tuple(Rows(row, min(row + tile_rows, output.height)) for row in range(0, output.height, tile_rows))
        sources = self._sources(step, tiles[0])
        last = sources[-1]
        most = self._most_rows(step, last.source, last.layout.height, len(tiles[0]))
        slot_bytes = {"input": last.offset + -(-most * last.row_stride // word) * word}
        ring_slots = {"input": min(slots, len(tiles))}
        group_bytes = -(-rows * columns * n // word) * word
        commands = len(tiles) * output.blocks * -(-tile_rows // rows) * -(-output.width // columns)
        slot_bytes["output"] = group_bytes
        ring_slots["output"] = min(slots, commands)
        averages = self._averages(step, output)
        slot_bytes["weights"] = self._weight_bytes(step, sources, max(len(averages), 1))
        resident = False
        if isinstance(step, PoolStep):
            ring_slots["weights"] = 1
            if separable(step):
                slot_bytes["scratch"] = -(-most * output.width * n // word) * word
                ring_slots["scratch"] = 1
        else:
            ring_slots["weights"] = min(slots, output.blocks)
            if step.table is not None:
                slot_bytes["table"] = TABLE_BYTES
                ring_slots["table"] = 1
            if step.residual is not None:
                slot_bytes["residual"] = group_bytes
                ring_slots["residual"] = min(slots, commands)
            if len(tiles) > 1:
                other = sum(ring_slots[r] * slot_bytes[r] for r in ring_slots if r != "weights")
                if other + output.blocks * slot_bytes["weights"] <= self.budget:
                    resident = True
                    ring_slots["weights"] = output.blocks
        return StepPlan(
            step,
            sources,
            output,
            tiles,
            rows,
            columns,
            resident or len(tiles) == 1,
            self.budget == self.config.scratchpad.bytes and self.policy.sets > 1,
            slot_bytes,
            ring_slots,
            self._estimate(step, sources, output, tiles, rows, columns, slot_bytes, resident or len(tiles) == 1, slots),
            averages,
        )

    def _averages(self, step: Step, output: TensorLayout) -> tuple[int, ...]:
        if not isinstance(step, ConvolveStep) or not step.average:
            return ()
        layout = self.layout(step.sources[0])
        down = set(pixels_inside(step, 0, layout.height, output.height))
        across = set(pixels_inside(step, 1, layout.width, output.width))
        return tuple(sorted({i * j for i in down for j in across}))

    def _weight_bytes(self, step: Step, sources: tuple[SourcePlan, ...], variants: int) -> int:
        n = self.config.array.n
        lines = 0
        if isinstance(step, ConvolveStep):
            lines = sum(plan.tiles * step.kernel[0] for plan in sources) * (1 if step.diagonal else n)
        size = variants * (PARAMETER_LINES + lines) * n
        return -(-size // self.config.word_bytes) * self.config.word_bytes

    def _estimate(
        self,
        step: Step,
        sources: tuple[SourcePlan, ...],
        output: TensorLayout,
        tiles: tuple[Rows, ...],
        rows: int,
        columns: int,
        slot_bytes: dict[str, int],
        weights_once: bool,
        slots: int,
    ) -> int:
        """Cycles: the longer of array and bus, and what cannot overlap: the first tile in, the last group out."""
        n = self.config.array.n
        rate = min(self.config.bus_bytes, self.config.array.n * 2) * 0.9
        taps = self._taps(step)
        compute = 0
        load = 0
        first = 0
        for tile in tiles:
            full, rest = divmod(len(tile), rows)
            pieces = [rows] * full + ([rest] if rest else [])
            per_block = sum(max(height * columns, n) * -(-output.width // columns) for height in pieces) * taps
            compute += per_block * output.blocks
            tile_bytes = 0
            for plan in sources:
                used = input_rows(step, plan.source, plan.layout.height, tile)
                tile_bytes += len(used) * plan.layout.row_bytes
            load += tile_bytes
            first = first or tile_bytes
        load += slot_bytes["weights"] * output.blocks * (1 if weights_once else len(tiles))
        if isinstance(step, ConvolveStep) and step.residual is not None:
            load += output.size
        commands = len(tiles) * output.blocks * -(-len(tiles[0]) // rows) * -(-output.width // columns)
        bus = (load + output.size) / rate
        exposed = (first + slot_bytes["output"]) / rate
        if slots == 1:
            return int(compute + bus) + 40 * commands
        return int(max(compute + 12 * commands, bus) + exposed)


def separable(step: PoolStep) -> bool:
    """Whether a window is done as a row pass and a column pass."""
    return step.kernel[0] > 1 and step.kernel[1] > 1


__all__ = [
    "Group",
    "PlanError",
    "Rows",
    "SourcePlan",
    "StepPlan",
    "Tiler",
    "blocks",
    "geometry",
    "input_rows",
    "separable",
]
