"""The per-layer table: for the terminal what fits it, as CSV everything."""

import csv
import io
import pathlib

from rich import box
from rich.table import Table
from rich.text import Text

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from sim.layers import LayerCost
from sim.session import Measurement
from sw.files import write_whole

COLUMNS = (
    "layer",
    "name",
    "kind",
    "operators",
    "macs",
    "cycles",
    "array_utilisation",
    "dram_read_bytes",
    "dram_write_bytes",
    "scratchpad_bytes",
    *(f"{engine.name}_{cause.name}".lower() for engine in Engine for cause in Cause),
)
"""Of the CSV file. ``layer`` counts from 0 and is empty in the last row, which holds what belongs to no layer.
``operators`` are the graph's, separated by ``|``. Those of engine and cause are cycles, empty when the device does not
say."""
_STALLS = tuple(cause for cause in Cause if cause not in (Cause.BUSY, Cause.IDLE))


def write_csv(path: pathlib.Path, measurement: Measurement) -> None:
    """Write one row a layer, and one of what belongs to none; columns are ``COLUMNS``, integers are plain.

    The rows are of the last frame, and add up to its cycles, causes and bytes. The file appears whole or not at all.
    Raises ``OSError`` if it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(str(index), layer) for index, layer in enumerate(measurement.layers))
    writer.writerow(_row("", measurement.outside))
    write_whole(path, text.getvalue().encode())


def _row(number: str, layer: LayerCost) -> list[str | int | float]:
    causes = [layer.causes[engine][cause] if layer.causes else "" for engine in Engine for cause in Cause]
    return [
        number,
        layer.name,
        layer.kind,
        "|".join(layer.operators),
        layer.macs,
        layer.cycles,
        layer.utilisation,
        layer.dram_read_bytes,
        layer.dram_write_bytes,
        layer.scratchpad_bytes,
        *causes,
    ]


def layer_table(measurement: Measurement) -> Table:
    """One row a layer, one of what belongs to none, and the sum, of the last frame; under 160 columns.

    Causes are those for which the compute engine did not compute, as shares of the layer's cycles, if they occur.
    """
    m = measurement
    rows = (*m.layers, m.outside)
    shown = [cause for cause in _STALLS if any(row.causes and row.causes[Engine.COMPUTE][cause] for row in rows)]
    table = Table(title=f"{m.title} on {m.npu}, buffers {m.policy}", box=box.SIMPLE_HEAD, padding=0)
    # Not ``no_wrap``: so a narrow terminal takes its room from these, and numbers stay whole.
    table.add_column("layer", min_width=6)
    table.add_column("operator", min_width=6)
    for name in ("MACs", "cycles", "share", "array", "KB read", "KB written", "KB scratch"):
        table.add_column(name.replace("KB ", "KB\n"), justify="right", no_wrap=True)
    for cause in shown:
        table.add_column(cause.name.lower().replace("_", "\n"), justify="right", no_wrap=True)
    total = sum(row.cycles for row in rows)
    for row in rows:
        table.add_row(
            _line(row.name[-20:]),
            _line(row.kind),
            f"{row.macs:,}" if row.macs else "",
            f"{row.cycles:,}",
            f"{row.cycles / total:.1%}",
            f"{row.utilisation:.1%}" if row.macs else "",
            _kilobytes(row.dram_read_bytes),
            _kilobytes(row.dram_write_bytes),
            _kilobytes(row.scratchpad_bytes) if row.scratchpad_bytes else "",
            *(_share(row.causes[Engine.COMPUTE][cause], row.cycles) for cause in shown),
            end_section=row is m.outside,
        )
    macs = sum(row.macs for row in rows)
    table.add_row(
        "frame",
        "",
        f"{macs:,}",
        f"{total:,}",
        "",
        f"{macs / (m.array_n**2 * total):.1%}",
        _kilobytes(sum(row.dram_read_bytes for row in rows)),
        _kilobytes(sum(row.dram_write_bytes for row in rows)),
        _kilobytes(m.scratchpad_peak_bytes),
        *(_share(sum(row.causes[Engine.COMPUTE][cause] for row in rows), total) for cause in shown),
    )
    return table


def _line(text: str) -> Text:
    """A cell of one line, cut where its column ends."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _kilobytes(count: int) -> str:
    return f"{count / 1e3:,.1f}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if part else ""
