"""``results.json``: what a run measured, in a versioned form; ``SCHEMA`` is its JSON Schema."""

import json
import pathlib
import typing

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.session import Measurement
from sw.files import write_whole

VERSION = 1

_COUNT = {"type": "integer", "minimum": 0}
_CAUSES = {
    "type": "object",
    "properties": {cause.name.lower(): _COUNT for cause in Cause},
    "required": [cause.name.lower() for cause in Cause],
    "additionalProperties": False,
}
SCHEMA: dict[str, typing.Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Rondo results",
    "type": "object",
    "required": ["format", "version", "npu", "runs"],
    "properties": {
        "format": {"const": "rondo-results"},
        "version": {"const": VERSION},
        "npu": {"type": "object", "description": "The configuration, every key."},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["workload", "buffers", "engine", "frames", "metrics", "causes", "counters", "layers"],
                "properties": {
                    "workload": {"type": "string"},
                    "buffers": {"type": "string", "description": "Buffer policy."},
                    "engine": {"type": "string"},
                    "frames": {"type": "integer", "minimum": 1},
                    "metrics": {
                        "type": "object",
                        "required": [
                            "cycles",
                            "frames_per_second",
                            "array_utilisation",
                            "dram_read_bytes",
                            "dram_write_bytes",
                            "scratchpad_peak_bytes",
                            "dram_peak_bytes",
                        ],
                        "properties": {
                            "cycles": _COUNT,
                            "frames_per_second": {"type": "number"},
                            "array_utilisation": {"type": "number", "description": "Useful MACs / (N^2 x cycles)."},
                            "dram_read_bytes": _COUNT,
                            "dram_write_bytes": _COUNT,
                            "scratchpad_peak_bytes": _COUNT,
                            "dram_peak_bytes": _COUNT,
                        },
                        "additionalProperties": False,
                    },
                    "causes": {
                        "type": "object",
                        "description": "For each engine, cycles by cause; they add up to the counted cycles.",
                        "properties": {engine.name.lower(): _CAUSES for engine in Engine},
                        "additionalProperties": False,
                    },
                    "counters": {"type": "object", "additionalProperties": _COUNT},
                    "memory": {"type": "object", "additionalProperties": _COUNT},
                    "layers": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "kind", "macs", "cycles", "array_utilisation"],
                        },
                    },
                },
            },
        },
    },
}


def as_dict(measurements: typing.Sequence[Measurement], config: NpuConfig) -> dict[str, typing.Any]:
    """The content of ``results.json``."""
    return {
        "format": "rondo-results",
        "version": VERSION,
        "npu": config.as_dict(),
        "runs": [_run(measurement) for measurement in measurements],
    }


def _run(m: Measurement) -> dict[str, typing.Any]:
    return {
        "workload": m.title,
        "buffers": m.policy,
        "engine": m.engine,
        "frames": m.frames,
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
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "macs": layer.macs,
                "cycles": layer.cycles,
                "array_utilisation": layer.utilisation,
            }
            for layer in m.layers
        ],
    }


def write_json(path: pathlib.Path, value: typing.Any) -> None:
    """Write a JSON file that appears whole or not at all."""
    write_whole(path, (json.dumps(value, indent=1) + "\n").encode())
