"""The bytes behind the DRAM model: a port that gateware shows, and an array that engines serve it from."""

import numpy as np
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.spec.config import NpuConfig
from sw.device import Bytes


def word_bits(config: NpuConfig) -> int:
    """Width of the index of a bus word."""
    return config.address_bits - (config.bus_bytes - 1).bit_length()


class MemoryPortSignature(wiring.Signature):
    """A synchronous memory of bus words, seen by the one that asks; one read and one write a cycle.

    ``read_data`` changes in the cycle after ``read_enable`` and then holds. A read in the cycle of a write gives the
    old data. Only words inside ``dram.bytes`` are asked for.
    """

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "read_enable": Out(1),
                "read_address": Out(word_bits(config)),
                "read_data": In(config.dma.bus_bits),
                "write_enable": Out(1),
                "write_address": Out(word_bits(config)),
                "write_data": Out(config.dma.bus_bits),
                "write_strobe": Out(config.bus_bytes),
            }
        )


class MemoryArray:
    """``size`` bytes, zero at first; pages never touched cost nothing."""

    def __init__(self, size: int):
        self.array = np.zeros(size, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.array)

    def _check(self, address: int, length: int) -> None:
        if address < 0 or length < 0 or address + length > len(self.array):
            raise ValueError(
                f"memory range of {length} bytes at {address:#x} is not inside the {len(self.array)} bytes there are"
            )

    def read(self, address: int, length: int) -> bytes:
        self._check(address, length)
        return self.array[address : address + length].tobytes()

    def write(self, address: int, data: Bytes) -> None:
        if isinstance(data, np.ndarray):
            values = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            values = np.frombuffer(data, dtype=np.uint8)
        self._check(address, len(values))
        self.array[address : address + len(values)] = values

    def write_strobed(self, address: int, data: int, strobe: int, width: int) -> None:
        """Write the bytes of a ``width``-byte word whose strobe bits are set."""
        if strobe == (1 << width) - 1:
            self.array[address : address + width] = np.frombuffer(data.to_bytes(width, "little"), dtype=np.uint8)
            return
        for lane in range(width):
            if strobe >> lane & 1:
                self.array[address + lane] = data >> (8 * lane) & 0xFF
