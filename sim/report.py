"""Tables for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from sim.pipeline import HostWork
from sim.session import Measurement
from sw.compiler import Compiled

_SHOWN = tuple(cause for cause in Cause if cause not in (Cause.IDLE, Cause.STOPPED))


def comparison(measurements: Sequence[Measurement]) -> Table:
    """One row a policy."""
    table = Table(title=f"{measurements[0].title} on {measurements[0].npu}, {measurements[0].frames} frame(s)")
    table.add_column("buffers")
    for name in ("cycles", "frames/s", "array", "DRAM read", "DRAM written", "scratchpad"):
        table.add_column(name, justify="right")
    for m in measurements:
        table.add_row(
            m.policy,
            f"{m.cycles:,}",
            f"{m.frames_per_second:.1f}",
            f"{m.array_utilisation:.1%}",
            _megabytes(m.counters.read_bytes),
            _megabytes(m.counters.write_bytes),
            f"{m.scratchpad_peak_bytes / 1024:,.0f} KiB",
        )
    return table


def causes(measurements: Sequence[Measurement]) -> Table:
    """Where each engine's cycles went, as a share of the run."""
    table = Table(title="Cycles by cause")
    table.add_column("buffers")
    table.add_column("engine")
    for cause in _SHOWN:
        table.add_column(cause.name.lower().replace("_", " "), justify="right")
    for m in measurements:
        for engine in Engine:
            shares = [m.counters.cause(engine, cause) / m.cycles for cause in _SHOWN]
            table.add_row(m.policy, engine.name.lower(), *(f"{share:.1%}" for share in shares))
    return table


def host_work(host: Sequence[HostWork], m: Measurement) -> Table:
    """One row a stage that the host ran between programs."""
    table = Table(title=f"{m.title}: the host's work, in this computer's time")
    table.add_column("after program", justify="right")
    table.add_column("operators")
    for name in ("seconds", "bytes in", "bytes out"):
        table.add_column(name, justify="right")
    for work in host:
        table.add_row(
            str(work.position),
            ", ".join(work.operators),
            f"{work.seconds:.3f}",
            f"{work.read_bytes:,}",
            f"{work.write_bytes:,}",
        )
    return table


def plan(compiled: Compiled) -> Table:
    """Rings of every step."""
    table = Table(title=f"{compiled.program.name}, buffers {compiled.program.policy}: rings in the scratchpad")
    for name in ("step", "ring", "role"):
        table.add_column(name)
    for name in ("base", "slots", "slot bytes", "bytes"):
        table.add_column(name, justify="right")
    for use in compiled.program.rings:
        table.add_row(
            use.layer,
            str(use.ring),
            use.role,
            f"{use.base:#x}",
            str(use.slots),
            f"{use.slot_bytes:,}",
            f"{use.slots * use.slot_bytes:,}",
        )
    return table


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
