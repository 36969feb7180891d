"""The driver: loads programs, submits jobs, waits for completions. The same for a simulation and for a chip."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hw.spec.causes import Cause
from hw.spec.commands import COMPLETION, COMPLETION_BYTES, JOB_BYTES, Engine, Fault, unpack
from hw.spec.config import NpuConfig
from hw.spec.control_block import JOB_INDEX_BITS
from hw.spec.register_map import REGISTERS
from sw.device import Device
from sw.heap import Heap
from sw.layout import TensorLayout
from sw.program import BASE_ARENA, BASE_CONSTANTS, BASE_INPUT, BASE_OUTPUT, Program, StoredTensor

JOB_RING_LOG2 = 4
COMPLETION_RING_LOG2 = 4
DEFAULT_TIMEOUT_CYCLES = 1_000_000_000
"""How long ``Driver.run`` waits unless told: seconds on a chip, a quarter of an hour in compiled simulation."""
SETTLE_CYCLES = 1_000_000_000
"""How long jobs that have begun may take to end, when a driver takes a device over or gives its jobs up."""
_PAUSE_CYCLES_MAX = 1 << 16
_INDEX_MASK = (1 << JOB_INDEX_BITS) - 1
_BUFFERS = {BASE_CONSTANTS: "constants", BASE_ARENA: "arena", BASE_INPUT: "input", BASE_OUTPUT: "output"}
_group_numbers = itertools.count(1)


class DriverError(RuntimeError):
    """The device is not what was expected, or was used wrongly; the message is one line."""


class DriverTimeout(DriverError):
    """No completion came in time."""


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
    """The buffers of one frame of ``program``: addresses in the NPU's memory. ``number`` is no other group's."""

    arena: int
    input: int
    output: int
    program: Program = dataclasses.field(repr=False)
    number: int


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


@dataclasses.dataclass(frozen=True)
class _Image:
    """A program in memory."""

    program: Program
    streams: dict[Engine, int]
    constants: int

    @property
    def addresses(self) -> list[int]:
        return [*self.streams.values(), self.constants]


@dataclasses.dataclass
class _GroupState:
    group: BufferGroup
    jobs: int = 0
    """Jobs under way, or whose completion has not been taken."""


class Driver:
    """One NPU with one program.

    The device may have been in use: jobs that it has begun are waited for, those queued behind them are withdrawn, a
    stop by a fault is resumed, completions that nobody has taken are dropped. Until then the memory is not written.

    Parameters
    ----------
    settle_cycles
        How long that may take.

    Raises
    ------
    DriverError
        If the device is no Rondo, has another version of the register map, was built from another configuration than
        ``config``, or does not end the job that it has begun.
    """

    def __init__(self, device: Device, config: NpuConfig, *, settle_cycles: int = SETTLE_CYCLES) -> None:
        self.device = device
        self.config = config
        identity = self.read("IDENTITY")
        expected = REGISTERS["IDENTITY"].fields["VALUE"].reset
        if identity != expected:
            raise DriverError(f"the device is no Rondo: its identity is {identity:#010x}, not {expected:#010x}")
        version, fields = self.read("VERSION"), REGISTERS["VERSION"].fields
        major, minor = (fields[name].extract(version) for name in ("MAJOR", "MINOR"))
        if major != fields["MAJOR"].reset:
            raise DriverError(
                f"the device has version {major}.{minor} of the register map; this driver is for "
                f"{fields['MAJOR'].reset}.{fields['MINOR'].reset}"
            )
        found = self.read("CONFIG_HASH")
        if found != config.hash:
            raise DriverError(f"the device has configuration {found:08x}, not {config.hash:08x} ({config.name})")
        self.heap = Heap(4096, min(device.memory_bytes, 1 << config.address_bits))
        self._image: _Image | None = None
        self._job_ring, self._completion_ring = self.heap.allocate_all(
            (JOB_BYTES << JOB_RING_LOG2, COMPLETION_BYTES << COMPLETION_RING_LOG2)
        )
        self._groups: dict[int, _GroupState] = {}
        self._jobs: collections.deque[tuple[int, int]] = collections.deque()  # number and group of each under way
        self._completed = self.read("COMPLETION_HEAD")  # free-running, as is the number of jobs submitted
        self._doubtful = self._completed  # completions before this one may not have been written
        self._gives_up = False
        self._settle(settle_cycles)
        self._write_address("JOB_RING_ADDRESS", self._job_ring)
        self.write("JOB_RING_LOG2_ENTRIES", JOB_RING_LOG2)
        self._write_address("COMPLETION_RING_ADDRESS", self._completion_ring)
        self.write("COMPLETION_RING_LOG2_ENTRIES", COMPLETION_RING_LOG2)

    @property
    def program(self) -> Program | None:
        """The program that is loaded."""
        return self._image.program if self._image else None

    # -- registers ----------------------------------------------------------------------------------------------

    def read(self, register: str) -> int:
        return self.device.read_register(REGISTERS[register].offset)

    def write(self, register: str, value: int) -> None:
        """Write a register. Raises ``DriverError`` for a value that its fields cannot hold."""
        mask = sum(field.mask for field in REGISTERS[register].fields.values() if field.access.writable)
        if value & ~mask:
            raise DriverError(f"register {register} cannot hold {value:#x}")
        self.device.write_register(REGISTERS[register].offset, value)

    def _check_range(self, what: str, address: int, size: int) -> None:
        """The hardware keeps ``address_bits`` bits of an address, and as many of a size."""
        bits = self.config.address_bits
        if address < 0 or not 0 <= size < 1 << bits or address + size > 1 << bits:
            raise DriverError(f"{what}: {size} bytes at {address:#x} do not fit {bits} address bits")

    def _write_address(self, prefix: str, address: int) -> None:
        self._check_range(prefix, address, 0)
        self.write(f"{prefix}_LOW", address & 0xFFFFFFFF)
        self.write(f"{prefix}_HIGH", address >> 32)

    def _cycle(self) -> int:
        """Cycles since reset."""
        high = self.read("CYCLE_HIGH")
        while True:
            low, again = self.read("CYCLE_LOW"), self.read("CYCLE_HIGH")
            if again == high:
                return low | high << 32
            high = again

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
        """Put a program into memory and point the NPU at it, in place of the one before.

        Both are in memory for a moment. If there is no room, or anything else fails, the one before stays loaded.
        Buffer groups of another program stay allocated, but can only be released.

        Raises
        ------
        DriverError
            If the program is for another hardware, or jobs are under way.
        HeapError
            If it does not fit the memory.
        """
        if program.config_hash != self.config.hash:
            raise DriverError(
                f"the program is for configuration {program.config_hash:08x}, not {self.config.hash:08x} "
                f"({self.config.name})"
            )
        if self._jobs:
            raise DriverError("jobs are under way: a program can only be loaded when there are none")
        for name, size in program.buffer_bytes.items():
            self._check_range(f"the program's {name} buffer", 0, size)
        sizes = [len(program.streams[engine]) for engine in Engine]
        *streams, constants = self.heap.allocate_all([*sizes, max(len(program.constants), 1)])
        image, before = _Image(program, dict(zip(Engine, streams, strict=True)), constants), self._image
        try:
            for engine, address in image.streams.items():
                self.device.write_memory(address, program.streams[engine])
            self.device.write_memory(constants, program.constants)
            self._point_at(image)
        except BaseException:
            try:
                if before is not None:
                    self._point_at(before)
            finally:
                self._release(image.addresses)
            raise
        self._image = image
        if before is not None:
            self._release(before.addresses)

    def _point_at(self, image: _Image) -> None:
        self.write("CONTROL", 0)
        for engine, address in image.streams.items():
            self._write_address(f"PROGRAM_{engine.name}_ADDRESS", address)
            self.write(f"PROGRAM_{engine.name}_COMMANDS", image.program.commands(engine))
        self.write("CONTROL", REGISTERS["CONTROL"].fields["ENABLE"].mask)

    def _release(self, addresses: list[int]) -> None:
        for address in addresses:
            self.heap.release(address)

    def _loaded(self) -> _Image:
        if self._image is None:
            raise DriverError("no program is loaded")
        return self._image

    def allocate_group(self) -> BufferGroup:
        """Buffers for one frame of the loaded program. Raises ``HeapError`` when the memory is full."""
        program = self._loaded().program
        arena, input_, output = self.heap.allocate_all(
            program.buffer_bytes[name] for name in ("arena", "input", "output")
        )
        group = BufferGroup(arena, input_, output, program, next(_group_numbers))
        self._groups[group.number] = _GroupState(group)
        return group

    def release_group(self, group: BufferGroup) -> None:
        """Give a group's memory back. Raises ``DriverError`` while a job of it is under way."""
        state = self._state(group)
        if state.jobs:
            raise DriverError(f"the buffer group is in use by {state.jobs} job(s) under way")
        del self._groups[group.number]
        self._release([state.group.arena, state.group.input, state.group.output])

    def _state(self, group: BufferGroup) -> _GroupState:
        state = self._groups.get(group.number)
        if state is None:
            raise DriverError("the buffer group is not this driver's, or was released")
        return state

    def _bases(self, group: BufferGroup) -> dict[int, tuple[int, int]]:
        """Address and size behind each base register. Raises ``DriverError`` for a group that is not to be used now."""
        image = self._loaded()
        self._state(group)
        if group.program is not image.program:
            raise DriverError(
                f"the buffer group is for program {group.program.name!r}, which is no longer the one that is loaded"
            )
        places = {
            BASE_CONSTANTS: image.constants,
            BASE_ARENA: group.arena,
            BASE_INPUT: group.input,
            BASE_OUTPUT: group.output,
        }
        bases = {base: (address, image.program.buffer_bytes[_BUFFERS[base]]) for base, address in places.items()}
        for base, (address, size) in bases.items():
            self._check_range(f"the group's {_BUFFERS[base]} buffer", address, size)
        return bases

    def _place(self, group: BufferGroup, base: int, offset: int, size: int) -> int:
        """Address of bytes that must lie in one of the group's buffers."""
        bases = self._bases(group)
        if base not in bases:
            raise DriverError(f"there is no base register {base}")
        address, available = bases[base]
        if offset < 0 or size < 0 or offset + size > available:
            raise DriverError(f"{size} bytes at {offset:#x} are not inside the {_BUFFERS[base]} buffer of {available}")
        return address + offset

    def _tensor(self, name: str) -> tuple[StoredTensor, TensorLayout]:
        stored = self._loaded().program.tensors.get(name)
        if stored is None:
            raise DriverError(f"the program has no tensor {name!r}")
        return stored, TensorLayout(*stored.shape, self.config.array.n, stored.packed)

    def write_input(self, group: BufferGroup, name: str, values: NDArray[np.int8]) -> None:
        """Write an input tensor, int8 ``[height, width, channels]``."""
        stored, layout = self._tensor(name)
        self.device.write_memory(self._place(group, stored.base, stored.offset, layout.size), layout.pack(values))

    def read_bytes(self, group: BufferGroup, base: int, offset: int, size: int) -> bytes:
        """Bytes of one of the group's buffers, by base register."""
        return self.device.read_memory(self._place(group, base, offset, size), size)

    def read_tensor(self, group: BufferGroup, name: str) -> NDArray[np.int8]:
        """A stored tensor, int8 ``[height, width, channels]``."""
        stored, layout = self._tensor(name)
        return layout.unpack(self.read_bytes(group, stored.base, stored.offset, layout.size))

    # -- jobs ---------------------------------------------------------------------------------------------------

    def submit(self, group: BufferGroup, job: int = 0) -> None:
        """Queue one frame. Raises ``DriverError`` when the job ring is full, or the group is not the program's."""
        bases = self._bases(group)
        if self._gives_up:
            raise DriverError("jobs were given up and one has not ended: no other can be submitted")
        if not 0 <= job < 1 << 32:
            raise DriverError(f"a job's number must fit 32 bits, not {job}")
        if len(self._jobs) >= 1 << JOB_RING_LOG2:
            raise DriverError(f"the job ring is full: {1 << JOB_RING_LOG2} jobs are under way")
        entry = bytearray(JOB_BYTES)
        entry[0:4] = job.to_bytes(4, "little")
        for index, (address, size) in bases.items():
            place = JOB_BYTES // 2 + index * 16
            entry[place : place + 8] = address.to_bytes(8, "little")
            entry[place + 8 : place + 16] = size.to_bytes(8, "little")
        submitted = self._completed + len(self._jobs)
        slot = submitted % (1 << JOB_RING_LOG2)
        self.device.write_memory(self._job_ring + slot * JOB_BYTES, bytes(entry))
        self._jobs.append((job, group.number))
        self._groups[group.number].jobs += 1
        self.write("DOORBELL", (submitted + 1) & _INDEX_MASK)

    def _pass_one(self) -> int:
        """Count a completion as taken; the number of its job."""
        self._completed += 1
        job, number = self._jobs.popleft() if self._jobs else (0, 0)
        if number in self._groups:
            self._groups[number].jobs -= 1
        return job

    def _take(self) -> Completion | None:
        """The next completion, if it has arrived, acknowledged."""
        # The error is there no later than the record that it is about, so whoever sees the record sees the error.
        # It does not say which record: of those there once it is cleared, none can be trusted.
        head = self.read("COMPLETION_HEAD")
        error = REGISTERS["INTERRUPT_STATUS"].fields["COMPLETION_ERROR"].mask
        if self.read("INTERRUPT_STATUS") & error:
            self.write("INTERRUPT_STATUS", error)
            head = self.read("COMPLETION_HEAD")
            self._doubtful = self._completed + ((head - self._completed) & _INDEX_MASK)
        if head == self._completed & _INDEX_MASK:
            return None
        slot = self._completed % (1 << COMPLETION_RING_LOG2)
        lost = self._completed < self._doubtful
        raw = self.device.read_memory(self._completion_ring + slot * COMPLETION_BYTES, COMPLETION_BYTES)
        job = self._pass_one()
        self.write("COMPLETION_TAIL", self._completed & _INDEX_MASK)
        if lost:
            raise DriverError(
                f"the completion of job {job} is lost: the bus answered its write with an error{self._stopped()}"
            )
        fields = unpack(COMPLETION, int.from_bytes(raw, "little"))
        try:
            fault, engine = Fault(fields["status"]), Engine(fields["engine"])
        except ValueError:
            raise DriverError(f"the completion of job {job} makes no sense: {raw.hex()}{self._stopped()}") from None
        return Completion(fields["job"], fault, engine, fields["command"], fields["started"], fields["finished"])

    def _stopped(self) -> str:
        """For messages: whether a fault has stopped the task."""
        status, fields = self.read("STATUS"), REGISTERS["STATUS"].fields
        if not status & fields["STOPPED"].mask:
            return ""
        return f"; the task is stopped by fault {fields['FAULT_CODE'].extract(status)} until it is resumed"

    def completions(self) -> Iterator[Completion]:
        """Completions that have arrived, in order; each is acknowledged as it is taken.

        Raises
        ------
        DriverError
            In place of a completion whose write the bus answered with an error: nothing is known of that job. It is
            acknowledged too; another call gives the next. When several records are there at once any may be the one,
            so this is raised for each of them.
        """
        while (completion := self._take()) is not None:
            yield completion

    def wait(self, timeout_cycles: int) -> Completion:
        """The next completion.

        Raises
        ------
        JobError
            If that job failed; the task is stopped until ``resume``.
        DriverTimeout
            If none came within ``timeout_cycles``. The job is still under way: wait again, or ``abandon``.
        DriverError
            If no job is under way, or the completion was lost on the bus.
        """
        if not self._jobs:
            raise DriverError("no job is under way")
        deadline, left = self._cycle() + timeout_cycles, timeout_cycles
        while left >= 0 and self.device.wait_for_interrupt(left):
            for completion in self.completions():
                if completion.fault != Fault.NONE:
                    raise JobError(completion)
                return completion
            # The level falls a cycle after its reason has gone; and a clock that stands still must not hold us.
            left = min(left - 1, deadline - self._cycle())
        raise DriverTimeout(f"no completion within {timeout_cycles} cycles{self._stopped()}")

    def run(self, group: BufferGroup, job: int = 0, timeout_cycles: int = DEFAULT_TIMEOUT_CYCLES) -> Completion:
        """Submit one frame and wait for it; raises what ``submit`` and ``wait`` raise."""
        self.submit(group, job)
        return self.wait(timeout_cycles)

    def resume(self) -> None:
        """Go on with the next job after a fault."""
        self._loaded()
        fields = REGISTERS["CONTROL"].fields
        self.write("CONTROL", fields["ENABLE"].mask | fields["RESUME"].mask)

    def abandon(self, timeout_cycles: int = SETTLE_CYCLES) -> None:
        """Give up all jobs under way; afterwards groups can be released and programs loaded.

        Jobs that no engine has begun are withdrawn. Those begun are waited for: the NPU has no means to break one off.
        A stop by a fault is resumed. All their completions are dropped, and what they wrote is undefined.

        Raises
        ------
        DriverError
            If a job does not end within ``timeout_cycles``. No other begins, but it may still read and write the
            memory, so its buffers stay in use. Call again, or reset the hardware (open a simulated device again)
            and make a new ``Driver``.
        """
        self._gives_up = True
        self._settle(timeout_cycles)
        self._gives_up = False
        if self._image is not None:
            self.write("CONTROL", REGISTERS["CONTROL"].fields["ENABLE"].mask)

    def _settle(self, timeout_cycles: int) -> None:
        """Let what has begun end, and leave the NPU disabled, with no job, completion or error."""
        control, status = REGISTERS["CONTROL"].fields, REGISTERS["STATUS"].fields
        enable, pending = REGISTERS["INTERRUPT_ENABLE"].fields, REGISTERS["INTERRUPT_STATUS"].fields
        self.write("CONTROL", 0)
        self.write("INTERRUPT_ENABLE", 0)  # so that waiting for it just lets time pass
        left, pause = timeout_cycles, 64
        try:
            while True:
                state, head = self.read("STATUS"), self.read("COMPLETION_HEAD")
                while self._completed & _INDEX_MASK != head:
                    self._pass_one()
                self.write("COMPLETION_TAIL", head)  # a full ring would hold jobs up
                if state & status["STOPPED"].mask:
                    self.write("CONTROL", control["RESUME"].mask)
                elif not state & status["RUNNING"].mask and self.read("JOB_HEAD") == head:
                    break
                if left <= 0:
                    raise DriverError(
                        f"a job that the NPU has begun does not end within {timeout_cycles} cycles: "
                        "only a reset of the hardware can end it"
                    )
                self.device.wait_for_interrupt(min(pause, left))
                left, pause = left - pause, min(2 * pause, _PAUSE_CYCLES_MAX)
            for _, number in self._jobs:
                self._groups[number].jobs -= 1
            self._jobs.clear()
            self.write("DOORBELL", head)
            self.write("INTERRUPT_STATUS", pending["COMPLETION_ERROR"].mask)
            self._doubtful = self._completed
        finally:
            self.write("INTERRUPT_ENABLE", enable["COMPLETION"].mask | enable["COMPLETION_ERROR"].mask)


__all__ = ["BufferGroup", "Completion", "Counters", "Driver", "DriverError", "DriverTimeout", "JobError"]
