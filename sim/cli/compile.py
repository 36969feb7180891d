"""``rondo compile``: a network to a program image."""

import pathlib

import click

from hw.spec.commands import Engine
from sim.cli.common import configuration, console, model_options, one_policy, output_folder
from sim.pipeline import compile_model
from sim.workload import Workload


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
def compile_command(workload: Workload, npu: str, settings: dict[str, str], buffers: str, out: pathlib.Path) -> None:
    """Compile a network to program images, one for each of its parts that run on the NPU."""
    config = configuration(npu, settings)
    policy = one_policy("compile", buffers)
    folder = output_folder(out)
    assert folder is not None
    compiled = compile_model(workload.load(), config, policy)
    count = len(compiled.programs)
    for number, program in enumerate((compiled.program for compiled in compiled.programs), 1):
        part = f"-{number}of{count}" if count > 1 else ""
        path = folder / f"{workload.name}-{config.name}-{policy.name}{part}.rondo"
        program.save(path)
        commands = ", ".join(f"{program.commands(engine):,} {engine.name.lower()}" for engine in Engine)
        console.print(f"{path}: {commands} commands, {len(program.constants):,} bytes of constants", soft_wrap=True)
    for operators in compiled.model.host_operators:
        console.print(f"left to the host: {', '.join(operators)}", soft_wrap=True)
