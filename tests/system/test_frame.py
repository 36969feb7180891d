"""The whole YOLOv5s frame at 640x640 on the largest preset; minutes, so only with ``pytest -m slow``."""

import pytest

from hw.spec.config import load_config
from sim import golden
from sim.session import measure
from sim.verify import spread
from sim.workload import find_workload
from sw.check import check_program
from sw.compiler import compile_graph
from sw.images import photograph
from sw.policy import policy


@pytest.fixture(scope="module")
def frame():
    (graph,) = find_workload("yolov5s", "640x640").load().graphs
    inputs = {name: photograph("coffee", 640, 640) for name in graph.inputs}
    return graph, inputs, golden.run(graph, inputs)


@pytest.mark.slow
def test_every_tensor_uses_its_range(frame):
    found = spread(frame[2])
    assert found.most_saturated <= 0.01
    assert found.fewest_values >= 32


@pytest.mark.slow
@pytest.mark.parametrize(("buffers", "fused"), [("pool", True), ("pingpong", True), ("pingpong", False)])
def test_frame_on_edge(frame, buffers, fused):
    graph, inputs, expected = frame
    config = load_config("edge")
    compiled = compile_graph(graph, config, policy(buffers), fused=fused, keep_tensors=True)
    check_program(compiled.program, config)
    measurement, checked = measure(compiled, config, inputs, title="frame", engine="rtl", golden=expected)
    assert checked is not None
    assert checked.difference is None, str(checked.difference)
    if buffers == "pingpong" and fused:
        assert measurement.array_utilisation >= 0.75
