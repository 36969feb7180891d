"""``rondo compile``: a network to a program image."""

import pathlib

import click

from hw.spec.commands import Engine
from sim.cli.common import configuration, console, fail, guarded, model_options, output_folder, policies
from sim.workload import find_workload
from sw.check import check_program
from sw.compiler import compile_graph


@click.command("compile")
@model_options("640x640")
@click.option("--buffers", default="pingpong", show_default=True, metavar="POLICY", help="Buffer policy.")
@click.option(
    "--out",
    type=click.Path(path_type=pathlib.Path),
    default=pathlib.Path("results"),
    show_default=True,
    metavar="DIR",
    help="Folder for the image.",
)
@guarded
def compile_command(model: str, size: str, npu: str, settings: dict[str, str], buffers: str, out: pathlib.Path) -> None:
    """Compile a network to a program image, MODEL.rondo."""
    config = configuration(npu, settings)
    chosen = policies(buffers)
    if len(chosen) != 1:
        fail("rondo compile takes one buffer policy")
    workload = find_workload(model, size)
    folder = output_folder(out)
    assert folder is not None
    program = compile_graph(workload.build(), config, chosen[0]).program
    check_program(program, config)
    path = folder / f"{workload.name}-{workload.height}x{workload.width}-{config.name}-{chosen[0].name}.rondo"
    program.save(path)
    counts = ", ".join(f"{program.commands(engine):,} {engine.name.lower()}" for engine in Engine)
    console.print(f"{path}: {counts} commands, {len(program.constants):,} bytes of constants", soft_wrap=True)
