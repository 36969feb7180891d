"""DRAM timing in NPU cycles: the parameters, and a Python model of ``docs/timing/dram.md``.

``sim.dram`` is the gateware of the same page and takes only the parameters from here.
"""

import collections
import dataclasses
import fractions
import math

from hw.spec.config import NpuConfig

FRACTION_BITS = 10
"""The data bus is booked in units of 2**-FRACTION_BITS cycles."""
BURSTS = 32
"""Read bursts that may wait for their turn, and write bursts that may be without a response taken."""

PATIENCE = 4
"""Batches of reads for which writes that are less than a batch may be kept waiting."""
INTERLEAVE_SHIFT = 9
"""log2 of the bytes after which a stream goes on in the next bank."""


def _cycles(nanoseconds: float, clock_mhz: float) -> int:
    """Whole cycles that last at least so long."""
    exact = fractions.Fraction(str(nanoseconds)) * fractions.Fraction(str(clock_mhz)) / 1000
    return math.ceil(exact)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DramParameters:
    """Everything in cycles, beats and powers of two."""

    banked: bool
    beats: int
    """Banked: beats of one access. Ideal: longest burst (an access is a burst)."""
    duration: int
    """Data bus time in units: of an access (banked), of a beat (ideal)."""
    queue: int
    """Accesses in the queue."""
    read_buffer: int
    """Read accesses that entered and are not yet fully taken."""
    write_buffer: int
    """Write accesses whose data came and that have not entered."""
    batch: int
    patience: int
    """Reads in a row after which any write has its turn."""
    latency: int
    """From the end of the data to the response (banked), from the entry to the response (ideal)."""
    access_shift: int
    """log2 of the bytes of an access."""
    row_shift: int
    """log2 of the bytes of a row."""
    bank_bits: int
    bank_shift: int
    """log2 of the bytes that lie in a bank before the next bank follows."""
    rcd: int
    rp: int
    ras: int
    rl: int
    wl: int
    wr: int
    wtr: int
    rtp: int
    rrd: int
    refi: int
    rfc: int

    @classmethod
    def of(cls, config: NpuConfig) -> "DramParameters":
        dram = config.dram
        clock = fractions.Fraction(str(config.clock_mhz))
        banked = dram.model == "banked"
        access_bytes = max(dram.access_bytes, config.bus_bytes)
        if banked:
            rate = dram.data_bits * dram.data_rate_mtps / 8 / clock  # bytes a cycle
            duration = fractions.Fraction(access_bytes << FRACTION_BITS) / rate
        else:
            duration = fractions.Fraction(config.bus_bytes << FRACTION_BITS, dram.bytes_per_cycle)
        access_shift = access_bytes.bit_length() - 1
        row_shift = max(access_shift, dram.row_bytes.bit_length() - 1)
        times = {
            name: _cycles(getattr(dram, f"{name}_ns"), config.clock_mhz)
            for name in ("rcd", "rp", "ras", "rl", "wl", "wr", "wtr", "rtp", "rrd", "refi", "rfc")
        }
        return cls(
            banked=banked,
            beats=access_bytes // config.bus_bytes if banked else 256,
            duration=math.ceil(duration),
            queue=dram.queue,
            read_buffer=4 * dram.queue,
            write_buffer=2 * dram.batch,
            batch=dram.batch if banked else 1,
            patience=PATIENCE * dram.batch if banked else 1,
            latency=_cycles(dram.controller_ns, config.clock_mhz) if banked else max(dram.latency_cycles - 1, 2),
            access_shift=access_shift,
            row_shift=row_shift,
            bank_bits=dram.banks.bit_length() - 1,
            bank_shift=min(row_shift, max(access_shift, INTERLEAVE_SHIFT)),
            **times,
        )


@dataclasses.dataclass
class _Bank:
    row: int | None = None
    column_from: int = 0
    """First cycle for a read or write command to the open row."""
    precharge_from: int = 0


def _units(cycle: int) -> int:
    return cycle << FRACTION_BITS


def _ceil(units: int) -> int:
    return -(-units >> FRACTION_BITS)


