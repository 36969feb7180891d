"""``rondo compare``: one workload under several policies; the main job."""

import concurrent.futures
import json
import pathlib

import click

from sim import report, results
from sim.cli.common import (
    Cancelled,
    Work,
    check_memory,
    configuration,
    console,
    fail,
    model_options,
    output_folder,
    policies,
    prepare,
)
from sim.engines import ENGINES
from sim.inputs import default as default_inputs
from sim.pipeline import ModelRun, compile_model, run_golden, run_model
from sim.workload import Workload
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
def compare(
    workload: Workload,
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
    if engine not in ENGINES:
        fail(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    folder = output_folder(out)
    assert folder is not None
    with Work() as work:
        model = workload.load()
        inputs = default_inputs(model)
        models = [compile_model(model, config, policy) for policy in chosen]
        for compiled in models:
            check_memory(compiled, config)
        # Once, so that the runs below do not both build it.
        prepare(engine, config, work)

        _, golden = run_golden(model, inputs)

        def one(index: int) -> ModelRun:
            compiled = models[index]
            progress = work.track(chosen[index].name, frames * compiled.planned_cycles)
            return run_model(
                compiled,
                config,
                inputs,
                title=workload.title,
                engine=engine,
                frames=frames,
                golden=golden,
                progress=progress,
            )

        # Threads are enough: the compiled simulator runs outside Python.
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(one, index) for index in range(len(models))]
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
        runs = [future.result() for future in futures]
        for policy, done in zip(chosen, runs, strict=True):
            if done.checked is not None and done.checked.difference is not None:
                fail(f"check failed under {policy.name}: {done.checked.difference}", code=1)
    measurements = [done.measurement for done in runs]
    content = results.as_dict(measurements, config, host=[done.host for done in runs])
    unwritten = ""
    try:
        results.write_json(folder / "results.json", content)
    except OSError as error:
        unwritten = f"cannot write {folder / 'results.json'}: {error.strerror}"
    if as_json:
        print(json.dumps(content, indent=1))
        if unwritten:
            fail(unwritten)
        return
    console.print(report.comparison(measurements))
    console.print(report.causes(measurements))
    if runs[0].host:
        console.print(report.host_work(runs[0].host, measurements[0]))
    speed = sum(m.cycles_per_second for m in measurements) / len(measurements)
    console.print("outputs of every run are equal to the golden model's")
    console.print(f"{speed:,.0f} simulated cycles a second; results in {folder / 'results.json'}")
    if unwritten:
        fail(unwritten)
