"""Engines that run the NPU's gateware on its DRAM, each a ``sw.device.SimulatedDevice``.

| engine | what it is |
|---|---|
| `rtl` | Verilog of the gateware, compiled by Verilator; built on first use and cached |
| `amaranth` | Amaranth's own simulator; slow, needs no compiler |

Both run ``sim.system.System`` and serve its memory alike, so they agree on every cycle. A register access takes the
same cycles in both: read: the address is offered from the first cycle until taken, ``rready`` is high throughout, and
the access ends with the cycle in which ``rvalid`` is high. Write: address and data are offered together from the
first cycle until each is taken, ``bready`` is high throughout, and the access ends with the cycle of ``bvalid``.
"""

import typing

import numpy as np
from numpy.typing import NDArray

from hw.spec.config import NpuConfig
from sw.device import Activity, SimulatedDevice

ENGINES = ("rtl", "amaranth")
REGISTER_CYCLES_MAX = 10000
"""A register access that takes longer is an error."""


class EngineError(RuntimeError):
    """An engine that cannot run; the message is one line fit for the user."""


def open_device(
    engine: str, config: NpuConfig, *, report: typing.Callable[[str], None] | None = None
) -> SimulatedDevice:
    """A simulated NPU. ``report`` is told, in one line, of work that takes long.

    Raises
    ------
    EngineError
        For an unknown engine, or one whose tools are missing or fail.
    """
    if engine == "rtl":
        from sim.engines.rtl_engine import RtlDevice

        return RtlDevice(config, report=report)
    if engine == "amaranth":
        from sim.engines.amaranth_engine import AmaranthDevice

        return AmaranthDevice(config)
    raise EngineError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")


def check_register(offset: int, value: int = 0) -> None:
    """Raises ``ValueError`` for what no register access can be."""
    if offset % 4 or not 0 <= offset < 1 << 12:
        raise ValueError(f"register offset must be a multiple of 4 below 0x1000, not {offset:#x}")
    if not 0 <= value < 1 << 32:
        raise ValueError(f"register value must fit 32 bits, not {value:#x}")


def check_response(kind: str, offset: int, response: int) -> None:
    """Raises ``EngineError`` for a register access that was refused, or that nobody answered (negative)."""
    if response < 0:
        raise EngineError(f"no answer to the {kind} of register {offset:#x}")
    if response > 0:
        raise EngineError(f"{kind} of register {offset:#x} was answered by error {response}")


def join_activity(engines: typing.Sequence[NDArray[np.uint64]]) -> Activity | None:
    """One array of each engine's, which are as long as the engine's last command; None if no engine has any."""
    rows = max(map(len, engines))
    if not rows:
        return None
    return np.stack([np.pad(cycles, ((0, rows - len(cycles)), (0, 0))) for cycles in engines])
