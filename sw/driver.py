"""The driver: loads programs, submits jobs, waits for completions. The same for a simulation and for a chip."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import COMPLETION, COMPLETION_BYTES, JOB_BYTES, Engine, Fault, unpack
from hw.spec.config import NpuConfig
from hw.spec.register_map import REGISTERS
from sw.device import Device
from sw.heap import Heap
from sw.layout import TensorLayout
from sw.program import BASE_ARENA, BASE_CONSTANTS, BASE_INPUT, BASE_OUTPUT, Program

JOB_RING_LOG2 = 4
COMPLETION_RING_LOG2 = 4


class DriverError(RuntimeError):
    """The device is not what was expected, or was used wrongly; the message is one line."""


class JobError(RuntimeError):
    """A job failed in the NPU."""

    def __init__(self, completion: "Completion") -> None:
        self.completion = completion
        super().__init__(
            f"job {completion.job} failed: {completion.fault.name.lower()} fault at "
            f"{completion.engine.name.lower()} command {completion.command}"
        )


@dataclasses.dataclass(frozen=True)
class Completion:
    """What the NPU reported of one job; times are cycles since reset."""

    job: int
    fault: Fault
    engine: Engine
    command: int
    started: int
    finished: int

    @property
    def cycles(self) -> int:
        return self.finished - self.started


@dataclasses.dataclass(frozen=True)
class BufferGroup:
    """The buffers of one frame: addresses in the NPU's memory."""

    arena: int
    input: int
    output: int


@dataclasses.dataclass(frozen=True)
class Counters:
    """One consistent reading of the hardware's counters."""

    values: dict[str, int]

    def cause(self, engine: Engine, cause: Cause) -> int:
        """Cycles of ``engine`` with that cause."""
        return self.values[f"{engine.name}_{cause.name}"]

    def causes(self, engine: Engine) -> dict[str, int]:
        return {cause.name.lower(): self.cause(engine, cause) for cause in Cause}

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters({name: value - other.values[name] for name, value in self.values.items()})

    @property
    def read_bytes(self) -> int:
        return sum(value for name, value in self.values.items() if name.startswith("READ_BYTES_"))

    @property
    def write_bytes(self) -> int:
        return sum(value for name, value in self.values.items() if name.startswith("WRITE_BYTES_"))


