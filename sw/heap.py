"""The driver's heap in the NPU's memory."""

from collections.abc import Iterable

ALIGNMENT = 4096


class HeapError(MemoryError):
    """The memory is full; the message is one line."""


class Heap:
    """First-fit allocation of page-aligned ranges in ``[first, last)``."""

    def __init__(self, first: int, last: int) -> None:
        self._free: list[tuple[int, int]] = [(first, last)]
        self._used: dict[int, int] = {}
        self.allocations = 0
        """Calls to ``allocate`` so far."""
        self.peak_bytes = 0

    @property
    def used_bytes(self) -> int:
        return sum(self._used.values())

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes, rounded up to whole pages. Raises ``HeapError`` when there is no room."""
        size = max(-(-size // ALIGNMENT), 1) * ALIGNMENT
        for index, (first, last) in enumerate(self._free):
            if last - first >= size:
                self._free[index] = (first + size, last)
                if first + size == last:
                    del self._free[index]
                self._used[first] = size
                self.allocations += 1
                self.peak_bytes = max(self.peak_bytes, self.used_bytes)
                return first
        raise HeapError(f"no room for {size} bytes in the NPU's memory")

    def allocate_all(self, sizes: Iterable[int]) -> list[int]:
        """An address for each of ``sizes``; when one has no room, ``HeapError`` and the heap is as before."""
        allocations, peak = self.allocations, self.peak_bytes
        addresses: list[int] = []
        try:
            for size in sizes:
                addresses.append(self.allocate(size))
        except HeapError:
            for address in addresses:
                self.release(address)
            self.allocations, self.peak_bytes = allocations, peak
            raise
        return addresses

    def release(self, address: int) -> None:
        """Give a range back. Raises ``ValueError`` for an address that was not allocated."""
        if address not in self._used:
            raise ValueError(f"address {address:#x} is not allocated")
        self._free.append((address, address + self._used.pop(address)))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for first, last in self._free:
            if merged and merged[-1][1] == first:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self._free = merged
