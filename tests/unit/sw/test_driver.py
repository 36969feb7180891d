"""The driver on a device of plain Python that does what the registers' descriptions say, and misbehaves when asked."""

import dataclasses

import pytest

from hw.spec.commands import COMMAND_BYTES, COMPLETION, COMPLETION_BYTES, JOB_BYTES, Engine, Fault, pack
from hw.spec.config import load_config
from hw.spec.register_map import REGISTERS
from sw.driver import Driver, DriverError, DriverTimeout, JobError
from sw.heap import ALIGNMENT, Heap, HeapError
from sw.program import BASE_ARENA, BASE_INPUT, Program, StoredTensor

CONFIG = load_config("tiny")
MASK = 0xFFFF
JOB_CYCLES = 100
TIMEOUT = 10_000
CALLS_MAX = 100_000
NAMES = {register.offset: name for name, register in REGISTERS.items()}


def bit(register, field):
    return REGISTERS[register].fields[field].mask


class FakeDevice:
    """One job at a time, each ``JOB_CYCLES`` long. A register access takes a cycle.

    Attributes
    ----------
    hangs
        No job ends.
    faults, lost
        Job indices that fail, and whose completion is not written but answered by an error.
    write_cycles
        From a job's end to the write of its completion.
    spurious
        So many times more the interrupt is high without a reason.
    refused
        A write of this register raises, once.
    """

    def __init__(self, memory_bytes=1 << 20):
        self.memory = bytearray(memory_bytes)
        self.memory_bytes = memory_bytes
        self.values = {name: register.reset for name, register in REGISTERS.items()}
        self.values["CONFIG_HASH"] = CONFIG.hash
        self.cycle = self.calls = 0
        self.begun = self.written = None
        self.record = {}
        self.write_cycles = 0
        self.stopped = self.hangs = self.clock_stands = False
        self.faults: set[int] = set()
        self.lost: set[int] = set()
        self.spurious = 0
        self.refused = ""

    def _watch(self):
        self.calls += 1
        assert self.calls < CALLS_MAX, "the driver loops"

    def _address(self, prefix):
        return self.values[f"{prefix}_LOW"] | self.values[f"{prefix}_HIGH"] << 32

    def step(self, cycles):
        for _ in range(cycles):
            self.cycle += not self.clock_stands
            values = self.values
            waiting = values["JOB_HEAD"] != values["DOORBELL"] and values["CONTROL"] & bit("CONTROL", "ENABLE")
            if self.begun is None and waiting and not self.stopped:
                self.begun = self.cycle
            full = (values["COMPLETION_HEAD"] - values["COMPLETION_TAIL"]) & MASK == 1 << values[
                "COMPLETION_RING_LOG2_ENTRIES"
            ]
            if self.begun is not None and self.cycle >= self.begun + JOB_CYCLES and not self.hangs and not full:
                self._end()
            if self.written is not None and self.cycle >= self.written:
                self._complete()

    def _end(self):
        values, index = self.values, self.values["JOB_HEAD"]
        entry = self._address("JOB_RING_ADDRESS") + index % (1 << values["JOB_RING_LOG2_ENTRIES"]) * JOB_BYTES
        self.record = {
            "job": int.from_bytes(self.memory[entry : entry + 4], "little"),
            "status": Fault.RING if index in self.faults else Fault.NONE,
            "engine": Engine.STORE if index in self.faults else 0,
            "started": self.begun,
            "finished": self.cycle,
        }
        self.stopped = index in self.faults
        self.begun, self.written = None, self.cycle + self.write_cycles
        values["JOB_HEAD"] = (index + 1) & MASK

    def _complete(self):
        values = self.values
        if (values["JOB_HEAD"] - 1) & MASK in self.lost:
            values["INTERRUPT_STATUS"] |= bit("INTERRUPT_STATUS", "COMPLETION_ERROR")
        else:
            ring, entries = self._address("COMPLETION_RING_ADDRESS"), 1 << values["COMPLETION_RING_LOG2_ENTRIES"]
            place = ring + values["COMPLETION_HEAD"] % entries * COMPLETION_BYTES
            self.memory[place : place + COMPLETION_BYTES] = pack(COMPLETION, self.record).to_bytes(
                COMPLETION_BYTES, "little"
            )
        self.written = None
        values["COMPLETION_HEAD"] = (values["COMPLETION_HEAD"] + 1) & MASK

    @property
    def interrupt(self):
        values = self.values
        status = values["INTERRUPT_STATUS"] & bit("INTERRUPT_STATUS", "COMPLETION_ERROR")
        if values["COMPLETION_HEAD"] != values["COMPLETION_TAIL"]:
            status |= bit("INTERRUPT_STATUS", "COMPLETION")
        return bool(status & values["INTERRUPT_ENABLE"])

    def read_register(self, offset):
        self._watch()
        self.step(1)
        name = NAMES[offset]
        if name == "STATUS":
            return (self.begun is not None) * bit(name, "RUNNING") | self.stopped * bit(name, "STOPPED")
        if name == "CYCLE_LOW":
            return self.cycle & 0xFFFFFFFF
        return self.values[name]

    def write_register(self, offset, value):
        self._watch()
        name = NAMES[offset]
        if name == self.refused:
            self.refused = ""
            raise OSError("register access refused")
        if name == "INTERRUPT_STATUS":
            self.values[name] &= ~value
        elif name == "CONTROL":
            self.values[name] = value & bit(name, "ENABLE")
            self.stopped &= not value & bit(name, "RESUME")
        else:
            self.values[name] = value
        self.step(1)

    def read_memory(self, address, length):
        assert address + length <= self.memory_bytes
        return bytes(self.memory[address : address + length])

    def write_memory(self, address, data):
        assert address + len(data) <= self.memory_bytes
        self.memory[address : address + len(data)] = data

    def wait_for_interrupt(self, timeout_cycles):
        self._watch()
        if self.spurious:
            self.spurious -= 1
            return True
        for _ in range(timeout_cycles):
            if self.interrupt:
                break
            self.step(1)
        return self.interrupt

    def close(self):
        pass


