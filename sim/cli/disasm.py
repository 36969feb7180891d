"""``rondo disasm``: a program image as text."""

import pathlib
import sys

import click

from hw.spec.commands import Engine
from sim.cli.common import guarded
from sw.assembler import disassemble
from sw.decode import decode
from sw.program import Program


@click.command()
@click.argument("image", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--stream", type=click.Choice([engine.name.lower() for engine in Engine]), help="Only this engine's commands."
)
@guarded
def disasm(image: pathlib.Path, stream: str | None) -> None:
    """Show a program image, one command a line."""
    program = Program.load(image)
    write = sys.stdout.write
    write(f"# {program.name}, buffers {program.policy}, configuration {program.config_hash:08x}\n")
    for engine in Engine:
        if stream not in (None, engine.name.lower()):
            continue
        write(f"# {engine.name.lower()}: {program.commands(engine)} commands\n")
        layer = -1
        for index in range(program.commands(engine)):
            command = decode(program.command(engine, index))
            if command.layer != layer and command.layer < len(program.layers):
                layer = command.layer
                write(f"# layer {layer}: {program.layers[layer].name}\n")
            write(f"{disassemble(command)}\n")
