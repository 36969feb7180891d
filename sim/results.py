"""``results.json``: what runs measured, in a versioned form; ``SCHEMA`` is its JSON Schema."""

import importlib.metadata
import json
import pathlib
import typing
from collections.abc import Sequence

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.layers import LayerCost
from sim.pipeline import HostWork
from sim.session import Measurement
from sw.files import write_whole

VERSION = 2

_Json = dict[str, typing.Any]


def _object(description: str, properties: _Json, *, optional: Sequence[str] = ()) -> _Json:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _list(description: str, items: _Json) -> _Json:
    return {"type": "array", "description": description, "items": items}


def _count(description: str, minimum: int = 0) -> _Json:
    return {"type": "integer", "minimum": minimum, "description": description}


def _number(description: str) -> _Json:
    return {"type": "number", "minimum": 0, "description": description}


def _text(description: str) -> _Json:
    return {"type": "string", "description": description}


def _causes(description: str, *, optional: bool = False) -> _Json:
    def of(engine: Engine) -> _Json:
        cycles = {cause.name.lower(): _count(f"Cycles counted as {cause.name}.") for cause in Cause}
        return _object(f"Of the {engine.name.lower()} engine.", cycles)

    engines = {engine.name.lower(): of(engine) for engine in Engine}
    return _object(description, engines, optional=tuple(engines) if optional else ())


def _cost_fields(cycles: str, at: str) -> _Json:
    return {
        "cycles": _count(cycles),
        "dram_read_bytes": _count("Bytes read from DRAM, in whole beats of the bus."),
        "dram_write_bytes": _count("Bytes written to DRAM, in whole beats of the bus."),
        "causes": _causes(
            f"For each engine, its cycles at {at} by cause; empty when the device does not say.", optional=True
        ),
    }


