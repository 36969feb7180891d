"""The driver's heap."""

import pytest

from sw.heap import ALIGNMENT, Heap, HeapError


def test_allocations_are_aligned_apart_and_merge_again():
    heap = Heap(ALIGNMENT, 9 * ALIGNMENT)
    places = [heap.allocate(size) for size in (1, ALIGNMENT, ALIGNMENT + 1, 4 * ALIGNMENT)]
    assert places == [ALIGNMENT * i for i in (1, 2, 3, 5)]
    with pytest.raises(HeapError, match="no room for 4096 bytes"):
        heap.allocate(1)
    for place in places:
        heap.release(place)
    assert heap.allocate(8 * ALIGNMENT) == ALIGNMENT
    assert (heap.allocations, heap.peak_bytes) == (5, 8 * ALIGNMENT)


def test_a_second_release_is_refused():
    heap = Heap(0, 10 * ALIGNMENT)
    place = heap.allocate(10)
    heap.release(place)
    with pytest.raises(ValueError, match="is not allocated"):
        heap.release(place)