class Driver:
    """One NPU with one program.

    Raises
    ------
    DriverError
        If the device is no Rondo, or was built from another configuration than ``config``.
    """

    def __init__(self, device: Device, config: NpuConfig) -> None:
        self.device = device
        self.config = config
        identity = self.read("IDENTITY")
        expected = REGISTERS["IDENTITY"].fields["VALUE"].reset
        if identity != expected:
            raise DriverError(f"the device is no Rondo: its identity is {identity:#010x}, not {expected:#010x}")
        found = self.read("CONFIG_HASH")
        if found != config.hash:
            raise DriverError(f"the device has configuration {found:08x}, not {config.hash:08x} ({config.name})")
        self.heap = Heap(4096, device.memory_bytes)
        self.program: Program | None = None
        self._constants = 0
        self._job_ring = self.heap.allocate(JOB_BYTES << JOB_RING_LOG2)
        self._completion_ring = self.heap.allocate(COMPLETION_BYTES << COMPLETION_RING_LOG2)
        self._submitted = 0
        self._completed = 0
        self._write_address("JOB_RING_ADDRESS", self._job_ring)
        self.write("JOB_RING_LOG2_ENTRIES", JOB_RING_LOG2)
        self._write_address("COMPLETION_RING_ADDRESS", self._completion_ring)
        self.write("COMPLETION_RING_LOG2_ENTRIES", COMPLETION_RING_LOG2)
        enable = REGISTERS["INTERRUPT_ENABLE"].fields
        self.write("INTERRUPT_ENABLE", enable["COMPLETION"].mask | enable["COMPLETION_ERROR"].mask)

    # -- registers ----------------------------------------------------------------------------------------------

    def read(self, register: str) -> int:
        return self.device.read_register(REGISTERS[register].offset)

    def write(self, register: str, value: int) -> None:
        self.device.write_register(REGISTERS[register].offset, value)

    def _write_address(self, prefix: str, address: int) -> None:
        self.write(f"{prefix}_LOW", address & 0xFFFFFFFF)
        self.write(f"{prefix}_HIGH", address >> 32)

    def counters(self) -> Counters:
        """A snapshot of all counters."""
        self.write("COUNTER_CONTROL", REGISTERS["COUNTER_CONTROL"].fields["SNAPSHOT"].mask)
        values = {}
        for name in REGISTERS:
            if name.startswith("COUNTER_") and name.endswith("_LOW"):
                stem = name.removesuffix("_LOW")
                values[stem.removeprefix("COUNTER_")] = self.read(name) | self.read(f"{stem}_HIGH") << 32
        return Counters(values)

    # -- programs and buffers -----------------------------------------------------------------------------------

    def load(self, program: Program) -> None:
        """Put a program into memory and point the NPU at it. Raises ``DriverError`` if it is for another hardware."""
        if program.config_hash != self.config.hash:
            raise DriverError(
                f"the program is for configuration {program.config_hash:08x}, not {self.config.hash:08x} "
                f"({self.config.name})"
            )
        if self._submitted != self._completed:
            raise DriverError("jobs are under way: a program can only be loaded when there are none")
        control = REGISTERS["CONTROL"].fields["ENABLE"].mask
        self.write("CONTROL", 0)
        for engine in Engine:
            stream = program.streams[engine]
            address = self.heap.allocate(len(stream))
            self.device.write_memory(address, stream)
            self._write_address(f"PROGRAM_{engine.name}_ADDRESS", address)
            self.write(f"PROGRAM_{engine.name}_COMMANDS", program.commands(engine))
        self._constants = self.heap.allocate(max(len(program.constants), 1))
        self.device.write_memory(self._constants, program.constants)
        self.program = program
        self.write("CONTROL", control)

    def _loaded(self) -> Program:
        if self.program is None:
            raise DriverError("no program is loaded")
        return self.program

    def allocate_group(self) -> BufferGroup:
        """Buffers for one frame of the loaded program."""
        sizes = self._loaded().buffer_bytes
        return BufferGroup(*(self.heap.allocate(sizes[name]) for name in ("arena", "input", "output")))

    def release_group(self, group: BufferGroup) -> None:
        for address in (group.arena, group.input, group.output):
            self.heap.release(address)

    def _bases(self, group: BufferGroup) -> dict[int, tuple[int, int]]:
        """Address and size behind each base register."""
        program = self._loaded()
        sizes = program.buffer_bytes
        return {
            BASE_CONSTANTS: (self._constants, sizes["constants"]),
            BASE_ARENA: (group.arena, sizes["arena"]),
            BASE_INPUT: (group.input, sizes["input"]),
            BASE_OUTPUT: (group.output, sizes["output"]),
        }

    def write_input(self, group: BufferGroup, name: str, values: NDArray[np.int8]) -> None:
        """Write an input tensor, int8 ``[height, width, channels]``."""
        stored = self._loaded().tensors[name]
        layout = TensorLayout(*stored.shape, self.config.array.n, stored.packed)
        self.device.write_memory(self._bases(group)[stored.base][0] + stored.offset, layout.pack(values))

    def read_bytes(self, group: BufferGroup, base: int, offset: int, size: int) -> bytes:
        """Bytes of one of the group's buffers, by base register."""
        return self.device.read_memory(self._bases(group)[base][0] + offset, size)

    def read_tensor(self, group: BufferGroup, name: str) -> NDArray[np.int8]:
        """A stored tensor, int8 ``[height, width, channels]``."""
        stored = self._loaded().tensors[name]
        layout = TensorLayout(*stored.shape, self.config.array.n, stored.packed)
        return layout.unpack(self.read_bytes(group, stored.base, stored.offset, layout.size))

    # -- jobs ---------------------------------------------------------------------------------------------------

    def submit(self, group: BufferGroup, job: int = 0) -> None:
        """Queue one frame. Raises ``DriverError`` when the job ring is full."""
        self._loaded()
        if self._submitted - self._completed >= 1 << JOB_RING_LOG2:
            raise DriverError(f"the job ring is full: {1 << JOB_RING_LOG2} jobs are under way")
        entry = bytearray(JOB_BYTES)
        entry[0:4] = job.to_bytes(4, "little")
        for index, (address, size) in self._bases(group).items():
            place = JOB_BYTES // 2 + index * 16
            entry[place : place + 8] = address.to_bytes(8, "little")
            entry[place + 8 : place + 16] = size.to_bytes(8, "little")
        slot = self._submitted % (1 << JOB_RING_LOG2)
        self.device.write_memory(self._job_ring + slot * JOB_BYTES, bytes(entry))
        self._submitted += 1
        self.write("DOORBELL", self._submitted & 0xFFFF)

    def completions(self) -> Iterator[Completion]:
        """Completions that have arrived, in order; each is acknowledged as it is taken."""
        while self._completed & 0xFFFF != self.read("COMPLETION_HEAD"):
            slot = self._completed % (1 << COMPLETION_RING_LOG2)
            raw = self.device.read_memory(self._completion_ring + slot * COMPLETION_BYTES, COMPLETION_BYTES)
            fields = unpack(COMPLETION, int.from_bytes(raw, "little"))
            self._completed += 1
            self.write("COMPLETION_TAIL", self._completed & 0xFFFF)
            yield Completion(
                fields["job"],
                Fault(fields["status"]),
                Engine(fields["engine"]),
                fields["command"],
                fields["started"],
                fields["finished"],
            )

    def wait(self, timeout_cycles: int) -> Completion:
        """The next completion.

        Raises
        ------
        JobError
            If that job failed; the task is stopped until ``resume``.
        DriverError
            If none came within ``timeout_cycles``.
        """
        if not self.device.wait_for_interrupt(timeout_cycles):
            raise DriverError(f"no completion within {timeout_cycles} cycles")
        for completion in self.completions():
            if completion.fault != Fault.NONE:
                raise JobError(completion)
            return completion
        raise DriverError("an interrupt came without a completion")

    def run(self, group: BufferGroup, job: int = 0, timeout_cycles: int = 1 << 40) -> Completion:
        """Submit one frame and wait for it."""
        self.submit(group, job)
        return self.wait(timeout_cycles)

    def resume(self) -> None:
        """Go on with the next job after a fault."""
        fields = REGISTERS["CONTROL"].fields
        self.write("CONTROL", fields["ENABLE"].mask | fields["RESUME"].mask)


__all__ = ["BufferGroup", "Completion", "Counters", "Driver", "DriverError", "JobError"]