_LAYER = _object(
    "One step of a program. Its numbers are of the last frame. An engine is at the layer of its oldest command that is "
    "not committed, whether it works on it or waits for it.",
    {
        "name": _text("Name of the tensor that the layer stores."),
        "kind": _text("What it does, with kernel and stride."),
        "operators": _list("The graph's operators in it.", _text("Name of an operator.")),
        "macs": _count("Multiply-accumulates of the graph's operators, without padding to the array."),
        "array_utilisation": _number(
            "MACs / (N^2 x cycles). Over 1 when the array worked on the layer while the one before was not committed."
        ),
        "scratchpad_bytes": _count("What its rings occupy."),
        **_cost_fields("Cycles in which the compute engine was at the layer.", "the layer"),
    },
)
_OUTSIDE = _object(
    "What belongs to no layer in the last frame: with the layers it adds up to the frame. Bytes read are commands and "
    "jobs, bytes written completions, cycles those before an engine's first layer and after its last.",
    _cost_fields("Cycles in which the compute engine was at no layer.", "no layer"),
)
_METRICS = {
    "cycles": _count("Cycles of all frames, each from the beginning of its job to its end."),
    "frames_per_second": _number("At the configuration's clock, without the host's work."),
    "array_utilisation": _number("Useful MACs / (N^2 x cycles)."),
    "dram_read_bytes": _count("Bytes read from DRAM in all frames, in whole beats of the bus."),
    "dram_write_bytes": _count("Bytes written to DRAM in all frames, in whole beats of the bus."),
    "scratchpad_peak_bytes": _count("Most bytes of scratchpad that rings occupied at one time."),
    "dram_peak_bytes": _count("Most bytes of DRAM that the driver had allocated at one time."),
}
_HOST_STAGE = _object(
    "Operators that the host ran between programs, for one frame.",
    {
        "position": _count("Number of NPU programs that ran before them."),
        "operators": _list("What ran.", _text("Name of an operator.")),
        "seconds": _number("The host's own time."),
        "read_bytes": _count("Bytes of the arrays that went in."),
        "write_bytes": _count("Bytes of the arrays that came out."),
    },
)
_RUN = _object(
    "One workload under one buffer policy.",
    {
        "workload": _text("What was run, with its input size."),
        "model": _text("Name of the network."),
        "buffers": _text("Buffer policy."),
        "engine": _text("What ran the NPU."),
        "frames": _count("Frames, one after the other.", 1),
        "frame_cycles": _list("Cycles of each frame.", _count("Cycles.")),
        "metrics": _object("The run in a few numbers.", _METRICS),
        "causes": _causes("For each engine, cycles of all frames by cause; they add up to `metrics.cycles`."),
        "counters": {
            "type": "object",
            "description": "The NPU's counters (`registers.md`) over the cycles of all frames, by name.",
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
        "memory": {
            "type": "object",
            "description": "What the DRAM model counted: row hits, row misses, refreshes, bytes.",
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
        "layers": _list("In the order of the program, or of the programs that ran one after the other.", _LAYER),
        "outside_layers": _OUTSIDE,
        "host": _list("In order; empty when the NPU does everything.", _HOST_STAGE),
    },
)
SCHEMA: _Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Rondo results",
    **_object(
        "What runs measured on one configuration.",
        {
            "format": {"const": "rondo-results", "description": "Says what the file is."},
            "version": {"const": VERSION, "description": "Of this form."},
            "rondo": _text("Version of Rondo."),
            "configuration_hash": {
                "type": "string",
                "pattern": "^[0-9a-f]{8}$",
                "description": "Hash of the configuration, as in the register CONFIG_HASH.",
            },
            "npu": {"type": "object", "description": "The configuration, every key."},
            "runs": _list("One a policy.", _RUN),
        },
    ),
}


def as_dict(
    measurements: Sequence[Measurement], config: NpuConfig, *, host: Sequence[Sequence[HostWork]] = ()
) -> _Json:
    """The content of ``results.json``; ``host`` is the host's work in each run, none if not given."""
    works = host or [()] * len(measurements)
    return {
        "format": "rondo-results",
        "version": VERSION,
        "rondo": importlib.metadata.version("rondo-npu"),
        "configuration_hash": f"{config.hash:08x}",
        "npu": config.as_dict(),
        "runs": [_run(measurement, work) for measurement, work in zip(measurements, works, strict=True)],
    }


def _run(m: Measurement, host: Sequence[HostWork]) -> _Json:
    return {
        "workload": m.title,
        "model": m.model,
        "buffers": m.policy,
        "engine": m.engine,
        "frames": m.frames,
        "frame_cycles": list(m.frame_cycles),
        "metrics": {
            "cycles": m.cycles,
            "frames_per_second": m.frames_per_second,
            "array_utilisation": m.array_utilisation,
            "dram_read_bytes": m.counters.read_bytes,
            "dram_write_bytes": m.counters.write_bytes,
            "scratchpad_peak_bytes": m.scratchpad_peak_bytes,
            "dram_peak_bytes": m.dram_peak_bytes,
        },
        "causes": {engine.name.lower(): m.counters.causes(engine) for engine in Engine},
        "counters": {name.lower(): value for name, value in m.counters.values.items()},
        "memory": m.memory_counters,
        "layers": [_layer(layer) for layer in m.layers],
        "outside_layers": _cost(m.outside),
        "host": [
            {
                "position": work.position,
                "operators": list(work.operators),
                "seconds": work.seconds,
                "read_bytes": work.read_bytes,
                "write_bytes": work.write_bytes,
            }
            for work in host
        ],
    }


def _layer(layer: LayerCost) -> _Json:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "operators": list(layer.operators),
        "macs": layer.macs,
        "array_utilisation": layer.utilisation,
        "scratchpad_bytes": layer.scratchpad_bytes,
        **_cost(layer),
    }


def _cost(layer: LayerCost) -> _Json:
    return {
        "cycles": layer.cycles,
        "dram_read_bytes": layer.dram_read_bytes,
        "dram_write_bytes": layer.dram_write_bytes,
        "causes": {
            engine.name.lower(): {cause.name.lower(): cycles for cause, cycles in causes.items()}
            for engine, causes in layer.causes.items()
        },
    }


def write_json(path: pathlib.Path, value: typing.Any) -> None:
    """Write a JSON file that appears whole or not at all."""
    write_whole(path, (json.dumps(value, indent=1) + "\n").encode())
