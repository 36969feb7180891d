from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.testing import fuzz
from sim.testing.file_property import Outcome
from sim.testing.hostile import mutations, truncations


@pytest.fixture(scope="module")
def source() -> fuzz.Source:
    return fuzz.Source(5)


def test_files_are_functions_of_seed_and_number(source: fuzz.Source) -> None:
    again = fuzz.Source(5)
    files = [source.file(number) for number in range(24)]
    assert [again.file(number) for number in range(24)] == files
    assert len({data for _, data in files}) > 12


def test_every_listed_file_has_its_turn(source: fuzz.Source) -> None:
    names = [name for name, _ in mutations()]
    wanted = len(names) + 64 * (1 + len(fuzz.ZOO))
    found = dict(source.file(3 * i) for i in range(wanted))
    assert len(found) == wanted
    assert set(names) < set(found)
    sound = source._network("resnet8")
    parts = [found[f"resnet8, {change}"] for change, _ in truncations(sound)]
    assert sorted(len(part) for part in parts) == [len(sound) * i // 64 for i in range(64)]
    assert all(sound.startswith(part) for part in parts)


def test_a_fault_is_saved_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome("refused", "a.tflite: no"), Outcome("equal", ""), Outcome("fault", "wrong")]
    monkeypatch.setattr(fuzz, "check", lambda data, seed, **_: outcomes[min(seed, 2)])
    result = CliRunner().invoke(fuzz.main, ["--seed", "5", "--most", "3", "--corpus", str(tmp_path)])
    assert result.exit_code == 1
    assert "seed 5" in result.output
    assert "3 files: 1 refused, 1 accepted (1 compared and equal, 0 not compared), 1 faults" in result.output
    (saved,) = tmp_path.glob("*.tflite")
    name, data = fuzz.Source(5).file(2)
    assert saved.read_bytes() == data
    assert saved.with_suffix(".txt").read_text() == f"{name}\nwrong\n"
    assert f"{saved}: file 2, {name}: wrong" in result.output.replace("\n", "")


def test_no_fault_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "check", lambda *_, **__: Outcome("equal", ""))
    corpus = tmp_path / "corpus"
    result = CliRunner().invoke(fuzz.main, ["--seed", "5", "--most", "2", "--corpus", str(corpus)])
    assert (result.exit_code, corpus.exists()) == (0, False)


def test_no_file_is_begun_after_the_end(tmp_path: Path) -> None:
    tally = fuzz.fuzz(5, 0.0, tmp_path, print)
    assert tally.kinds.total() == 0


def test_messages_that_differ_in_particulars_have_one_reason() -> None:
    tally = fuzz.Tally()
    for name, number in (("a'b", 1.5e-7), ("x", -3)):
        tally.add(Outcome("refused", f"./model.tflite: CONV_2D #{number} of {name!r}: shape (1, {number}) is wrong"))
    assert tally.lines()[0] == "     2 refused: CONV_2D #N of X: shape N is wrong"
    assert len(fuzz.reason("word " * 100)) == 110
