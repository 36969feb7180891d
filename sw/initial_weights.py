"""Reproducible weights for a network that nobody trained.

Rondo measures time, memory and equality of bytes, for which the values need only look like those of a trained network:
no channel dead, no tensor saturated.  So each convolution gets random weights, and a batch normalisation whose
statistics are those of real photographs and whose learnt part is random; it is folded at once.
"""

from collections.abc import Sequence

import numpy as np

from sw.float_graph import (
    FloatAddition,
    FloatArray,
    FloatConvolution,
    FloatGraph,
    FloatWeights,
    activate,
    apply,
    convolve,
)

_ROUGHNESS = np.float32(0.5)
"""Deviation of the taps of a kernel around their common part, whose own deviation is 1."""

_PRIOR = 128
"""Pixels that the prior variance of a channel counts for."""

_EPSILON = 1e-3
"""Added to a variance, as YOLOv5's batch normalisation does it."""


def initial_weights(graph: FloatGraph, images: Sequence[FloatArray], seed: int) -> dict[str, FloatWeights]:
    """Draw the weights of every convolution.

    Parameters
    ----------
    graph
        A network with one input.
    images
        Photographs ``[h, w, channels]`` in 0..1, of the graph's input shape; their statistics are folded in.
    seed
        The same graph, images and seed give the same weights.
    """
    (source,) = graph.inputs
    last_uses = graph.last_uses()
    values: dict[str, list[FloatArray]] = {source: list(images)}
    weights: dict[str, FloatWeights] = {}
    branches = {op.inputs[1] for op in graph.operators if isinstance(op, FloatAddition)}
    for index, op in enumerate(graph.operators):
        if isinstance(op, FloatConvolution):
            rng = np.random.default_rng([seed, index])
            drawn = _draw(rng, op, graph.input_channels(op))
            linear = [convolve(x, drawn, op.stride, op.padding) for x in values[op.inputs[0]]]
            gain, offset = _normalise(rng, op, linear, 0.5 if op.name in branches else 1.0)
            weights[op.name] = FloatWeights(drawn.weights * gain[:, None, None, None], offset)
            values[op.name] = [activate(op.activation, x * gain + offset) for x in linear]
        else:
            values[op.name] = [apply(op, [values[name][i] for name in op.inputs]) for i in range(len(images))]
        for name in set(op.inputs):
            if last_uses[name] == index:
                del values[name]
    return weights


def _draw(rng: np.random.Generator, op: FloatConvolution, cin: int) -> FloatWeights:
    cout = op.shape[2]
    drawn = rng.standard_normal((cout, op.kernel, op.kernel, cin), np.float32)
    if op.kernel > 1:
        # White noise answers mostly to edges, and the few sharp places of an image then dwarf all others, more with
        # every layer.  A part that is the same at every tap makes the filters smooth, as trained ones mostly are.
        drawn = drawn * _ROUGHNESS + rng.standard_normal((cout, 1, 1, cin), np.float32)
    fan_in = op.kernel * op.kernel * cin
    return FloatWeights(drawn / np.float32(np.sqrt(fan_in)), np.zeros(cout, np.float32))


def _normalise(
    rng: np.random.Generator, op: FloatConvolution, linear: list[FloatArray], strength: float
) -> tuple[FloatArray, FloatArray]:
    """Return the gain and offset that give each channel the mean and deviation of a plausible trained layer.

    `strength` scales both; a residual branch is weaker than what it is added to, so that sums do not grow with depth.
    """
    cout = op.shape[2]
    pixels = np.concatenate([x.reshape(-1, cout) for x in linear])
    mean = pixels.mean(axis=0, dtype=np.float64)
    # The variance of a few pixels says little; what a channel may become lies nearer to the layer's mean square.
    prior = float(np.mean(np.square(pixels, dtype=np.float64)))
    variance = (len(pixels) * pixels.var(axis=0, dtype=np.float64) + _PRIOR * prior) / (len(pixels) + _PRIOR)
    deviation = np.sqrt(variance + _EPSILON)
    if op.activation == "sigmoid":  # a detection head: mostly "nothing here"
        gamma, beta = rng.uniform(0.6, 1.0, cout), rng.normal(-1.5, 0.3, cout)
    else:
        gamma, beta = rng.uniform(0.7, 1.5, cout), rng.normal(0.0, 0.4, cout)
    gamma, beta = gamma * strength, beta * strength
    gain = gamma / deviation
    return gain.astype(np.float32), (beta - mean * gain).astype(np.float32)
