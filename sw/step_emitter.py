"""Commands of one step: what is loaded in which order, what is computed, what is stored."""

import dataclasses
from collections.abc import Callable
from typing import Any

from hw.spec.commands import TABLE_BYTES, Cursor, Engine, Opcode
from hw.spec.config import NpuConfig
from sw.emit import Operand, StoreOrder, Streams
from sw.layout import TensorLayout
from sw.lower import ConvolveStep, PoolStep
from sw.program import BASE_CONSTANTS, StoredTensor
from sw.tiling import Group, Rows, SourcePlan, StepPlan, separable

ROLES = ("input", "weights", "table", "residual", "output", "scratch")
"""Rings of one set, in the order of their numbers."""


@dataclasses.dataclass(frozen=True)
class _Unit:
    """One result group: the commands of one chain, and its store."""

    tile: int
    block: int
    group: Group
    last_of_block: bool
    """Last unit of its output block in its tile."""
    last_of_tile: bool


@dataclasses.dataclass(frozen=True)
class _Load:
    """Something to load before unit ``deadline``, possible once unit ``free`` has passed its slot (-1: at once)."""

    free: int
    deadline: int
    emit: Callable[[], None]


def rectangle(run: int, rows: int, dram_stride: int, scratchpad_stride: int) -> dict[str, Any]:
    """Body fields of a transfer of ``rows`` runs; runs that touch on both sides become one."""
    if rows > 1 and dram_stride == run == scratchpad_stride:
        run, rows = run * rows, 1
    return {
        "run_bytes": run,
        "count": [rows, 1, 1],
        "dram_stride": [dram_stride if rows > 1 else 0, 0, 0],
        "scratchpad_stride": [scratchpad_stride if rows > 1 else 0, 0, 0],
    }


