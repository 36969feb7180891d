"""``rondo plan``: where everything lies, before anything runs."""

import json

import click

from sim import report
from sim.cli.common import configuration, console, fail, guarded, model_options, policies
from sim.workload import find_workload
from sw.compiler import compile_graph


@click.command()
@model_options("640x640")
@click.option("--buffers", default="pingpong", show_default=True, metavar="POLICY", help="Buffer policy.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@guarded
def plan(model: str, size: str, npu: str, settings: dict[str, str], buffers: str, as_json: bool) -> None:
    """Show the memory plan: rings in the scratchpad, tensors in the arena."""
    config = configuration(npu, settings)
    chosen = policies(buffers)
    if len(chosen) != 1:
        fail("rondo plan takes one buffer policy")
    compiled = compile_graph(find_workload(model, size).build(), config, chosen[0])
    program = compiled.program
    arena = program.buffer_bytes["arena"]
    if as_json:
        tensors = {t.name: {"base": t.base, "offset": t.offset, "shape": t.shape} for t in program.tensors.values()}
        print(
            json.dumps(
                {
                    "rings": [vars(use) for use in program.rings],
                    "tensors": tensors,
                    "buffer_bytes": program.buffer_bytes,
                    "scratchpad_peak_bytes": program.scratchpad_peak,
                    "arena_peak_bytes": arena,
                    "arena_lower_bound_bytes": program.arena_lower_bound,
                },
                indent=1,
            )
        )
        return
    console.print(report.plan(compiled))
    console.print(f"scratchpad: most used by one step {program.scratchpad_peak:,} of {config.scratchpad.bytes:,} bytes")
    console.print(
        f"arena: peak {arena:,} bytes, lower bound {program.arena_lower_bound:,}, "
        f"ratio {arena / max(program.arena_lower_bound, 1):.3f}"
    )
    console.print(f"constants {program.buffer_bytes['constants']:,}, input {program.buffer_bytes['input']:,}, ", end="")
    console.print(f"output {program.buffer_bytes['output']:,} bytes")
