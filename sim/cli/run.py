"""``rondo run``: one workload under one policy."""

import json
import pathlib
import sys

import click

from sim import golden as golden_model
from sim import report, results
from sim.cli.common import (
    Work,
    check_memory,
    configuration,
    console,
    errors,
    fail,
    guarded,
    model_options,
    output_folder,
    policies,
    prepare,
)
from sim.engines import ENGINES
from sim.session import Checked, Measurement, measure
from sim.workload import find_workload
from sw.check import check_program
from sw.compiler import compile_graph

CHECKS = ("stored", "all")


@click.command()
@model_options("640x640")
@click.option("--buffers", default="pingpong", show_default=True, metavar="POLICY", help="Buffer policy.")
@click.option("--engine", default="rtl", show_default=True, metavar="|".join(ENGINES), help="What runs the NPU.")
@click.option("--frames", default=1, show_default=True, type=click.IntRange(1, 1000), help="Frames to run.")
@click.option(
    "--check",
    is_flag=False,
    flag_value="stored",
    metavar="[=all]",
    help="Compare every stored tensor with the golden model; =all compiles unfused and compares every tensor that can "
    "be materialised.",
)
@click.option("--out", type=click.Path(path_type=pathlib.Path), metavar="DIR", help="Write results.json there.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON instead of tables.")
@guarded
def run(
    model: str,
    size: str,
    npu: str,
    settings: dict[str, str],
    buffers: str,
    engine: str,
    frames: int,
    check: str | None,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Run one workload under one buffer policy; per-layer table."""
    if check not in (None, *CHECKS):
        fail(f"--check is either alone or --check=all, not {check!r}")
    config = configuration(npu, settings)
    chosen = policies(buffers)
    if len(chosen) != 1:
        fail("rondo run takes one buffer policy; rondo compare takes several")
    workload = find_workload(model, size)
    folder = output_folder(out)
    if engine not in ENGINES:
        fail(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    with Work() as work:
        graph = workload.build()
        compiled = compile_graph(graph, config, chosen[0], fused=check != "all", keep_tensors=check is not None)
        check_program(compiled.program, config)
        check_memory(compiled.program, config)
        prepare(engine, config, work)
        inputs = workload.inputs(graph)
        golden = golden_model.run(graph, inputs) if check else None
        estimate = sum(plan.cycles for plan in compiled.plans) * frames
        measurement, checked = measure(
            compiled,
            config,
            inputs,
            title=workload.title,
            engine=engine,
            frames=frames,
            golden=golden,
            progress=work.track(workload.title, estimate),
        )
    content = results.as_dict([measurement], config)
    if folder is not None:
        results.write_json(folder / "results.json", content)
    _show(measurement, checked, as_json, content)
    if checked is not None and checked.difference is not None:
        sys.exit(1)


def _show(measurement: Measurement, checked: Checked | None, as_json: bool, content: dict) -> None:
    if as_json:
        print(json.dumps(content, indent=1))
    else:
        console.print(report.layers(measurement))
        console.print(report.comparison([measurement]))
        console.print(report.causes([measurement]))
        console.print(
            f"{measurement.simulated_cycles:,} cycles simulated in {measurement.seconds:.1f} s: "
            f"{measurement.cycles_per_second:,.0f} cycles a second"
        )
    if checked is None:
        return
    if checked.difference is not None:
        errors.print(f"rondo: check failed: {checked.difference}", markup=False, highlight=False, soft_wrap=True)
    elif not as_json:
        console.print(f"check passed: {checked.tensors} tensors, {checked.bytes:,} values equal to the golden model")
        console.print(
            f"in every tensor at most {checked.spread.most_saturated:.2%} of the values saturate and at least "
            f"{checked.spread.fewest_values} different values occur"
        )
