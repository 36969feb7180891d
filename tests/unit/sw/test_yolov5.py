"""The structure of YOLOv5 against the published one."""

import csv
from dataclasses import asdict
from pathlib import Path

import pytest

from sw.float_graph import operator_table
from sw.yolov5 import VARIANTS, yolov5

WORKLOADS = Path(__file__).parents[2] / "data" / "workloads"


@pytest.mark.parametrize(("file", "height"), [("yolov5s_640.csv", 640), ("yolov5s_384x640.csv", 384)])
def test_operator_table_is_the_published_one(file: str, height: int) -> None:
    rows = [{key: str(value) for key, value in asdict(row).items()} for row in operator_table(yolov5("s", height, 640))]
    with (WORKLOADS / file).open(newline="") as stream:
        expected = list(csv.DictReader(stream))
    assert len(expected) == 85
    assert rows == expected


def test_totals_of_yolov5s() -> None:
    rows = operator_table(yolov5("s"))
    assert sum(row.params for row in rows) == 7_235_389
    assert sum(row.macs for row in rows) == 8_216_780_800
    kinds = [row.type for row in rows]
    counts = [kinds.count(kind) for kind in ("conv", "concat", "add", "maxpool", "upsample")]
    assert counts == [60, 13, 7, 3, 2]


@pytest.mark.parametrize(
    ("variant", "parameters"),
    # As the original's README gives them, in millions (its 46.5 is cut, not rounded).
    [("n", 1.9), ("s", 7.2), ("m", 21.2), ("l", 46.5), ("x", 86.7)],
)
def test_parameters_of_every_variant(variant: str, parameters: float) -> None:
    total = sum(row.params for row in operator_table(yolov5(variant)))
    assert total / 1e6 == pytest.approx(parameters, abs=0.07)


def test_variants_are_all_there() -> None:
    assert list(VARIANTS) == ["n", "s", "m", "l", "x"]


def test_outputs_at_another_size() -> None:
    graph = yolov5("n", 96, 160)
    assert [graph.shapes[name] for name in graph.outputs] == [(12, 20, 255), (6, 10, 255), (3, 5, 255)]


@pytest.mark.parametrize("size", [(0, 32), (640, 650), (-32, 32), (16, 32)])
def test_refuses_a_size(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"must be positive multiples of 32, not {size[0]}x{size[1]}"):
        yolov5("s", *size)


def test_refuses_a_variant() -> None:
    with pytest.raises(ValueError, match="must be one of n, s, m, l, x, not 'q'"):
        yolov5("q")
