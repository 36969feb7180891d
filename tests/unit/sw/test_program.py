"""Program images and their text form."""

import json
import os
import random
import zipfile

import numpy as np
import pytest

from hw.spec.commands import Engine
from hw.spec.config import load_config
from sim.testing.random_graphs import random_graph
from sw.assembler import AssemblyError, assemble, assemble_lines, disassemble
from sw.compiler import compile_graph
from sw.decode import decode
from sw.policy import policy
from sw.program import Program, ProgramError


@pytest.fixture(scope="module")
def program():
    graph = random_graph(np.random.default_rng(3), "c3")
    return compile_graph(graph, load_config("tiny"), policy("pingpong")).program


def test_every_command_survives_its_text_form(program):
    for engine in Engine:
        lines = [disassemble(decode(program.command(engine, i))) for i in range(program.commands(engine))]
        bits = [program.command(engine, i) for i in range(program.commands(engine))]
        assert assemble_lines(["# a comment", "", *lines]) == bits


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("JUMP", "no such command: 'JUMP'"),
        ("LOAD 7:r1.p", "there is no operand 7"),
        ("LOAD 0:r1.q", "is neither an operand nor key=value"),
        ("LOAD runs=3", "unknown field runs"),
        ("LOAD 0:r1.p need=99999", "does not fit 14 bits"),
        ("LOAD run_bytes=x", "is neither an operand nor key=value"),
    ],
)
def test_bad_text_is_refused_in_one_line(line, message):
    with pytest.raises(AssemblyError, match=message) as caught:
        assemble(line)
    assert "\n" not in str(caught.value)


def test_an_image_survives_the_file(program, tmp_path):
    path = tmp_path / "x.rondo"
    program.save(path)
    again = Program.load(path)
    assert vars(again) == vars(program)
    assert [p.name for p in tmp_path.iterdir()] == ["x.rondo"]


def test_other_files_are_refused(program, tmp_path):
    path = tmp_path / "x.rondo"
    with pytest.raises(ProgramError, match="cannot read"):
        Program.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ProgramError, match="is not a valid Rondo program"):
        Program.load(path)
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for change, message in (({"version": 99}, "has program version 99"), ({"format": "x"}, "is not a Rondo program")):
        manifest = json.loads(parts["manifest.json"]) | change
        with zipfile.ZipFile(path, "w") as archive:
            for name, raw in parts.items():
                archive.writestr(name, json.dumps(manifest) if name == "manifest.json" else raw)
        with pytest.raises(ProgramError, match=message):
            Program.load(path)


def test_a_damaged_image_is_refused_or_read_but_never_a_traceback(program, tmp_path):
    seed = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    rng = random.Random(seed)
    path = tmp_path / "x.rondo"
    program.save(path)
    good = path.read_bytes()
    refused = []
    for trial in range(300):
        raw = bytearray(good)
        if trial % 3 == 0:
            raw = raw[: rng.randrange(len(raw))]
        else:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        try:
            Program.load(path)
        except ProgramError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert not [message for message in refused if "\n" in message]


def test_a_save_that_fails_leaves_nothing(program, tmp_path):
    with pytest.raises(ProgramError, match="cannot write"):
        program.save(tmp_path / "none" / "x.rondo")
    (tmp_path / "x.rondo").mkdir()
    with pytest.raises(ProgramError, match="cannot write"):
        program.save(tmp_path / "x.rondo")
    assert [path.name for path in tmp_path.iterdir()] == ["x.rondo"]
