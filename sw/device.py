"""How the driver reaches an NPU: the same few calls for a simulation and for a chip behind a memory map."""

import typing

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview | np.ndarray


@typing.runtime_checkable
class Device(typing.Protocol):
    """An NPU and its memory. This is all that an FPGA port has to provide.

    Addresses are bytes. Register offsets are multiples of 4, values 32 bits. Memory addresses count from the start
    of the NPU's DRAM; ``ValueError`` for a range outside it. Writes are visible to the NPU once the call returns.
    """

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        ...

    def read_register(self, offset: int) -> int: ...

    def write_register(self, offset: int, value: int) -> None: ...

    def read_memory(self, address: int, length: int) -> bytes: ...

    def write_memory(self, address: int, data: Bytes) -> None:
        """Write bytes; an array is written as its bytes in C order."""
        ...

    def wait_for_interrupt(self, timeout_cycles: int) -> bool:
        """Wait while the (level) interrupt is low, at most so many NPU cycles; True if it is high on return."""
        ...

    def close(self) -> None:
        """Release what the device holds; calling it again does nothing."""
        ...


class Retirement(typing.NamedTuple):
    """A command committed: ``cycle`` counts from reset, ``engine`` is ``hw.spec.commands.Engine``."""

    cycle: int
    engine: int
    job_index: int
    index: int


Activity = NDArray[np.uint64]
"""Cycles as ``[engine, command + 1, hw.spec.causes.Cause]``: what each engine's cycles went into while that command was
its oldest one not committed. Command -1 stands for cycles in which the engine was in no job; commands of several jobs
count together. As long as the last command seen of any engine."""


@typing.runtime_checkable
class SimulatedDevice(Device, typing.Protocol):
    """A device whose time stands still between calls, so that a run is repeatable to the cycle.

    Register accesses take cycles (a fixed schedule, see ``sim.engines``), memory accesses take none.
    ``wait_for_interrupt`` stops in the first cycle in which the interrupt is high.
    """

    progress: typing.Callable[[int], None] | None
    """Called now and then in long runs with the current cycle."""

    @property
    def cycle(self) -> int:
        """Clock edges since reset."""
        ...

    def step(self, cycles: int) -> None:
        """Let time pass."""
        ...

    def retirements(self) -> list[Retirement]:
        """Commands committed since the last call, by cycle, then engine."""
        ...

    def activity(self) -> Activity | None:
        """What happened in each cycle since the last call; None if there was none, or the device has no probes."""
        ...

    def counters(self) -> dict[str, int]:
        """What the memory counted: ``row_hits``, ``row_misses``, ``refreshes``, ``bytes_read``, ``bytes_written``."""
        ...

    def __enter__(self) -> typing.Self: ...

    def __exit__(self, *exception: typing.Any) -> None: ...
