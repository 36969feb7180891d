"""Measures the figures of ``docs/performance.md`` and writes it: ``python -m sim.benchmark`` (minutes)."""

import dataclasses
import pathlib
import sys

from hw.spec.causes import Cause
from hw.spec.commands import Cursor, Engine, Opcode
from hw.spec.config import NpuConfig, load_config
from sim import operator_benchmark
from sim.engines import open_device
from sim.inputs import default as default_inputs
from sim.pipeline import compile_model, run_golden, run_model
from sim.session import Measurement
from sim.workload import find_workload
from sw.driver import Driver
from sw.emit import Operand, Streams
from sw.policy import POLICIES, policy
from sw.program import BASE_ARENA, Program

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "performance.md"
README = pathlib.Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- policies: begin -->", "<!-- policies: end -->"
RUN_BYTES = (16, 32, 64, 128, 256, 1024, 4096, 32768)
TRANSFER_BYTES = 32768
TRANSFERS = 16


def transfer_program(config: NpuConfig, opcode: Opcode, run: int, stride: int) -> Program:
    """A program that only moves: ``TRANSFERS`` transfers of ``TRANSFER_BYTES`` in runs of ``run`` bytes."""
    streams = Streams()
    ring, slots = 0, 4
    streams.configure(ring, 0, slots, TRANSFER_BYTES, 1)
    producer, consumer = Operand(ring, Cursor.PRODUCER, 1, 1), Operand(ring, Cursor.CONSUMER_0, 1, 1)
    body = {
        "base": BASE_ARENA,
        "run_bytes": run,
        "count": [TRANSFER_BYTES // run, 1, 1],
        "dram_stride": [stride, 0, 0],
        "scratchpad_stride": [run, 0, 0],
    }
    # The side that is not measured only moves the cursor.
    mover, other = (Engine.LOAD, Engine.COMPUTE) if opcode == Opcode.LOAD else (Engine.STORE, Engine.COMPUTE)
    for _ in range(TRANSFERS):
        loads = opcode == Opcode.LOAD
        streams.add(mover, opcode, (producer if loads else consumer,), body)
        streams.add(other, Opcode.WAIT, (consumer if loads else producer,))
    for engine in Engine:
        streams.add(engine, Opcode.END)
    size = TRANSFER_BYTES // run * max(stride, run) + run
    return Program(
        name="transfer",
        config_hash=config.hash,
        n=config.array.n,
        policy="none",
        streams=streams.finish(),
        constants=b"",
        buffer_bytes={"constants": 64, "arena": size, "input": 64, "output": 64},
        tensors={},
        inputs=(),
        outputs=(),
        layers=(),
        rings=(),
        scratchpad_peak=slots * TRANSFER_BYTES,
        arena_lower_bound=size,
    )


def bus_utilisation(config: NpuConfig, opcode: Opcode, run: int, stride: int) -> float:
    """Useful bytes over what the bus could carry, between the first and the last transfer's end."""
    engine = Engine.LOAD if opcode == Opcode.LOAD else Engine.STORE
    with open_device("rtl", config) as device:
        driver = Driver(device, config)
        program = transfer_program(config, opcode, run, stride)
        driver.load(program)
        driver.run(driver.allocate_group(), timeout_cycles=10_000_000)
        first = 1 if engine == Engine.LOAD else 0
        ends = [r.cycle for r in device.retirements() if r.engine == engine][first : first + TRANSFERS]
    moved = TRANSFER_BYTES * (TRANSFERS - 1)
    return moved / (config.bus_bytes * (ends[-1] - ends[0]))


def _frames(config: NpuConfig, size: str) -> list[Measurement]:
    workload = find_workload("yolov5s", size)
    model = workload.load()
    inputs = default_inputs(model)
    _, golden = run_golden(model, inputs)
    found = []
    for name in POLICIES:
        compiled = compile_model(model, config, policy(name))
        print(f"{workload.title}, {name} ...", file=sys.stderr, flush=True)
        done = run_model(compiled, config, inputs, title=workload.title, engine="rtl", golden=golden)
        if done.checked is None or done.checked.difference is not None:
            sys.exit(f"{name}: {done.checked and done.checked.difference}")
        found.append(done.measurement)
    return found


def _frame_section(measurements: list[Measurement]) -> list[str]:
    out = [f"## YOLOv5s {measurements[0].title.split()[-1]} on `edge`, DRAM included", ""]
    out += ["| buffers | cycles | frames/s | array utilisation | DRAM read | DRAM written | scratchpad peak |"]
    out += ["|---|---|---|---|---|---|---|"]
    for m in measurements:
        out.append(
            f"| `{m.policy}` | {m.cycles:,} | {m.frames_per_second:.1f} | {m.array_utilisation:.1%} "
            f"| {m.counters.read_bytes / 1e6:.1f} MB | {m.counters.write_bytes / 1e6:.1f} MB "
            f"| {m.scratchpad_peak_bytes / 1024:.0f} KiB |"
        )
    causes = [cause for cause in Cause if cause not in (Cause.IDLE, Cause.STOPPED)]
    out += ["", "Cycles of each engine by cause, as a share of the frame:", ""]
    out += ["| buffers | engine | " + " | ".join(f"`{c.name.lower()}`" for c in causes) + " |"]
    out += ["|---|---|" + "---|" * len(causes)]
    for m in measurements:
        for engine in Engine:
            shares = " | ".join(f"{m.counters.cause(engine, cause) / m.cycles:.1%}" for cause in causes)
            out.append(f"| `{m.policy}` | {engine.name.lower()} | {shares} |")
    out += [
        "",
        "Array utilisation of each layer (useful MACs over N² times the layer's cycles; a layer's cycles run from the",
    ]
    out += [
        "last commit of the layer before to its own last commit; after a long epilogue one can show over 100 %):",
        "",
    ]
    out += ["| layer | MACs | " + " | ".join(f"`{m.policy}` cycles | `{m.policy}`" for m in measurements) + " |"]
    out += ["|---|---|" + "---|---|" * len(measurements)]
    for index, layer in enumerate(measurements[0].layers):
        cells = " | ".join(f"{m.layers[index].cycles:,} | {m.layers[index].utilisation:.1%}" for m in measurements)
        out.append(f"| {layer.name} | {layer.macs:,} | {cells} |")
    return out


def _bus_section(config: NpuConfig) -> list[str]:
    ideal = dataclasses.replace(
        config, dram=dataclasses.replace(config.dram, model="ideal", bytes_per_cycle=2 * config.bus_bytes)
    )
    out = ["## DMA: share of the bus that useful bytes fill", ""]
    out += [
        f"Transfers of {TRANSFER_BYTES // 1024} KiB in runs of the given length; runs follow each other, or lie two "
        f"run lengths apart. Ideal memory: {ideal.dram.latency_cycles} cycles latency, twice the bus's bandwidth.",
        "",
        "| run, bytes | ideal: load | load, apart | store | DRAM: load | load, apart | store |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in RUN_BYTES:
        print(f"DMA, runs of {run} bytes ...", file=sys.stderr, flush=True)
        cells = []
        for memory in (ideal, config):
            cells += [
                bus_utilisation(memory, Opcode.LOAD, run, run),
                bus_utilisation(memory, Opcode.LOAD, run, 2 * run),
                bus_utilisation(memory, Opcode.STORE, run, run),
            ]
        out.append(f"| {run:,} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")
    return out


def _update_readme(measurements: list[Measurement]) -> None:
    """Put the table of policies between its markers."""
    rows = [f"{measurements[0].title} on `{measurements[0].npu}` (LPDDR4x-4266 x32), from the RTL:", ""]
    rows += [
        "| buffers | cycles | frames/s | array utilisation | DRAM bytes | scratchpad peak |",
        "|---|---|---|---|---|---|",
    ]
    for m in measurements:
        moved = (m.counters.read_bytes + m.counters.write_bytes) / 1e6
        rows.append(
            f"| `{m.policy}` | {m.cycles:,} | {m.frames_per_second:.1f} | {m.array_utilisation:.1%} "
            f"| {moved:.1f} MB | {m.scratchpad_peak_bytes / 1024:.0f} KiB |"
        )
    before, rest = README.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text("\n".join([before + BEGIN, *rows, END]) + after, encoding="utf-8")


def main() -> None:
    """Measure everything and write the document."""
    config = load_config("edge")
    frames = _frames(config, "640x640")
    out = [
        "# Performance",
        "",
        "Written by `python -m sim.benchmark`. Cycles are exact; speeds are of the machine that ran it.",
        "",
    ]
    out += _frame_section(frames)
    print("operators by themselves ...", file=sys.stderr, flush=True)
    out += ["", *operator_benchmark.section(config), "", *_bus_section(config), ""]
    out += [
        "## Simulation speed",
        "",
        "| engine | workload | buffers | simulated cycles a second |",
        "|---|---|---|---|",
    ]
    for m in frames:
        out.append(f"| rtl | {m.title} | `{m.policy}` | {m.cycles_per_second:,.0f} |")
    DOCUMENT.write_text("\n".join(out) + "\n", encoding="utf-8")
    _update_readme(frames)
    print(DOCUMENT)


if __name__ == "__main__":
    main()