def program(name="first", **changes):
    made = Program(
        name=name,
        config_hash=CONFIG.hash,
        n=CONFIG.array.n,
        policy="none",
        streams={engine: bytes([1 + engine]) * COMMAND_BYTES for engine in Engine},
        constants=name.encode(),
        buffer_bytes={"constants": 64, "arena": 5000, "input": 64, "output": 64},
        tensors={"x": StoredTensor("x", BASE_INPUT, 0, (1, 1, 4))},
        inputs=("x",),
        outputs=(),
        layers=(),
        rings=(),
        scratchpad_peak=0,
        arena_lower_bound=0,
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def driver(device):
    driver = Driver(device, CONFIG)
    driver.load(program())
    return driver


def test_jobs_complete_in_order_far_beyond_the_rings_and_the_indices(device):
    device.values |= dict.fromkeys(("JOB_HEAD", "DOORBELL", "COMPLETION_HEAD", "COMPLETION_TAIL"), MASK - 20)
    driver = Driver(device, CONFIG)
    driver.load(program())
    group = driver.allocate_group()
    for job in range(40):
        assert driver.run(group, 1000 + job, TIMEOUT).job == 1000 + job
    assert device.values["COMPLETION_HEAD"] == device.values["DOORBELL"] == 40 - 21


# -- identity


@pytest.mark.parametrize(
    ("register", "value", "message"),
    [
        ("IDENTITY", 0x1234, "the device is no Rondo: its identity is 0x00001234"),
        ("VERSION", 0x10007, r"has version 1\.7 of the register map; this driver is for 0\."),
        ("CONFIG_HASH", CONFIG.hash ^ 1, "the device has configuration"),
    ],
)
def test_another_device_is_refused(device, register, value, message):
    device.values[register] = value
    with pytest.raises(DriverError, match=message):
        Driver(device, CONFIG)


def test_a_later_minor_version_is_accepted(device):
    device.values["VERSION"] = REGISTERS["VERSION"].fields["MINOR"].insert(99, device.values["VERSION"])
    Driver(device, CONFIG)


# -- completions


def test_a_lost_completion_is_an_error_of_its_job_and_of_no_other(device, driver):
    group = driver.allocate_group()
    device.lost = {1}
    assert driver.run(group, 10, TIMEOUT).job == 10
    with pytest.raises(
        DriverError, match=r"the completion of job 11 is lost: the bus answered its write with an error$"
    ):
        driver.run(group, 11, TIMEOUT)
    assert not device.interrupt
    assert driver.run(group, 12, TIMEOUT).job == 12
    driver.release_group(group)


def test_of_completions_that_an_error_is_among_none_is_trusted(device, driver):
    group = driver.allocate_group()
    device.lost = {1}
    for job in range(3):
        driver.submit(group, job)
    device.step(5 * JOB_CYCLES)
    for job in range(3):
        with pytest.raises(DriverError, match=f"the completion of job {job} is lost"):
            driver.wait(TIMEOUT)
    assert driver.run(group, 3, TIMEOUT).job == 3


def test_a_lost_completion_of_a_failed_job_says_that_the_task_is_stopped(device, driver):
    group = driver.allocate_group()
    device.lost = device.faults = {0}
    with pytest.raises(DriverError, match=r"completion of job 5 is lost.*; the task is stopped by fault 0 until"):
        driver.run(group, 5, TIMEOUT)
    driver.resume()
    assert driver.run(group, 6, TIMEOUT).job == 6


def test_a_record_of_no_known_fault_is_an_error(device, driver):
    group = driver.allocate_group()
    driver.submit(group, 8)
    device.step(2 * JOB_CYCLES)
    device.memory[device.values["COMPLETION_RING_ADDRESS_LOW"] + 4] = 0xEE
    with pytest.raises(DriverError, match="the completion of job 8 makes no sense: 08000000ee"):
        driver.wait(TIMEOUT)


def test_a_failed_job_raises_and_frees_its_group(device, driver):
    group = driver.allocate_group()
    device.faults = {0}
    with pytest.raises(JobError, match="job 4 failed: ring fault at store command 0"):
        driver.run(group, 4, TIMEOUT)
    driver.release_group(group)


# -- waiting


def test_spurious_interrupts_are_waited_out(device, driver):
    device.spurious = 3
    assert driver.run(driver.allocate_group(), 9, TIMEOUT).job == 9


@pytest.mark.parametrize("stands", [False, True])
def test_an_interrupt_that_never_falls_does_not_outlast_the_deadline(device, driver, stands):
    device.hangs, device.clock_stands, device.spurious = True, stands, 1 << 60
    with pytest.raises(DriverTimeout, match="no completion within 500 cycles"):
        driver.run(driver.allocate_group(), 9, 500)


def test_waiting_for_nothing_is_refused(driver):
    with pytest.raises(DriverError, match="no job is under way"):
        driver.wait(TIMEOUT)


def test_a_timeout_says_that_a_fault_has_stopped_the_task(device, driver):
    group = driver.allocate_group()
    device.faults = {0}
    with pytest.raises(JobError):
        driver.run(group, 0, TIMEOUT)
    with pytest.raises(DriverTimeout, match="no completion within 1000 cycles; the task is stopped by fault"):
        driver.run(group, 1, 1000)


# -- a device in use


def test_a_new_driver_does_not_see_jobs_and_completions_of_the_old_one(device, driver):
    group = driver.allocate_group()
    driver.run(group, 1, TIMEOUT)
    for job in (2, 3, 4, 5):
        driver.submit(group, job)
    device.step(2 * JOB_CYCLES + JOB_CYCLES // 2)
    assert device.begun is not None and device.values["COMPLETION_HEAD"] == 3
    device.write_cycles = 3 * JOB_CYCLES
    new = Driver(device, CONFIG)
    assert device.begun is None and device.written is None and not device.interrupt
    assert device.values["JOB_HEAD"] == device.values["COMPLETION_HEAD"] == device.values["DOORBELL"] == 4
    new.load(program())
    assert list(new.completions()) == []
    assert new.run(new.allocate_group(), 77, TIMEOUT).job == 77


def test_a_new_driver_resumes_after_a_fault(device, driver):
    device.faults, device.lost = {0}, {0}
    driver.submit(driver.allocate_group(), 1)
    driver.submit(driver.allocate_group(), 2)
    device.step(2 * JOB_CYCLES)
    assert device.stopped
    new = Driver(device, CONFIG)
    assert not device.stopped and not device.interrupt
    new.load(program())
    assert new.run(new.allocate_group(), 77, TIMEOUT).job == 77


def test_a_new_driver_lets_a_full_completion_ring_drain(device, driver):
    group = driver.allocate_group()
    device.values["COMPLETION_RING_LOG2_ENTRIES"] = 0
    driver.submit(group, 1)
    driver.submit(group, 2)
    device.step(5 * JOB_CYCLES)
    assert device.begun is not None
    Driver(device, CONFIG, settle_cycles=TIMEOUT)
    assert device.begun is None


def test_a_device_whose_job_does_not_end_is_refused(device, driver):
    device.hangs = True
    driver.submit(driver.allocate_group(), 1)
    before = bytes(device.memory)
    with pytest.raises(DriverError, match="does not end within 10000 cycles: only a reset of the hardware can end it"):
        Driver(device, CONFIG, settle_cycles=10_000)
    assert device.memory == before


# -- giving jobs up


def test_jobs_given_up_free_their_groups(device, driver):
    group = driver.allocate_group()
    device.hangs = True
    driver.submit(group, 1)
    driver.submit(group, 2)
    with pytest.raises(DriverTimeout, match=r"no completion within 1000 cycles$"):
        driver.wait(1000)
    with pytest.raises(DriverError, match=r"the buffer group is in use by 2 job\(s\) under way"):
        driver.release_group(group)
    with pytest.raises(DriverError, match="does not end within 1000 cycles"):
        driver.abandon(1000)
    for refused in (lambda: driver.load(program()), lambda: driver.release_group(group)):
        with pytest.raises(DriverError, match="under way"):
            refused()
    with pytest.raises(DriverError, match="one has not ended: no other can be submitted"):
        driver.submit(group, 3)
    device.hangs = False
    driver.abandon(1000)
    assert device.values["JOB_HEAD"] == device.values["DOORBELL"] == 1  # the second was withdrawn
    assert driver.run(group, 4, TIMEOUT).job == 4
    driver.release_group(group)
    driver.load(program("second"))


# -- groups


def test_a_group_of_another_program_can_only_be_released(driver):
    group = driver.allocate_group()
    used = driver.heap.used_bytes
    driver.load(program("second", buffer_bytes={"constants": 64, "arena": 90_000, "input": 64, "output": 64}))
    uses = (
        lambda: driver.submit(group),
        lambda: driver.write_input(group, "x", None),
        lambda: driver.read_tensor(group, "x"),
        lambda: driver.read_bytes(group, BASE_ARENA, 0, 4),
    )
    for use in uses:
        with pytest.raises(DriverError, match="is for program 'first', which is no longer"):
            use()
    driver.release_group(group)
    assert driver.heap.used_bytes == used - 2 * ALIGNMENT - 2 * ALIGNMENT


def test_a_group_released_or_of_another_driver_is_refused(driver):
    other = Driver(FakeDevice(), CONFIG)
    other.load(driver.program)
    released = driver.allocate_group()
    driver.release_group(released)
    for group in (released, other.allocate_group()):
        for use in (driver.submit, driver.release_group):
            with pytest.raises(DriverError, match="is not this driver's, or was released"):
                use(group)


def test_a_group_that_does_not_fit_leaves_nothing_behind(driver):
    used = driver.heap.used_bytes
    sizes = {"constants": 64, "arena": 4096, "input": 4096, "output": 1 << 20}
    driver.load(program(buffer_bytes=sizes))
    with pytest.raises(HeapError, match="no room for 1048576 bytes"):
        driver.allocate_group()
    assert driver.heap.used_bytes == used


@pytest.mark.parametrize(
    ("base", "offset", "size", "message"),
    [
        (BASE_INPUT, 60, 5, "5 bytes at 0x3c are not inside the input buffer of 64"),
        (BASE_INPUT, -1, 1, "are not inside the input buffer"),
        (7, 0, 1, "there is no base register 7"),
    ],
)
def test_bytes_outside_a_buffer_are_refused(driver, base, offset, size, message):
    with pytest.raises(DriverError, match=message):
        driver.read_bytes(driver.allocate_group(), base, offset, size)


def test_an_unknown_tensor_is_refused(driver):
    with pytest.raises(DriverError, match="the program has no tensor 'y'"):
        driver.read_tensor(driver.allocate_group(), "y")


# -- what does not fit the hardware


def test_addresses_and_sizes_beyond_the_address_bits_are_refused(driver):
    group, top = driver.allocate_group(), 1 << CONFIG.address_bits
    for address in (top, top - 4096, -4096):
        with pytest.raises(DriverError, match=f"arena buffer: 5000 bytes at {address:#x} do not fit 36 address bits"):
            driver.submit(dataclasses.replace(group, arena=address))
    large = {"constants": 64, "arena": top, "input": 64, "output": 64}
    with pytest.raises(DriverError, match=f"the program's arena buffer: {top} bytes at 0x0 do not fit 36"):
        driver.load(program(buffer_bytes=large))
    assert driver.run(group, 1, TIMEOUT).job == 1


def test_memory_beyond_the_address_bits_is_not_used(device):
    device.memory_bytes = 1 << 50
    driver = Driver(device, CONFIG)
    with pytest.raises(HeapError, match="no room"):
        driver.heap.allocate(1 << CONFIG.address_bits)


def test_values_that_do_not_fit_a_register_or_the_ring_are_refused(driver):
    with pytest.raises(DriverError, match="register PROGRAM_LOAD_COMMANDS cannot hold 0x1000000"):
        driver.write("PROGRAM_LOAD_COMMANDS", 1 << 24)
    for job in (-1, 1 << 32):
        with pytest.raises(DriverError, match=f"a job's number must fit 32 bits, not {job}"):
            driver.submit(driver.allocate_group(), job)


# -- loading


def test_loading_again_and_again_needs_no_more_memory(device, driver):
    used = driver.heap.used_bytes
    for number in range(500):
        driver.load(program(f"number {number}"))
    assert driver.heap.used_bytes == used
    address = device.values["PROGRAM_STORE_ADDRESS_LOW"]
    assert device.memory[address : address + COMMAND_BYTES] == bytes([3]) * COMMAND_BYTES


@pytest.mark.parametrize("reason", ["no room", "refused"])
def test_a_failed_load_leaves_the_program_before(device, driver, reason):
    group, before, used = driver.allocate_group(), dict(device.values), driver.heap.used_bytes
    if reason == "no room":
        with pytest.raises(HeapError, match="no room for"):
            driver.load(program("second", constants=bytes(1 << 20)))
    else:
        device.refused = "PROGRAM_STORE_COMMANDS"
        with pytest.raises(OSError, match="register access refused"):
            driver.load(program("second"))
    assert device.values == before
    assert driver.program.name == "first" and driver.heap.used_bytes == used
    assert driver.run(group, 1, TIMEOUT).job == 1


def test_a_program_is_not_replaced_under_jobs(driver):
    driver.submit(driver.allocate_group())
    with pytest.raises(DriverError, match="jobs are under way"):
        driver.load(program("second"))


# -- heap


def test_allocations_together_are_all_or_none():
    heap = Heap(0, 4 * ALIGNMENT)
    assert heap.allocate_all([1, ALIGNMENT]) == [0, ALIGNMENT]
    with pytest.raises(HeapError, match="no room for 8192 bytes"):
        heap.allocate_all([1, ALIGNMENT + 1])
    assert (heap.used_bytes, heap.allocations, heap.peak_bytes) == (2 * ALIGNMENT, 2, 2 * ALIGNMENT)
    assert heap.allocate_all([2 * ALIGNMENT]) == [2 * ALIGNMENT]