class AccessTiming:
    """When the data of each access passes, given when the access enters. Accesses are served in the order of entry."""

    def __init__(self, parameters: DramParameters):
        self.parameters = parameters
        self.banks = [_Bank() for _ in range(1 << parameters.bank_bits)]
        self.bus_free = 0
        self.writing = False
        self.activate_from = 0
        self.write_end = 0
        self.banks_quiet = 0
        self.refreshed = 0
        self.row_hits = 0
        self.row_misses = 0
        self.refreshes = 0

    def place(self, address: int) -> tuple[int, int]:
        """Bank and row of a byte address."""
        p = self.parameters
        mask = (1 << p.bank_bits) - 1
        row = address >> p.row_shift + p.bank_bits
        bank = address >> p.bank_shift & mask
        rest = row
        while rest:
            bank ^= rest & mask
            rest >>= p.bank_bits
        return bank, row

    def refresh(self, now: int) -> None:
        """Refresh all banks as soon as what has entered lets them close."""
        p = self.parameters
        self.refreshed = max(now, self.banks_quiet) + p.rp + p.rfc
        for bank in self.banks:
            bank.row = None
        self.refreshes += 1

    def enter(self, now: int, write: bool, address: int, beats: int) -> tuple[int, int]:
        """Let an access in; returns the cycle in which it leaves the queue and that of its (first) response."""
        p = self.parameters
        if not p.banked:
            start = max(_units(now), self.bus_free)
            self.bus_free = start + beats * p.duration
            return _ceil(self.bus_free), (start >> FRACTION_BITS) + p.latency

        index, row = self.place(address)
        bank = self.banks[index]
        if bank.row == row:
            self.row_hits += 1
        else:
            self.row_misses += 1
            if bank.row is None:
                closed = max(now, self.refreshed)
            else:
                closed = max(now, bank.precharge_from) + p.rp
            activate = max(closed, self.activate_from)
            self.activate_from = activate + p.rrd
            bank.row = row
            bank.column_from = activate + p.rcd
            bank.precharge_from = activate + p.ras
        column = max(now, bank.column_from)
        if write:
            bus = self.bus_free + (0 if self.writing else _units(1))
            start = max(bus, _units(column + p.wl))
        else:
            if self.writing:
                column = max(column, self.write_end + p.wtr)
            start = max(self.bus_free, _units(column + p.rl))
        self.writing = write
        self.bus_free = start + p.duration
        end = _ceil(self.bus_free)
        if write:
            self.write_end = end
            bank.precharge_from = max(bank.precharge_from, end + p.wr)
        else:
            bank.precharge_from = max(bank.precharge_from, _ceil(start) - p.rl + p.rtp)
        self.banks_quiet = max(self.banks_quiet, bank.precharge_from)
        return end, end + p.latency


@dataclasses.dataclass
class _Burst:
    word: int
    beats: int
    identifier: int
    error: bool


@dataclasses.dataclass
class _Access:
    word: int
    beats: int
    last: bool
    identifier: int
    error: bool
    time: int = 0


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What the initiator drives in a cycle; a request is (id, address, beats)."""

    read: tuple[int, int, int] | None = None
    write: tuple[int, int, int] | None = None
    write_data: bool = False
    read_ready: bool = True
    response_ready: bool = True


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What the memory drives in a cycle, a function of the cycles before."""

    read_ready: bool
    write_ready: bool
    write_data_ready: bool
    beat: tuple[int, int, bool, bool] | None
    """(id, word, last, error) of the read beat offered."""
    response: tuple[int, bool] | None
    """(id, error) of the write response offered."""


