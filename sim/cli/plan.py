"""``rondo plan``: where everything lies, before anything runs."""

import json
from typing import Any

import click

from hw.spec.config import NpuConfig
from sim import report
from sim.cli.common import configuration, console, model_options, one_policy
from sim.pipeline import compile_model
from sim.workload import Workload
from sw.compiler import Compiled
from sw.program import Program


@click.command()
@model_options("640x640")
@click.option("--buffers", default="pingpong", show_default=True, metavar="POLICY", help="Buffer policy.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(workload: Workload, npu: str, settings: dict[str, str], buffers: str, as_json: bool) -> None:
    """Show the memory plan: rings in the scratchpad, tensors in the arena."""
    config = configuration(npu, settings)
    compiled = compile_model(workload.load(), config, one_policy("plan", buffers))
    if as_json:
        print(json.dumps({"programs": [_as_dict(part.program) for part in compiled.programs]}, indent=1))
        return
    for part in compiled.programs:
        _show(part, config)
    for operators in compiled.model.host_operators:
        console.print(f"left to the host: {', '.join(operators)}", soft_wrap=True)


def _as_dict(program: Program) -> dict[str, Any]:
    tensors = {t.name: {"base": t.base, "offset": t.offset, "shape": t.shape} for t in program.tensors.values()}
    return {
        "name": program.name,
        "rings": [vars(use) for use in program.rings],
        "tensors": tensors,
        "buffer_bytes": program.buffer_bytes,
        "scratchpad_peak_bytes": program.scratchpad_peak,
        "arena_peak_bytes": program.buffer_bytes["arena"],
        "arena_lower_bound_bytes": program.arena_lower_bound,
    }


def _show(compiled: Compiled, config: NpuConfig) -> None:
    program = compiled.program
    arena = program.buffer_bytes["arena"]
    console.print(report.plan(compiled))
    console.print(f"scratchpad: most used by one step {program.scratchpad_peak:,} of {config.scratchpad.bytes:,} bytes")
    console.print(
        f"arena: peak {arena:,} bytes, lower bound {program.arena_lower_bound:,}, "
        f"ratio {arena / max(program.arena_lower_bound, 1):.3f}"
    )
    console.print(f"constants {program.buffer_bytes['constants']:,}, input {program.buffer_bytes['input']:,}, ", end="")
    console.print(f"output {program.buffer_bytes['output']:,} bytes")
