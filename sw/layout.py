"""How tensors lie in DRAM: rows, channel blocks of N, pixels, lines of N bytes; network inputs with fewer than N
channels packed."""

import dataclasses

import numpy as np
from numpy.typing import NDArray


def blocks(channels: int, n: int) -> int:
    """Channel blocks of ``n`` that hold ``channels`` channels."""
    return -(-channels // n)


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """Place of one tensor's elements, from its first byte on."""

    height: int
    width: int
    channels: int
    n: int
    packed: bool = False

    @property
    def blocks(self) -> int:
        return 1 if self.packed else blocks(self.channels, self.n)

    @property
    def row_bytes(self) -> int:
        return self.width * (self.channels if self.packed else self.blocks * self.n)

    @property
    def block_bytes(self) -> int:
        """Bytes of one channel block of one row."""
        return self.width * self.n

    @property
    def size(self) -> int:
        return self.height * self.row_bytes

    def pack(self, values: NDArray[np.int8]) -> bytes:
        """Bytes of a tensor given as int8 ``[height, width, channels]``; unused channels are zero."""
        if values.shape != (self.height, self.width, self.channels):
            raise ValueError(f"a tensor of {(self.height, self.width, self.channels)} was expected, not {values.shape}")
        if self.packed:
            return np.ascontiguousarray(values, np.int8).tobytes()
        full = np.zeros((self.height, self.width, self.blocks * self.n), np.int8)
        full[:, :, : self.channels] = values
        return full.reshape(self.height, self.width, self.blocks, self.n).transpose(0, 2, 1, 3).tobytes()

    def unpack(self, raw: bytes | NDArray[np.uint8]) -> NDArray[np.int8]:
        """The inverse of ``pack``."""
        values = np.frombuffer(raw, np.int8) if isinstance(raw, bytes) else np.asarray(raw, np.uint8).view(np.int8)
        if self.packed:
            return values.reshape(self.height, self.width, self.channels)
        lines = values.reshape(self.height, self.blocks, self.width, self.n).transpose(0, 2, 1, 3)
        return lines.reshape(self.height, self.width, self.blocks * self.n)[:, :, : self.channels]
