"""Placement by lifetime: nothing overlaps, the bound is honest."""

import os
import random

from sw.arena import Buffer, live_sum, place, place_apart


def _overlaps(a, b, offsets, alignment):
    def size(x):
        return -(-x.size // alignment) * alignment

    in_time = a.lower < b.upper and b.lower < a.upper
    return in_time and offsets[a.id] < offsets[b.id] + size(b) and offsets[b.id] < offsets[a.id] + size(a)


def test_random_buffers_never_overlap_and_peak_is_between_bounds():
    seed = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(60):
        alignment = rng.choice((1, 16, 64))
        buffers = []
        for index in range(rng.randrange(1, 30)):
            lower = rng.randrange(30)
            buffers.append(Buffer(f"b{index}", lower, lower + rng.randrange(1, 12), rng.randrange(1, 5000)))
        placement = place(buffers, alignment)
        assert set(placement.offsets) == {b.id for b in buffers}
        assert not any(
            _overlaps(a, b, placement.offsets, alignment) for i, a in enumerate(buffers) for b in buffers[:i]
        )
        assert all(offset % alignment == 0 for offset in placement.offsets.values())
        assert live_sum(buffers) <= placement.lower_bound <= placement.peak
        assert placement.peak <= sum(-(-b.size // alignment) * alignment for b in buffers)


def test_lifetimes_that_only_touch_share_bytes():
    placement = place([Buffer("a", 0, 2, 100), Buffer("b", 2, 4, 100)], 1)
    assert placement.offsets == {"a": 0, "b": 0}
    assert placement.peak == placement.lower_bound == 100


def test_apart_places_nothing_over_another():
    placement = place_apart([Buffer("a", 0, 1, 100), Buffer("b", 5, 6, 10)], 64)
    assert placement.offsets == {"a": 0, "b": 128}
