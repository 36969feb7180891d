"""Tiles cover the output once, fit the scratchpad, and shrink before a plan is refused."""

import dataclasses

import pytest

from hw.spec.config import load_config
from sw.compiler import compile_graph
from sw.emit import StoreOrder
from sw.lower import lower
from sw.policy import POLICIES, policy
from sw.tiling import PlanError, Rows, Tiler, input_rows
from sw.workloads import quantised_yolov5

CONFIGS = [load_config(name) for name in ("tiny", "ecp5", "edge")]


@pytest.fixture(scope="module")
def graph():
    return quantised_yolov5("n", 96, 64)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("name", POLICIES)
def test_groups_cover_every_output_pixel_once_and_fit(graph, config, name):
    lowered = lower(graph, config.array.n)
    tiler = Tiler(config, policy(name), lowered.shapes)
    for step in lowered.steps:
        plan = tiler.plan(step)
        seen = set()
        for tile in plan.tiles:
            for group in plan.groups(tile):
                assert group.pixels <= config.accumulator_half
                pixels = {
                    (y, x)
                    for y in range(group.rows.first, group.rows.last)
                    for x in range(group.columns.first, group.columns.last)
                }
                assert not seen & pixels
                seen |= pixels
        assert len(seen) == plan.output.height * plan.output.width
        limit = config.scratchpad.bytes // (1 if plan.whole_scratchpad else policy(name).sets)
        assert plan.scratchpad_bytes <= limit


def test_input_rows_hold_what_the_window_reads(graph):
    step = next(step for step in lower(graph, 32).steps if step.kernel == (3, 3) and step.stride == (2, 2))
    source = step.sources[0]
    assert input_rows(step, source, 48, Rows(0, 4)) == Rows(0, 8)
    assert input_rows(step, source, 48, Rows(4, 8)) == Rows(7, 16)
    upsampled = dataclasses.replace(source, upsample=True)
    assert input_rows(step, upsampled, 24, Rows(4, 8)) == Rows(3, 8)


def test_a_step_too_large_for_its_share_takes_the_whole_scratchpad_alone():
    graph = quantised_yolov5("s", 64, 64)
    config = load_config("edge", {"scratchpad.bytes": 131072})
    compiled = compile_graph(graph, config, policy("pingpong"))
    assert any(plan.whole_scratchpad for plan in compiled.plans)
    assert not all(plan.whole_scratchpad for plan in compiled.plans)


def test_what_fits_nowhere_is_refused_with_its_size(graph):
    config = load_config("edge", {"scratchpad.bytes": 16384, "scratchpad.banks": 2})
    with pytest.raises(PlanError, match=r"does not fit the scratchpad: it needs at least \d+ bytes; there are 16384"):
        compile_graph(graph, config, policy("pingpong"))


def test_a_command_that_would_be_too_long_is_refused(graph):
    config = load_config("edge", {"command_cycles_max": 1024})
    with pytest.raises(PlanError, match="command_cycles_max allows 1024"):
        compile_graph(graph, config, policy("pingpong"))


def test_the_semaphore_never_counts_beyond_its_range():
    order = StoreOrder(12)
    for _ in range(16000):
        order.publish("t", Rows(0, 1))
    assert order.make_room(383) is None
    settle = order.make_room(384)
    assert settle is not None
    assert settle.need == settle.advance == 16000
    assert order.make_room(16383) is None
    with pytest.raises(ValueError, match="16384 ordered stores in one step"):
        order.make_room(16384)
