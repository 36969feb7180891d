"""The host's registers on AXI4-Lite, generated from the register map."""

import dataclasses

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import Axi4LiteSignature
from hw.spec.config import NpuConfig
from hw.spec.register_map import ADDRESS_BITS, REGISTERS, Access, Field

OKAY, SLVERR = 0, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Port:
    """A field's way into the hardware. A pair of registers ``X_LOW`` and ``X_HIGH`` has one port ``x``, of which a
    field is the bits from ``start`` on."""

    name: str
    start: int
    field: Field

    @property
    def input(self) -> bool:
        """Whether the hardware drives it."""
        return self.field.access in (Access.READ, Access.WRITE_ONE_TO_CLEAR)


def _ports() -> dict[tuple[str, str], Port]:
    ports = {}
    for register in REGISTERS.values():
        name, start = register.name, 0
        if name.endswith("_LOW") and name[:-4] + "_HIGH" in REGISTERS:
            name = name[:-4]
        elif name.endswith("_HIGH") and name[:-5] + "_LOW" in REGISTERS:
            name, start = name[:-5], 32
        for field in register.fields.values():
            if field.access is not Access.CONSTANT:
                full = name if field.name == "VALUE" else f"{name}_{field.name}"
                ports[register.name, field.name] = Port(name=full.lower(), start=start, field=field)
    return ports


PORTS = _ports()
"""Port of each field that has one, by names of register and field."""
CONFIG_HASH_PORT = PORTS["CONFIG_HASH", "VALUE"].name


class RegisterFile(wiring.Component):
    """AXI4-Lite subordinate; every field of the map is a port named after it (lower case, ``VALUE`` left out).

    Timing and responses: ``docs/timing/registers.md``. CONFIG_HASH is the configuration's and has no port.
    A write-one-to-clear field's port is the pulse that sets it.

    Attributes
    ----------
    bus
        The host's side.
    interrupt
        High while any enabled bit of INTERRUPT_STATUS is set, one cycle later.
    """

    bus: wiring.PureInterface
    interrupt: Signal

    def __init__(self, config: NpuConfig):
        widths: dict[str, tuple[int, bool]] = {}
        for port in PORTS.values():
            width, _ = widths.get(port.name, (0, False))
            widths[port.name] = max(width, port.start + port.field.width), port.input
        del widths[CONFIG_HASH_PORT]
        members = {name: In(width) if is_input else Out(width) for name, (width, is_input) in widths.items()}
        super().__init__({"bus": In(Axi4LiteSignature(ADDRESS_BITS)), "interrupt": Out(1), **members})
        self._config = config

    def elaborate(self, platform) -> Module:
        m = Module()
        bus = self.bus

        # --- storage: what the host wrote is the port itself; sticky bits have a register of their own
        storage = {}
        for port in PORTS.values():
            if port.field.access is Access.WRITE_ONE_TO_CLEAR:
                storage[port.name] = Signal(port.field.width, name=f"{port.name}_sticky")
            elif port.name != CONFIG_HASH_PORT:
                storage[port.name] = getattr(self, port.name)
            if port.field.access is Access.PULSE:
                m.d.sync += storage[port.name].eq(0)

        def bits(register_name: str, field: Field):
            """The value that the host reads."""
            if field.access is Access.CONSTANT:
                return field.reset
            port = PORTS[register_name, field.name]
            if port.name == CONFIG_HASH_PORT:
                return self._config.hash
            return storage[port.name][port.start : port.start + field.width]

        # --- write channel: address and data wait for each other in a register each
        address, data, strobe = Signal(ADDRESS_BITS - 2), Signal(32), Signal(4)
        address_held, data_held, perform = Signal(), Signal(), Signal()
        m.d.comb += [
            bus.awready.eq(~address_held),
            bus.wready.eq(~data_held),
            perform.eq(address_held & data_held & (~bus.bvalid | bus.bready)),
        ]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [address.eq(bus.awaddr[2:]), address_held.eq(1)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [data.eq(bus.wdata), strobe.eq(bus.wstrb), data_held.eq(1)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(perform):
            m.d.sync += [address_held.eq(0), data_held.eq(0), bus.bvalid.eq(1), bus.bresp.eq(SLVERR)]
            with m.Switch(address):
                for register in REGISTERS.values():
                    if register.writable:
                        with m.Case(register.offset >> 2):
                            m.d.sync += bus.bresp.eq(OKAY)
                            for field in register.fields.values():
                                if field.access.writable:
                                    port = PORTS[register.name, field.name]
                                    self._write(m, field, storage[port.name][port.start :], data, strobe)
        for port in PORTS.values():
            if port.field.access is Access.WRITE_ONE_TO_CLEAR:
                with m.If(getattr(self, port.name)):  # after the write, so that setting wins
                    m.d.sync += storage[port.name].eq(1)

        # --- read channel
        read_address, read_held, sample = Signal(ADDRESS_BITS - 2), Signal(), Signal()
        m.d.comb += [bus.arready.eq(~read_held), sample.eq(read_held & (~bus.rvalid | bus.rready))]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [read_address.eq(bus.araddr[2:]), read_held.eq(1)]
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(sample):
            m.d.sync += [read_held.eq(0), bus.rvalid.eq(1), bus.rdata.eq(0), bus.rresp.eq(SLVERR)]
            with m.Switch(read_address):
                for register in REGISTERS.values():
                    with m.Case(register.offset >> 2):
                        m.d.sync += bus.rresp.eq(OKAY)
                        for field in register.fields.values():
                            if field.access is not Access.PULSE:
                                word = bus.rdata[field.low : field.low + field.width]
                                m.d.sync += word.eq(bits(register.name, field))

        # --- interrupt
        status, enable = REGISTERS["INTERRUPT_STATUS"], REGISTERS["INTERRUPT_ENABLE"]
        asking = [
            bits(status.name, status.fields[name]) & bits(enable.name, field) for name, field in enable.fields.items()
        ]
        m.d.sync += self.interrupt.eq(Cat(*asking).any())
        return m

    @staticmethod
    def _write(m: Module, field: Field, target, data: Signal, strobe: Signal) -> None:
        """Write the bytes of ``field`` whose strobe is set into ``target``, whose bit 0 is the field's."""
        for lane in range(4):
            low, high = max(field.low, 8 * lane), min(field.low + field.width, 8 * lane + 8)
            if low < high:
                part, value = target[low - field.low : high - field.low], data[low:high]
                with m.If(strobe[lane]):
                    m.d.sync += part.eq(part & ~value if field.access is Access.WRITE_ONE_TO_CLEAR else value)