class DramModel:
    """The whole DRAM a cycle at a time, without data: ``outputs()``, then ``step(inputs)``."""

    def __init__(self, config: NpuConfig):
        self.config = config
        self.parameters = DramParameters.of(config)
        self.timing = AccessTiming(self.parameters)
        self.now = 0
        self.started = False
        self.next_refresh = self.parameters.refi
        self.direction_write = False
        self.run = 0
        self.reads: collections.deque[_Burst] = collections.deque()
        self.read_done = 0  # beats of the first burst that have entered
        self.writes: collections.deque[_Burst] = collections.deque()
        self.write_done = 0  # beats of the first burst that have come
        self.write_since = 0  # beats since the last whole write access
        self.write_bursts = 0
        self.write_accesses: collections.deque[_Access] = collections.deque()
        self.leaving: collections.deque[int] = collections.deque()
        self.returning: collections.deque[_Access] = collections.deque()
        self.returned = 0  # beats of the first returning access that are out
        self.responses: collections.deque[_Access] = collections.deque()
        self.beat: tuple[int, int, bool, bool] | None = None
        self.response: tuple[int, bool] | None = None
        self.bytes_read = 0
        self.bytes_written = 0

    def outputs(self) -> Outputs:
        return Outputs(
            read_ready=len(self.reads) < BURSTS,
            write_ready=self.write_bursts < BURSTS,
            write_data_ready=bool(self.writes) and len(self.write_accesses) < self.parameters.write_buffer,
            beat=self.beat,
            response=self.response,
        )

    def _room(self, word: int) -> int:
        """Beats from a word to the end of its access."""
        if not self.parameters.banked:
            return 256
        return self.parameters.beats - word % self.parameters.beats

    def _next_read(self) -> _Access | None:
        if not self.reads or len(self.returning) >= self.parameters.read_buffer:
            return None
        burst = self.reads[0]
        word = burst.word + self.read_done
        left = burst.beats - self.read_done
        beats = min(left, self._room(word))
        return _Access(word, beats, beats == left, burst.identifier, burst.error)

    def _enter(self) -> None:
        """At most one access enters, or a refresh does."""
        p = self.parameters
        if p.banked and self.started and self.now >= self.next_refresh:
            self.timing.refresh(self.now)
            self.next_refresh += p.refi
            return
        if len(self.leaving) >= p.queue:
            return
        read = self._next_read()
        write = self.write_accesses[0] if self.write_accesses else None
        mine, other = (write, read) if self.direction_write else (read, write)
        enough = self.direction_write or len(self.write_accesses) >= p.batch or self.run >= p.patience
        if mine and not (other and self.run >= p.batch and enough):
            self.run += 1
        elif other:
            self.direction_write = not self.direction_write
            self.run = 1
            mine = other
        else:
            return
        leave, mine.time = self.timing.enter(
            self.now, self.direction_write, mine.word * self.config.bus_bytes, mine.beats
        )
        self.leaving.append(leave)
        if self.direction_write:
            self.write_accesses.popleft()
            if mine.last:
                self.responses.append(mine)
            return
        self.returning.append(mine)
        self.read_done += mine.beats
        if mine.last:
            self.reads.popleft()
            self.read_done = 0

    def _burst(self, request: tuple[int, int, int]) -> _Burst:
        identifier, address, beats = request
        return _Burst(address // self.config.bus_bytes, beats, identifier, address >= self.config.dram.bytes)

    def step(self, inputs: Inputs) -> None:
        outputs = self.outputs()
        leaves = bool(self.leaving) and self.leaving[0] <= self.now
        returns = bool(self.returning) and self.returning[0].time <= self.now + 1
        responds = bool(self.responses) and self.responses[0].time <= self.now + 1

        returning_before = self.returning[0] if returns else None
        response_before = self.responses[0] if responds else None
        self._enter()
        if leaves:
            self.leaving.popleft()

        if self.beat is None or inputs.read_ready:
            self.beat = None
            if returning_before:
                access = returning_before
                word = access.word + self.returned
                self.returned += 1
                final = self.returned == access.beats
                self.beat = (access.identifier, word, final and access.last, access.error)
                self.bytes_read += self.config.bus_bytes
                if final:
                    self.returning.popleft()
                    self.returned = 0
        if self.response is None or inputs.response_ready:
            if self.response is not None:
                self.write_bursts -= 1
            self.response = None
            if response_before:
                self.response = (response_before.identifier, response_before.error)
                self.responses.popleft()

        if inputs.write_data and outputs.write_data_ready:
            burst = self.writes[0]
            word = burst.word + self.write_done
            self.write_done += 1
            self.write_since += 1
            last = self.write_done == burst.beats
            if last or self._room(word) == 1:
                first = word - self.write_since + 1
                access = _Access(first, self.write_since, last, burst.identifier, burst.error)
                self.write_accesses.append(access)
                self.write_since = 0
            if last:
                self.writes.popleft()
                self.write_done = 0
            self.bytes_written += self.config.bus_bytes

        accepted = False
        if inputs.read and outputs.read_ready:
            self.reads.append(self._burst(inputs.read))
            accepted = True
        if inputs.write and outputs.write_ready:
            self.writes.append(self._burst(inputs.write))
            self.write_bursts += 1
            accepted = True
        if self.started:
            self.now += 1
        self.started = self.started or accepted
