"""Feeds the reader of model files random networks, sound and broken: `python -m sim.testing.fuzz --seconds 300`.

Files on which `sim.testing.file_property` finds a fault are saved, with what was found beside them.
"""

import functools
import hashlib
import re
import secrets
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from sim.testing.file_property import Outcome, check
from sim.testing.hostile import flips, mutations, small_network, truncations
from sim.testing.hostile_files import built_files
from sim.testing.mutate import mutate
from sim.testing.random_files import random_file
from sim.testing.structure import restructure
from sim.testing.tflite_zoo import NETWORKS

ZOO = ("resnet8", "mobilenet_v2_grey", "keyword_spotter", "segmenter", "squeeze_and_excite")
"""Networks that are small enough to be read and run many times."""

_WRITE_ERRORS = (ValueError, TypeError, OverflowError, AttributeError, struct.error)

_TRUNCATIONS = 64
"""Lengths at which a file is cut off."""


class Source:
    """Files, sound or broken, by number; each is a function of the seed and its number.

    Every third number takes one of a list, in an order that the seed decides, until the list ends: each single change
    of `sim.testing.hostile`, and the truncations of each small network. All others are random.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._mutations, self._odd = _built()
        self._networks = {"small network": small_network(seed)}
        listed: list[tuple[str, int]] = [("mutation", i) for i in range(len(self._mutations))]
        listed += [(name, i) for name in ("small network", *ZOO) for i in range(_TRUNCATIONS)]
        self._listed = [listed[i] for i in np.random.default_rng(seed).permutation(len(listed))]

    def file(self, number: int) -> tuple[str, bytes]:
        """What was done, and the bytes."""
        if number % 3 == 0 and number // 3 < len(self._listed):
            kind, i = self._listed[number // 3]
            if kind == "mutation":
                return self._mutations[i]
            change, data = list(truncations(self._network(kind), _TRUNCATIONS))[i]
            return f"{kind}, {change}", data
        rng = np.random.default_rng([self.seed, number])
        name, data = self._base(rng)
        match int(rng.integers(12)):
            case 0 | 1 | 2:
                return name, data
            case 3 | 4:
                return next((f"{name}, {change}", broken) for change, broken in flips(data, rng, 1))
            case 5:
                length = int(rng.integers(len(data)))
                return f"{name}, {length} bytes", data[:length]
            case 6 | 7 | 8:
                return _written(name, data, lambda: mutate(data, rng))
        return _written(name, data, lambda: restructure(data, rng))

    def _network(self, name: str) -> bytes:
        if name not in self._networks:
            self._networks[name] = NETWORKS[name](self.seed)
        return self._networks[name]

    def _base(self, rng: np.random.Generator) -> tuple[str, bytes]:
        kind = rng.random()
        if kind < 0.1:
            name = str(rng.choice(ZOO))
            return name, self._network(name)
        if kind < 0.2:
            return "odd file", self._odd[int(rng.integers(len(self._odd)))]
        if kind < 0.4:
            return "small network", self._network("small network")
        seed = int(rng.integers(2**31))
        return f"random file {seed}", random_file(seed)


@functools.cache
def _built() -> tuple[tuple[tuple[str, bytes], ...], tuple[bytes, ...]]:
    """All single changes, and the odd files that are small: building them takes seconds."""
    return tuple(mutations()), tuple(data for _, data in built_files() if len(data) < 10_000)


def _written(name: str, data: bytes, change: Callable[[], bytes | tuple[str, bytes]]) -> tuple[str, bytes]:
    """The result of a random change that may have to be tried again; the file itself if none can be written."""
    for _ in range(100):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                result = change()
        except _WRITE_ERRORS:
            continue
        what, broken = result if isinstance(result, tuple) else ("mutated", result)
        return f"{name}, {what}", broken
    return name, data


@dataclass
class Tally:
    """What became of many files: how many had each kind of `Outcome`, and how many were refused for each reason."""

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one file."""
        self.kinds[outcome.kind] += 1
        if outcome.kind in ("refused", "unchecked"):
            self.reasons[f"{outcome.kind}: {reason(outcome.text)}"] += 1

    def lines(self) -> list[str]:
        """A report: reasons by frequency, then the totals."""
        equal, unchecked = self.kinds["equal"], self.kinds["unchecked"]
        return [
            *(f"{count:6} {text}" for text, count in self.reasons.most_common()),
            f"{self.kinds.total()} files: {self.kinds['refused']} refused, {equal + unchecked} accepted"
            f" ({equal} compared and equal, {unchecked} not compared), {self.kinds['fault']} faults",
        ]


def reason(text: str) -> str:
    """A message without what is particular to one file: its name, names of tensors, numbers."""
    text = re.sub(r"^\S*model\.(tflite|onnx):? ?", "", text)
    text = re.sub(r"(?<!\w)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", "X", text)
    text = re.sub(r"(?<!\w)[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)(?!\w)", "N", text)
    text = re.sub(r"[\[(][-+N,. ]*[\])]", "N", text)
    text = re.sub(r"\b[A-Z][A-Z0-9_]+ \(operator N(?:, output X)?\)", "OPERATOR", text)
    text = re.sub(r"(runtime refuses it): .*", r"\1", text)  # it has a message for every check that it makes
    return text if len(text) <= 110 else f"{text[:107]}..."


def fuzz(
    seed: int,
    seconds: float,
    corpus: Path,
    report: Callable[[str], None],
    *,
    first: int = 0,
    most: int | None = None,
    programs: bool = True,
) -> Tally:
    """Check files until the time is over or `most` have been.

    Parameters
    ----------
    seed, first
        Decide the files; `first` is the number of the first one.
    seconds
        Wall time after which no other file is begun.
    corpus
        Folder for files with faults; made if there is one to save.
    report
        Takes a line for every fault.
    programs
        Whether what is accepted is compiled too.
    """
    source = Source(seed)
    tally = Tally()
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end and (most is None or number < first + most):
        name, data = source.file(number)
        outcome = check(data, number, host_fallback=number % 4 != 0, programs=programs)
        tally.add(outcome)
        if outcome.kind == "fault":
            report(f"{_save(corpus, name, data, outcome)}: file {number}, {name}: {outcome.text}")
        number += 1
    return tally


def _save(corpus: Path, name: str, data: bytes, outcome: Outcome) -> Path:
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"{hashlib.sha256(data).hexdigest()[:12]}.tflite"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(f"{name}\n{outcome.text}\n")
    return path


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0), default=300.0, show_default=True, help="How long to go on.")
@click.option("--seed", type=click.IntRange(min=0), help="Decides the files; a new one by default.")
@click.option("--first", type=click.IntRange(min=0), default=0, help="Number of the first file.")
@click.option("--most", type=click.IntRange(min=1), help="End after so many files.")
@click.option("--programs/--no-programs", default=True, help="Whether to compile what is accepted.")
@click.option("--corpus", type=click.Path(path_type=Path, file_okay=False), default=Path("corpus"), show_default=True)
def main(seconds: float, seed: int | None, first: int, most: int | None, programs: bool, corpus: Path) -> None:
    """Look for model files that the reader handles wrongly. Ends with 1 if there is one."""
    seed = secrets.randbits(31) if seed is None else seed
    click.echo(f"seed {seed}")
    tally = fuzz(seed, seconds, corpus, click.echo, first=first, most=most, programs=programs)
    for line in tally.lines():
        click.echo(line)
    raise SystemExit(tally.kinds["fault"] > 0)


if __name__ == "__main__":
    main()
