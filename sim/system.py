"""What the engines run: an initiator (the NPU) on its DRAM. The bytes themselves are outside, behind ``memory``."""

import typing

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import Axi4LiteSignature
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS, JOB_INDEX_BITS
from sim.dram import COUNTER_BITS, COUNTERS, Dram
from sim.memory import MemoryPortSignature

REGISTER_ADDRESS_BITS = 12
RETIRE_PORTS = 3
RETIRE_FIELDS = {"valid": 1, "index": INDEX_BITS, "job_index": JOB_INDEX_BITS}


class System(wiring.Component):
    """``initiator`` has a port ``axi``, and whichever it likes of ``registers`` (AXI4-Lite of 12 address bits),
    ``interrupt`` and ``retire_0`` to ``retire_2`` (``valid``, ``index``, ``job_index``). All but ``axi`` pass through;
    the interrupt as ``interrupt_request``, since C++ of the name ``interrupt`` is mangled.

    Attributes
    ----------
    has_registers, has_interrupt, retire_ports
        What the initiator has.
    """

    def __init__(self, config: NpuConfig, initiator: wiring.Component):
        members = initiator.signature.members
        has_registers = "registers" in members
        has_interrupt = "interrupt" in members
        retire_ports = [engine for engine in range(RETIRE_PORTS) if f"retire_{engine}" in members]
        ports: dict[str, typing.Any] = {
            "memory": Out(MemoryPortSignature(config)),
            **{name: Out(COUNTER_BITS) for name in COUNTERS},
        }
        if has_registers:
            ports["registers"] = In(Axi4LiteSignature(REGISTER_ADDRESS_BITS))
        if has_interrupt:
            ports["interrupt_request"] = Out(1)
        for engine in retire_ports:
            for field, width in RETIRE_FIELDS.items():
                ports[f"retire_{engine}_{field}"] = Out(width)
        super().__init__(ports)
        self.config = config
        self.initiator = initiator
        self.has_registers = has_registers
        self.has_interrupt = has_interrupt
        self.retire_ports = retire_ports

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
        for engine in self.retire_ports:
            retire = getattr(initiator, f"retire_{engine}")
            for field in RETIRE_FIELDS:
                m.d.comb += getattr(self, f"retire_{engine}_{field}").eq(getattr(retire, field))
        return m
