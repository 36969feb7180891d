"""``rondo run``: one workload under one policy."""

import json
import pathlib
import sys

import click

from sim import inputs as model_inputs
from sim import report, results
from sim.cli.common import (
    Work,
    check_apart,
    check_memory,
    configuration,
    console,
    errors,
    fail,
    model_options,
    one_policy,
    output_folder,
    prepare,
    writable,
)
from sim.cli.meaning import Answer, Asked
from sim.engines import ENGINES
from sim.layer_table import layer_table, write_csv
from sim.pictures import PictureError
from sim.pipeline import ModelRun, compile_model, run_golden, run_model
from sim.reference import Comparison, compare_with_runtime
from sim.workload import ModelFile, Workload

CHECKS = ("stored", "all")


@click.command()
@model_options("640x640")
@click.option("--buffers", default="pingpong", show_default=True, metavar="POLICY", help="Buffer policy.")
@click.option("--engine", default="rtl", show_default=True, metavar="|".join(ENGINES), help="What runs the NPU.")
@click.option("--frames", default=1, show_default=True, type=click.IntRange(1, 1000), help="Frames to run.")
@click.option("--image", type=click.Path(path_type=pathlib.Path), metavar="FILE", help="Picture to work on.")
@click.option(
    "--input",
    "arrays",
    type=click.Path(path_type=pathlib.Path),
    metavar="FILE",
    help="Inputs to work on: .npy, or .npz with one array for each input's name.",
)
@click.option(
    "--draw", type=click.Path(path_type=pathlib.Path), metavar="FILE", help="Write the picture with what was found."
)
@click.option(
    "--labels", type=click.Path(path_type=pathlib.Path), metavar="FILE", help="Names of the classes, one a line."
)
@click.option(
    "--save", type=click.Path(path_type=pathlib.Path), metavar="FILE", help="Write the network's outputs, as .npz."
)
@click.option(
    "--check",
    is_flag=False,
    flag_value="stored",
    metavar="[=all]",
    help="Compare every stored tensor with the golden model, and a file's outputs with the runtime of its format; =all "
    "compiles unfused and compares every tensor that can be materialised.",
)
@click.option("--csv", type=click.Path(path_type=pathlib.Path), metavar="FILE", help="Write the per-layer table.")
@click.option("--out", type=click.Path(path_type=pathlib.Path), metavar="DIR", help="Write results.json there.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON instead of tables.")
def run(
    workload: Workload,
    npu: str,
    settings: dict[str, str],
    buffers: str,
    engine: str,
    frames: int,
    image: pathlib.Path | None,
    arrays: pathlib.Path | None,
    draw: pathlib.Path | None,
    labels: pathlib.Path | None,
    save: pathlib.Path | None,
    check: str | None,
    csv: pathlib.Path | None,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Run one workload under one buffer policy; per-layer table."""
    if check not in (None, *CHECKS):
        fail(f"--check is either alone or --check=all, not {check!r}")
    if image is not None and arrays is not None:
        fail("--image and --input exclude each other")
    config = configuration(npu, settings)
    policy = one_policy("run", buffers)
    if engine not in ENGINES:
        fail(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    source = workload.path if isinstance(workload, ModelFile) else None
    results_path = out / "results.json" if out is not None else None
    check_apart([source, image, arrays, labels], [draw, csv, save, results_path])
    folder = output_folder(out)
    for path in (save, csv):
        if path is not None:
            writable(path)
    asked = Asked.read(image, draw, labels)
    with Work() as work:
        model = workload.load()
        asked.check(model)
        if arrays is not None:
            inputs = model_inputs.of_file(model, arrays)
        else:
            inputs = asked.inputs(model)
        compiled = compile_model(model, config, policy, fused=check != "all", keep_tensors=check is not None)
        check_memory(compiled, config)
        prepare(engine, config, work)
        expected, golden = run_golden(model, inputs) if check else (None, None)
        compared = None
        if expected is not None and model.reference is not None:
            compared = compare_with_runtime(model.reference, inputs, expected)
        done = run_model(
            compiled,
            config,
            inputs,
            title=workload.title,
            engine=engine,
            frames=frames,
            golden=golden,
            progress=work.track(workload.title, compiled.planned_cycles * frames),
        )
    content = results.as_dict([done.measurement], config, host=[done.host])
    answer = asked.answer(model, done.outputs)
    unwritten = []
    for path, write in (
        (folder and folder / "results.json", lambda path: results.write_json(path, content)),
        (csv, lambda path: write_csv(path, done.measurement)),
        (save, lambda path: model_inputs.save(path, done.outputs)),
        (draw, lambda path: answer and answer.draw(path)),
    ):
        try:
            if path is not None:
                write(path)
        except (OSError, PictureError) as error:
            unwritten.append(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
    # What was measured is shown, whatever could not be written.
    if as_json:
        print(json.dumps(content, indent=1))
    else:
        _show(done, answer)
    passed = _passed(done, compared, quiet=as_json)
    if unwritten:
        fail("; ".join(unwritten))
    if not passed:
        sys.exit(1)


def _show(done: ModelRun, answer: Answer | None) -> None:
    measurement = done.measurement
    console.print(layer_table(measurement))
    console.print(report.comparison([measurement]))
    console.print(report.causes([measurement]))
    if done.host:
        console.print(report.host_work(done.host, measurement))
    console.print(
        f"{measurement.simulated_cycles:,} cycles simulated in {measurement.seconds:.1f} s: "
        f"{measurement.cycles_per_second:,.0f} cycles a second"
    )
    if answer is not None:
        console.print(answer.table())


def _passed(done: ModelRun, compared: Comparison | None, *, quiet: bool) -> bool:
    """Say how the checks ended; whether none failed."""
    failures = []
    checked = done.checked
    if checked is not None and checked.difference is not None:
        failures.append(str(checked.difference))
    if compared is not None and not compared.passed:
        failures.append(str(compared))
    for failure in failures:
        errors.print(f"rondo: check failed: {failure}", markup=False, highlight=False, soft_wrap=True)
    if checked is not None and not failures and not quiet:
        console.print(f"check passed: {checked.tensors} tensors, {checked.bytes:,} values equal to the golden model")
        if compared is not None:
            console.print(f"check passed: {compared}")
        else:
            # Scales of networks that Rondo builds are its own work; those of files are as they are.
            console.print(
                f"in every tensor at most {checked.spread.most_saturated:.2%} of the values saturate and at least "
                f"{checked.spread.fewest_values} different values occur"
            )
    return not failures
