"""The gateware compiled: Verilog, Verilator, a library loaded into this process."""

import ctypes
import pathlib
import typing

import numpy as np

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.dram import COUNTERS
from sim.engines import REGISTER_CYCLES_MAX, EngineError, check_register, check_response, join_activity
from sim.memory import MemoryArray
from sim.verilator import Initiator, build_library
from sw.device import Activity, Bytes, Retirement

SLICE_CYCLES = 50000
"""Cycles between two chances for Python to see Ctrl-C, and between two calls of ``progress``."""

_RETIREMENT = np.dtype([("cycle", "<u8"), ("engine", "<u4"), ("job_index", "<u4"), ("index", "<u8")])


class _Library:
    def __init__(self, path: pathlib.Path):
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise EngineError(f"cannot load {path}: {error}") from None
        handle, word = ctypes.c_void_p, ctypes.c_uint64

        def function(name: str, result: typing.Any, *arguments: typing.Any) -> typing.Any:
            symbol = getattr(library, f"rondo_{name}")
            symbol.restype, symbol.argtypes = result, arguments
            return symbol

        self.create = function("create", handle, handle)
        self.destroy = function("destroy", None, handle)
        self.cycle = function("cycle", word, handle)
        self.step = function("step", None, handle, word)
        self.wait = function("wait", ctypes.c_int, handle, word)
        self.retirement_count = function("retirement_count", word, handle)
        self.retirements = function("retirements", handle, handle)
        self.clear_retirements = function("clear_retirements", None, handle)
        self.activity_size = function("activity_size", word, handle, ctypes.c_int)
        self.activity = function("activity", handle, handle, ctypes.c_int)
        self.clear_activity = function("clear_activity", None, handle)
        self.counter = function("counter", word, handle, ctypes.c_int)
        self.read_register = function(
            "read_register", ctypes.c_int, handle, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32), word
        )
        self.write_register = function("write_register", ctypes.c_int, handle, ctypes.c_uint32, ctypes.c_uint32, word)


class RtlDevice:
    """``SimulatedDevice`` on the compiled gateware; ``initiator`` (a class) replaces the NPU."""

    progress: typing.Callable[[int], None] | None = None

    def __init__(
        self,
        config: NpuConfig,
        initiator: Initiator | None = None,
        *,
        report: typing.Callable[[str], None] | None = None,
    ):
        self._handle: int | None = None
        self._library = _Library(build_library(config, initiator, report=report))
        self._memory = MemoryArray(config.dram.bytes)
        self._handle = self._library.create(self._memory.array.ctypes.data)

    def _open(self) -> int:
        if self._handle is None:
            raise EngineError("the device is closed")
        return self._handle

    # --- Device ---

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    def read_register(self, offset: int) -> int:
        check_register(offset)
        value = ctypes.c_uint32()
        response = self._library.read_register(self._open(), offset, ctypes.byref(value), REGISTER_CYCLES_MAX)
        check_response("read", offset, response)
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        check_register(offset, value)
        response = self._library.write_register(self._open(), offset, value, REGISTER_CYCLES_MAX)
        check_response("write", offset, response)

    def read_memory(self, address: int, length: int) -> bytes:
        return self._memory.read(address, length)

    def write_memory(self, address: int, data: Bytes) -> None:
        self._memory.write(address, data)

    def wait_for_interrupt(self, timeout_cycles: int) -> bool:
        handle = self._open()
        while timeout_cycles > SLICE_CYCLES:
            if self._library.wait(handle, SLICE_CYCLES):
                return True
            timeout_cycles -= SLICE_CYCLES
            if self.progress:
                self.progress(self.cycle)
        return bool(self._library.wait(handle, max(timeout_cycles, 0)))

    def close(self) -> None:
        if self._handle is not None:
            self._library.destroy(self._handle)
            self._handle = None

    # --- SimulatedDevice ---

    @property
    def cycle(self) -> int:
        return self._library.cycle(self._open())

    def step(self, cycles: int) -> None:
        handle = self._open()
        while cycles > SLICE_CYCLES:
            self._library.step(handle, SLICE_CYCLES)
            cycles -= SLICE_CYCLES
            if self.progress:
                self.progress(self.cycle)
        self._library.step(handle, max(cycles, 0))

    def retirements(self) -> list[Retirement]:
        handle = self._open()
        count = self._library.retirement_count(handle)
        if not count:
            return []
        address = self._library.retirements(handle)
        raw = np.frombuffer(ctypes.string_at(address, count * _RETIREMENT.itemsize), dtype=_RETIREMENT)
        self._library.clear_retirements(handle)
        return [Retirement(*row) for row in raw.tolist()]

    def activity(self) -> Activity | None:
        handle = self._open()
        found = []
        for engine in Engine:
            size = self._library.activity_size(handle, engine)
            raw = ctypes.string_at(self._library.activity(handle, engine), size * 8) if size else b""
            found.append(np.frombuffer(raw, np.uint64).reshape(-1, len(Cause)))
        self._library.clear_activity(handle)
        return join_activity(found)

    def counters(self) -> dict[str, int]:
        handle = self._open()
        return {name: self._library.counter(handle, index) for index, name in enumerate(COUNTERS)}

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *exception: typing.Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
