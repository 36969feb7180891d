"""Wrap of a ring offset: compare and subtract, never a divider."""

from amaranth.hdl import Mux, Value


def wrap(offset: Value, ring_bytes: Value) -> Value:
    """``offset`` modulo ``ring_bytes``, for ``offset < 2 * ring_bytes``; combinational.

    A ring of no bytes (a semaphore) gives offset 0 back for offset 0.
    """
    wrapped = (offset - ring_bytes)[: len(ring_bytes)]
    return Mux(offset >= ring_bytes, wrapped, offset[: len(ring_bytes)])
