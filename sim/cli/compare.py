"""``rondo compare``: one workload under several policies; the main job."""

import concurrent.futures
import json
import pathlib

import click

from sim import golden as golden_model
from sim import report, results
from sim.cli.common import (
    Cancelled,
    Work,
    check_memory,
    configuration,
    console,
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
from sw.policy import POLICIES

WORKERS = 2


@click.command()
@model_options("320x320")
@click.option(
    "--buffers", default=",".join(POLICIES), show_default=True, metavar="LIST", help="Buffer policies, by commas."
)
@click.option("--engine", default="rtl", show_default=True, metavar="|".join(ENGINES), help="What runs the NPU.")
@click.option("--frames", default=1, show_default=True, type=click.IntRange(1, 1000), help="Frames to run.")
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("results"),
    show_default=True,
    metavar="DIR",
    help="Folder for results.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON instead of tables.")
@guarded
def compare(
    model: str,
    size: str,
    npu: str,
    settings: dict[str, str],
    buffers: str,
    engine: str,
    frames: int,
    out: pathlib.Path,
    as_json: bool,
) -> None:
    """Run one workload under several buffer policies; table and results.json."""
    config = configuration(npu, settings)
    chosen = policies(buffers)
    workload = find_workload(model, size)
    if engine not in ENGINES:
        fail(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    folder = output_folder(out)
    assert folder is not None
    with Work() as work:
        graph = workload.build()
        inputs = workload.inputs(graph)
        programs = []
        for policy in chosen:
            compiled = compile_graph(graph, config, policy)
            check_program(compiled.program, config)
            check_memory(compiled.program, config)
            programs.append(compiled)
        # Once, so that the runs below do not both build it.
        prepare(engine, config, work)

        golden = golden_model.run(graph, inputs)

        def one(index: int) -> tuple[Measurement, Checked]:
            compiled = programs[index]
            progress = work.track(chosen[index].name, frames * sum(plan.cycles for plan in compiled.plans))
            measurement, checked = measure(
                compiled,
                config,
                inputs,
                title=workload.title,
                engine=engine,
                frames=frames,
                golden=golden,
                progress=progress,
            )
            assert checked is not None
            return measurement, checked

        # Threads are enough: the compiled simulator runs outside Python.
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(one, index) for index in range(len(programs))]
            try:
                while concurrent.futures.wait(futures, timeout=0.2).not_done:
                    if any(future.done() and future.exception() for future in futures):
                        work.cancelled.set()
            except BaseException:
                work.cancelled.set()
                for future in futures:
                    future.cancel()
                raise
        # Of several failures the first that is no cancellation is the reason.
        failures = [error for error in (future.exception() for future in futures) if error is not None]
        for error in sorted(failures, key=lambda error: isinstance(error, Cancelled)):
            raise error
        measurements = [future.result()[0] for future in futures]
        for policy, future in zip(chosen, futures, strict=True):
            difference = future.result()[1].difference
            if difference is not None:
                fail(f"check failed under {policy.name}: {difference}", code=1)
    content = results.as_dict(measurements, config)
    results.write_json(folder / "results.json", content)
    if as_json:
        print(json.dumps(content, indent=1))
        return
    console.print(report.comparison(measurements))
    console.print(report.causes(measurements))
    speed = sum(m.cycles_per_second for m in measurements) / len(measurements)
    console.print("outputs of every run are equal to the golden model's")
    console.print(f"{speed:,.0f} simulated cycles a second; results in {folder / 'results.json'}")
