"""What becomes a step, and what stays a view."""

import numpy as np
import pytest

from sw.lower import ConvolveStep, PoolStep, lower
from sw.workloads import quantised_yolov5


@pytest.fixture(scope="module")
def graph():
    return quantised_yolov5("n", 64, 64)


def test_fused_yolov5_has_one_step_a_convolution_and_pool(graph):
    lowered = lower(graph, 32)
    assert sum(isinstance(step, ConvolveStep) for step in lowered.steps) == 60
    assert sum(isinstance(step, PoolStep) for step in lowered.steps) == 3
    assert len(lowered.views) == 13 + 2
    assert sum(step.macs for step in lowered.steps) == graph.total_macs()
    assert {step.output for step in lowered.steps if isinstance(step, ConvolveStep) and step.residual} == {
        name for name in graph.tensors if name.endswith(".add")
    }


def test_unfused_stores_every_tensor_that_is_no_view(graph):
    lowered = lower(graph, 32, fused=False)
    assert set(lowered.stored) | set(lowered.views) | set(graph.inputs) == set(graph.tensors)


def test_steps_read_only_what_earlier_steps_stored(graph):
    for fused in (True, False):
        known = set(graph.inputs)
        for step in lower(graph, 4, fused=fused).steps:
            assert set(step.reads) <= known
            known.add(step.output)


def test_the_stem_reads_its_input_packed_only_when_it_has_fewer_channels_than_a_line(graph):
    first = lower(graph, 32).steps[0]
    assert isinstance(first, ConvolveStep)
    assert first.sources[0].packed
    zero = graph.tensors["images"].zero_point
    assert first.pad_value == zero
    weights = graph.operators[0].weights.astype(np.int64)
    assert np.array_equal(first.bias, graph.operators[0].bias - zero * weights.sum(axis=(1, 2, 3)))