class StepEmitter:
    """Emits one step. ``region`` is the base and size of the scratchpad that the step's rings share; ``drained_mask``
    the rings that used those bytes before."""

    def __init__(
        self,
        *,
        config: NpuConfig,
        plan: StepPlan,
        streams: Streams,
        order: StoreOrder,
        tensors: dict[str, StoredTensor],
        ring_set: int,
        region: tuple[int, int],
        weights: list[tuple[int, int]],
        tile_offsets: list[int],
        table_offset: int,
        table_tag: int,
        output_is_read: bool,
        drained_mask: int,
    ) -> None:
        self.n = config.array.n
        self.config = config
        self.plan = plan
        self.step = plan.step
        self.streams = streams
        self.order = order
        self.tensors = tensors
        self.weights = weights
        self.tile_offsets = tile_offsets
        self.table_offset = table_offset
        self.table_tag = table_tag
        self.output_is_read = output_is_read
        self.drained_mask = drained_mask
        self.ring = {role: ring_set * len(ROLES) + index for index, role in enumerate(ROLES)}
        self.base, self.peak = self._place(*region)
        self.units = self._units()

    def emit(self) -> None:
        """Append the step's commands to the three streams."""
        mask = self.drained_mask
        if self.output_is_read:
            settle = self.order.make_room(len(self.units))
            if settle is not None:
                self.streams.add(Engine.LOAD, Opcode.WAIT, (settle,))
        for role, slots in self.plan.slots.items():
            self.streams.configure(self.ring[role], self.base[role], slots, self.plan.slot_bytes[role], mask)
        for load in sorted(self._loads(), key=lambda load: (load.free, load.deadline)):
            load.emit()
        for index, unit in enumerate(self.units):
            if isinstance(self.step, PoolStep):
                self._pool(index, self.step, unit)
            else:
                self._convolve(index, self.step, unit)
            self._store(unit)

    def _place(self, base: int, size: int) -> tuple[dict[str, int], int]:
        """Input from the bottom of the region, the rest from its top: engines then work in different banks."""
        places = {}
        top = base + size
        for role in ("output", "residual", "scratch", "table", "weights"):
            if role in self.plan.slots:
                top -= self.plan.slots[role] * self.plan.slot_bytes[role]
                top -= top % self.config.word_bytes
                places[role] = top
        places["input"] = base
        used = self.plan.slots["input"] * self.plan.slot_bytes["input"]
        assert base + used <= top
        return places, used + base + size - top

    def _units(self) -> list[_Unit]:
        units = []
        for tile, rows in enumerate(self.plan.tiles):
            groups = list(self.plan.groups(rows))
            for block in range(self.plan.out_blocks):
                for group in groups:
                    end = group is groups[-1]
                    units.append(_Unit(tile, block, group, end, end and block == self.plan.out_blocks - 1))
        return units

    # -- loads --------------------------------------------------------------------------------------------------

    def _loads(self) -> list[_Load]:
        plan, step = self.plan, self.step
        loads: list[_Load] = []
        first_of_tile: dict[int, int] = {}
        last_of_tile: dict[int, int] = {}
        blocks: dict[tuple[int, int], list[int]] = {}
        for index, unit in enumerate(self.units):
            first_of_tile.setdefault(unit.tile, index)
            last_of_tile[unit.tile] = index
            blocks.setdefault((unit.tile, unit.block), []).append(index)
        if "table" in plan.slots:
            loads.append(_Load(-1, 0, self._load_table))
        if isinstance(step, PoolStep):
            loads.append(_Load(-1, 0, lambda: self._load_weights(0)))
        else:
            users = list(blocks.items())
            if plan.weights_resident and len(plan.tiles) > 1:
                users = users[: plan.out_blocks]
            for number, ((_, block), indices) in enumerate(users):
                slots = plan.slots["weights"]
                free = users[number - slots][1][-1] if number >= slots else -1
                loads.append(_Load(free, indices[0], lambda block=block: self._load_weights(block)))
        for tile in range(len(plan.tiles)):
            slots = plan.slots["input"]
            free = last_of_tile[tile - slots] if tile >= slots else -1
            loads.append(_Load(free, first_of_tile[tile], lambda tile=tile: self._load_input(tile)))
        if "residual" in plan.slots:
            slots = plan.slots["residual"]
            for index, unit in enumerate(self.units):
                free = index - slots if index >= slots else -1
                loads.append(_Load(free, index, lambda unit=unit: self._load_residual(unit)))
        return loads

    def _fill_slot(self, role: str, transfers: list[tuple[Opcode, int, Operand | None, dict[str, Any]]]) -> None:
        """One slot filled by several transfers: (opcode, offset in the slot, ordering operand, body)."""
        for index, (opcode, offset, wait, body) in enumerate(transfers):
            data = Operand(
                self.ring[role],
                Cursor.PRODUCER,
                need=1 if index == 0 else 0,
                advance=1 if index == len(transfers) - 1 else 0,
                offset=offset,
            )
            self.streams.add(Engine.LOAD, opcode, (data, wait), body)

    def _load_table(self) -> None:
        body = {"base": BASE_CONSTANTS, "dram_offset": self.table_offset, **rectangle(TABLE_BYTES, 1, 0, 0)}
        self._fill_slot("table", [(Opcode.LOAD, 0, None, body)])

    def _load_weights(self, block: int) -> None:
        offset, size = self.weights[block]
        body = {"base": BASE_CONSTANTS, "dram_offset": offset, **rectangle(size, 1, 0, 0)}
        self._fill_slot("weights", [(Opcode.LOAD, 0, None, body)])

    def _load_input(self, tile: int) -> None:
        transfers = []
        for source in self.plan.sources:
            tensor = self.tensors[source.source.tensor]
            rows = self.plan.input_rows(source, self.plan.tiles[tile])
            wait = self.order.wait(tensor.name, rows)
            body: dict[str, Any] = {
                "base": tensor.base,
                "dram_offset": tensor.offset + rows.first * source.layout.row_bytes,
                **rectangle(source.layout.row_bytes, len(rows), source.layout.row_bytes, source.row_stride),
            }
            if source.source.packed:
                transfers += self._padding(source, len(rows))
            left = source.left * source.pixel_stride
            transfers.append((Opcode.LOAD, source.offset + left, wait, body))
        self._fill_slot("input", transfers)

    def _padding(self, source: SourcePlan, rows: int) -> list[tuple[Opcode, int, Operand | None, dict[str, Any]]]:
        """The columns beside a packed source's rows, as the input's zero point."""
        assert isinstance(self.step, ConvolveStep)
        transfers: list[tuple[Opcode, int, Operand | None, dict[str, Any]]] = []
        left = source.left * source.pixel_stride
        end = left + source.layout.row_bytes
        for offset, size in ((0, left), (end, source.row_stride - end)):
            if size:
                body = {"fill": self.step.pad_value & 0xFF, **rectangle(size, rows, 0, source.row_stride)}
                transfers.append((Opcode.FILL, source.offset + offset, None, body))
        return transfers

    def _load_residual(self, unit: _Unit) -> None:
        assert isinstance(self.step, ConvolveStep) and self.step.residual is not None
        tensor = self.tensors[self.step.residual]
        wait = self.order.wait(tensor.name, unit.group.rows)
        self._fill_slot("residual", [(Opcode.LOAD, 0, wait, self._block(tensor, unit))])

    def _block(self, tensor: StoredTensor, unit: _Unit) -> dict[str, Any]:
        """Transfer of a unit's pixels of one channel block of a tensor of the output's shape."""
        layout = TensorLayout(*tensor.shape, self.n)
        rows, columns = unit.group.rows, unit.group.columns
        width = len(columns) * self.n
        return {
            "base": tensor.base,
            "dram_offset": tensor.offset
            + rows.first * layout.row_bytes
            + unit.block * layout.block_bytes
            + columns.first * self.n,
            **rectangle(width, len(rows), layout.row_bytes, width),
        }

    def _store(self, unit: _Unit) -> None:
        tensor = self.tensors[self.step.output]
        # Stores complete in order, so the last block's store of some rows stands for all blocks of them.
        last = unit.block == self.plan.out_blocks - 1
        order = self.order.publish(tensor.name, unit.group.rows) if self.output_is_read and last else None
        data = Operand(self.ring["output"], Cursor.CONSUMER_0, 1, 1)
        self.streams.add(Engine.STORE, Opcode.STORE, (data, order), self._block(tensor, unit))

    # -- compute ------------------------------------------------------------------------------------------------

    def _consume(self, role: str, need: int, advance: int, offset: int = 0) -> Operand:
        return Operand(self.ring[role], Cursor.CONSUMER_0, need, advance, offset)

    def _weights(self, unit: _Unit, part: int, last_part: bool) -> Operand:
        plan = self.plan
        # An averaging step has one source, and parameters for each number of pixels.
        offset = self.tile_offsets[plan.averages.index(plan.average(unit.group)) if plan.averages else part]
        advance = int(last_part and unit.last_of_block)
        if plan.weights_resident and unit.tile < len(plan.tiles) - 1:
            # Slots stay for all tiles; during the last, each is released after its last use, which moves the cursor.
            slot = unit.block
            return self._consume("weights", slot + 1, 0, slot * plan.slot_bytes["weights"] + offset)
        return self._consume("weights", 1, advance, offset)

    def _convolve(self, index: int, step: ConvolveStep, unit: _Unit) -> None:
        parts = len(self.plan.sources)
        final = index == len(self.units) - 1
        for part, source in enumerate(self.plan.sources):
            first, last = part == 0, part == parts - 1
            operands: list[Operand | None] = [None] * 5
            body = self._window(step, source, unit)
            block = step.input_blocks(self.n, unit.block)[0] * source.block_stride if step.groups > 1 else 0
            operands[0] = self._consume("input", 1, int(last and unit.last_of_tile), source.offset + block)
            operands[1] = self._weights(unit, part, last)
            # The head of a chain acquires for all of it: later commands find everything ready.
            if first or last:
                if step.table is not None:
                    operands[2] = self._consume("table", 1, int(last and final))
                if step.residual is not None:
                    operands[3] = self._consume("residual", 1, int(last))
                operands[4] = Operand(self.ring["output"], Cursor.PRODUCER, int(first), int(last))
            body |= {"accumulate_first": int(first), "accumulate_last": int(last)}
            if last:
                body |= self._epilogue(step, unit)
            self.streams.add(Engine.COMPUTE, Opcode.CONVOLVE, operands, body)

    def _window(self, step: ConvolveStep, source: SourcePlan, unit: _Unit) -> dict[str, Any]:
        """Fields that say which input pixels a command reads."""
        kernel, stride, dilation = step.kernel, step.stride, step.dilation
        rows, columns = unit.group.rows, unit.group.columns
        stored = self.plan.input_rows(source, self.plan.tiles[unit.tile])
        scale = 2 if source.source.upsample else 1
        height = source.layout.height * scale
        first = stored.first * scale
        body: dict[str, Any] = {
            "upsample": int(source.source.upsample),
            "out_width": len(columns),
            "out_rows": len(rows),
            "kernel_width": source.loop_taps,
            "kernel_height": kernel[0],
            "in_blocks": step.input_blocks(self.n, unit.block)[1] if step.groups > 1 else source.in_blocks,
            "diagonal": int(step.diagonal),
            "single_rounding": int(step.single_rounding),
            "stride_x": stride[1],
            "stride_y": stride[0],
            "dilation_x": dilation[1],
            "dilation_y": dilation[0],
            "x_origin": columns.first * stride[1] - step.padding.left,
            "y_origin": rows.first * stride[0] - step.padding.top - first,
            "in_width": source.layout.width * scale,
            "in_rows": min(height, stored.last * scale) - first,
            "in_pixel_stride": source.pixel_stride,
            "pad_value": step.pad_value,
            "in_row_stride": source.row_stride,
            "in_block_stride": source.block_stride,
        }
        if source.source.packed:
            # Rows hold their padding, so every column exists; a loop step passes all taps that share a line.
            taps = -(-kernel[1] // source.loop_taps)
            body["dilation_x"] = dilation[1] if taps == 1 else self._packed_step(step, source)
            body["x_origin"] = columns.first * stride[1]
            body["in_width"] = (1 << 15) - 1
        return body

    def _packed_step(self, step: ConvolveStep, source: SourcePlan) -> int:
        return min(step.kernel[1], self.n // source.source.channels)

    def _epilogue(self, step: ConvolveStep, unit: _Unit) -> dict[str, Any]:
        width = len(unit.group.columns) * self.n
        body: dict[str, Any] = {
            "residual": int(step.residual is not None),
            "load_table": int(step.table is not None),
            "table_tag": self.table_tag,
            "output_zero_point": step.output_zero_point,
            "out_row_stride": width,
            "residual_row_stride": width,
            "clamp_low": step.clamp[0],
            "clamp_high": step.clamp[1],
        }
        if step.add is not None:
            add = step.add
            body |= {
                "add_clamp_low": step.add_clamp[0],
                "add_clamp_high": step.add_clamp[1],
                "add_zero_point_a": add.zero_point_a,
                "add_zero_point_b": add.zero_point_b,
                "add_zero_point_out": add.zero_point_out,
                "add_shift_a": add.shift_a,
                "add_shift_b": add.shift_b,
                "add_shift_out": add.shift_out,
                "add_multiplier_a": add.multiplier_a,
                "add_multiplier_b": add.multiplier_b,
                "add_multiplier_out": add.multiplier_out,
            }
        return body

    # -- pooling ------------------------------------------------------------------------------------------------

    def _pool(self, index: int, step: PoolStep, unit: _Unit) -> None:
        """A window maximum: rows first into scratch, then columns; or at once if the window is a line."""
        source = self.plan.sources[0]
        stored = self.plan.input_rows(source, self.plan.tiles[unit.tile])
        width = source.layout.width
        block = unit.block * source.block_stride
        final = int(index == len(self.units) - 1)
        rows, columns = unit.group.rows, unit.group.columns
        vertical = {
            "kernel_height": step.kernel[0],
            "stride_y": step.stride[0],
            "y_origin": rows.first * step.stride[0] - step.padding.top - stored.first,
            "in_rows": len(stored),
        }
        out = {
            "out_width": len(columns),
            "out_rows": len(rows),
            "out_row_stride": len(columns) * self.n,
            "clamp_low": step.clamp[0],
            "clamp_high": step.clamp[1],
        }
        output = Operand(self.ring["output"], Cursor.PRODUCER, 1, 1)
        weights = self._consume("weights", 1, final)
        if not separable(step):
            horizontal = {
                "kernel_width": step.kernel[1],
                "stride_x": step.stride[1],
                "x_origin": columns.first * step.stride[1] - step.padding.left,
                "in_width": width,
            }
            taken = self._consume("input", 1, int(unit.last_of_tile), block)
            self._maximum((taken, weights, None, None, output), vertical | horizontal | out, source.row_stride)
            return
        out_width = self.plan.output.width
        if unit.group.rows.first == self.plan.tiles[unit.tile].first and columns.first == 0:
            last = Rows(0, 0)
            pieces = list(self._row_pass(len(stored), out_width))
            for number, (last, span) in enumerate(pieces):
                body = {
                    "kernel_width": step.kernel[1],
                    "kernel_height": 1,
                    "stride_x": step.stride[1],
                    "stride_y": 1,
                    "x_origin": span.first * step.stride[1] - step.padding.left,
                    "y_origin": last.first,
                    "in_width": width,
                    "in_rows": len(stored),
                    "out_width": len(span),
                    "out_rows": len(last),
                    "out_row_stride": out_width * self.n,
                }
                end = number == len(pieces) - 1
                release = int(end and unit.block == self.plan.out_blocks - 1)
                scratch = Operand(
                    self.ring["scratch"],
                    Cursor.PRODUCER,
                    int(number == 0),
                    int(end),
                    (last.first * out_width + span.first) * self.n,
                )
                taken = self._consume("input", 1, release, block)
                idle = self._consume("weights", 1, 0)
                self._maximum((taken, idle, None, None, scratch), body, source.row_stride)
        horizontal = {"kernel_width": 1, "stride_x": 1, "x_origin": columns.first, "in_width": out_width}
        taken = self._consume("scratch", 1, int(unit.last_of_block))
        self._maximum((taken, weights, None, None, output), vertical | horizontal | out, out_width * self.n)

    def _row_pass(self, rows: int, width: int) -> list[tuple[Rows, Rows]]:
        """Pieces (rows, columns) of the row pass, each within half the accumulator."""
        most = self.config.command_cycles_max // self.step.kernel[1]
        half = min(self.config.accumulator_half, most)
        if width > half:
            return [
                (Rows(row, row + 1), Rows(column, min(column + half, width)))
                for row in range(rows)
                for column in range(0, width, half)
            ]
        step = half // width
        return [(Rows(row, min(row + step, rows)), Rows(0, width)) for row in range(0, rows, step)]

    def _maximum(self, operands: tuple[Operand | None, ...], body: dict[str, Any], row_stride: int) -> None:
        common = {
            "accumulate_first": 1,
            "accumulate_last": 1,
            "maximum": 1,
            "in_blocks": 1,
            "dilation_x": 1,
            "dilation_y": 1,
            "in_pixel_stride": self.n,
            "pad_value": -128,
            "in_row_stride": row_stride,
            "clamp_low": -128,
            "clamp_high": 127,
        }
        self.streams.add(Engine.COMPUTE, Opcode.CONVOLVE, operands, common | body)
