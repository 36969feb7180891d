"""What the engines run: an initiator (the NPU) on its DRAM. The bytes themselves are outside, behind ``memory``."""

import typing

from amaranth.hdl import Module, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import Axi4LiteSignature
from hw.spec.causes import Cause
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS, JOB_INDEX_BITS
from sim.dram import COUNTER_BITS, COUNTERS, Dram
from sim.memory import MemoryPortSignature

REGISTER_ADDRESS_BITS = 12
PROBES = 3
"""Of each kind: one an engine."""
RETIRE_FIELDS = {"valid": 1, "index": INDEX_BITS, "job_index": JOB_INDEX_BITS}
ACTIVITY_FIELDS = {"cause": Shape.cast(Cause).width, "running": 1, "command": INDEX_BITS}


class System(wiring.Component):
    """``initiator`` has a port ``axi``, and whichever it likes of ``registers`` (AXI4-Lite of 12 address bits),
    ``interrupt``, ``retire_0`` to ``retire_2`` (``RETIRE_FIELDS``) and ``activity_0`` to ``activity_2``
    (``ACTIVITY_FIELDS``). All but ``axi`` pass through; the interrupt as ``interrupt_request``, since C++ of the name
    ``interrupt`` is mangled.

    Attributes
    ----------
    has_registers, has_interrupt, retire_ports, activity_ports
        What the initiator has.
    """

    def __init__(self, config: NpuConfig, initiator: wiring.Component):
        members = initiator.signature.members
        has_registers = "registers" in members
        has_interrupt = "interrupt" in members
        retire_ports = [engine for engine in range(PROBES) if f"retire_{engine}" in members]
        activity_ports = [engine for engine in range(PROBES) if f"activity_{engine}" in members]
        probes = [
            *((f"retire_{engine}", field, width) for engine in retire_ports for field, width in RETIRE_FIELDS.items()),
            *(
                (f"activity_{engine}", field, width)
                for engine in activity_ports
                for field, width in ACTIVITY_FIELDS.items()
            ),
        ]
        ports: dict[str, typing.Any] = {
            "memory": Out(MemoryPortSignature(config)),
            **{name: Out(COUNTER_BITS) for name in COUNTERS},
        }
        if has_registers:
            ports["registers"] = In(Axi4LiteSignature(REGISTER_ADDRESS_BITS))
        if has_interrupt:
            ports["interrupt_request"] = Out(1)
        ports |= {f"{probe}_{field}": Out(width) for probe, field, width in probes}
        super().__init__(ports)
        self.config = config
        self.initiator = initiator
        self.has_registers = has_registers
        self.has_interrupt = has_interrupt
        self.retire_ports = retire_ports
        self.activity_ports = activity_ports
        self._probes = probes

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.initiator = initiator = self.initiator
        m.submodules.dram = dram = Dram(self.config)
        wiring.connect(m, initiator.axi, dram.axi)
        wiring.connect(m, dram.memory, wiring.flipped(self.memory))
        m.d.comb += [getattr(self, name).eq(getattr(dram, name)) for name in COUNTERS]
        if self.has_registers:
            wiring.connect(m, wiring.flipped(self.registers), initiator.registers)
        if self.has_interrupt:
            m.d.comb += self.interrupt_request.eq(initiator.interrupt)
        for probe, field, _ in self._probes:
            m.d.comb += getattr(self, f"{probe}_{field}").eq(getattr(getattr(initiator, probe), field))
        return m
