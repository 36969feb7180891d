"""The times of DRAM accesses, as gateware: banks, rows, data bus, refresh; or latency and bandwidth."""

import functools
import operator

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hw.spec.config import NpuConfig
from sim.dram_timing import FRACTION_BITS, DramParameters

TIME_BITS = 48
BEAT_BITS = 9


def _later(m: Module, name: str, first: Value, second: Value) -> Signal:
    """The later of two times."""
    result = Signal(max(len(first), len(second)), name=name)
    m.d.comb += result.eq(Mux(first > second, first, second))
    return result


def _units(cycle: Value) -> Value:
    return cycle << FRACTION_BITS


def _ceil(units: Value) -> Value:
    return (units + ((1 << FRACTION_BITS) - 1))[FRACTION_BITS:]


class AccessTiming(wiring.Component):
    """When the data of each access passes; combinational from ``valid`` to ``leave`` and ``response``.

    ``address`` is a byte address, ``beats`` matters to the ideal memory only. Never raise ``refresh`` with ``valid``.
    """

    def __init__(self, config: NpuConfig):
        self._parameters = DramParameters.of(config)
        super().__init__(
            {
                "now": In(TIME_BITS),
                "valid": In(1),
                "write": In(1),
                "address": In(config.address_bits),
                "beats": In(BEAT_BITS),
                "refresh": In(1),
                "leave": Out(TIME_BITS),  # the access leaves the queue
                "response": Out(TIME_BITS),  # first cycle of its first read beat, or of its write response
                "hit": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self._parameters.banked:
            self._banked(m)
        else:
            self._ideal(m)
        return m

    def _ideal(self, m: Module) -> None:
        p = self._parameters
        bus_free = Signal(TIME_BITS + FRACTION_BITS)
        start = _later(m, "start", _units(self.now), bus_free)
        end = Signal.like(bus_free)
        m.d.comb += [
            end.eq(start + self.beats * p.duration),
            self.leave.eq(_ceil(end)),
            self.response.eq(start[FRACTION_BITS:] + p.latency),
            self.hit.eq(1),
        ]
        with m.If(self.valid):
            m.d.sync += bus_free.eq(end)

    def _banked(self, m: Module) -> None:
        p = self._parameters
        row = self.address[p.row_shift + p.bank_bits :]
        bank = Signal(p.bank_bits)
        folds = [row[low : low + p.bank_bits] for low in range(0, len(row), p.bank_bits)]
        m.d.comb += bank.eq(functools.reduce(operator.xor, folds, self.address[p.bank_shift :][: p.bank_bits]))

        layout = data.StructLayout({"row": len(row), "column_from": TIME_BITS, "precharge_from": TIME_BITS})
        m.submodules.banks = banks = memory.Memory(shape=layout, depth=1 << p.bank_bits, init=[])
        read = banks.read_port(domain="comb")
        write = banks.write_port()
        was = read.data
        open_rows = Signal(1 << p.bank_bits)
        is_open = Signal()
        m.d.comb += [
            read.addr.eq(bank),
            is_open.eq(open_rows.bit_select(bank, 1)),
            self.hit.eq(is_open & (was.row == row)),
        ]

        refreshed = Signal(TIME_BITS)
        activate_from = Signal(TIME_BITS)
        bus_free = Signal(TIME_BITS + FRACTION_BITS)
        write_end = Signal(TIME_BITS)
        banks_quiet = Signal(TIME_BITS)
        writing = Signal()

        # Row: precharge, activate.
        precharge = _later(m, "precharge", self.now, was.precharge_from)
        opened_late = _later(m, "opened_late", self.now, refreshed)
        closed = Mux(is_open, precharge + p.rp, opened_late)
        activate = _later(m, "activate", closed, activate_from)
        column_from = Signal(TIME_BITS)
        precharge_from = Signal(TIME_BITS)
        with m.If(self.hit):
            m.d.comb += [column_from.eq(was.column_from), precharge_from.eq(was.precharge_from)]
        with m.Else():
            m.d.comb += [column_from.eq(activate + p.rcd), precharge_from.eq(activate + p.ras)]

        # Column: the command, then the data bus.
        column = _later(m, "column", self.now, column_from)
        turned = _later(m, "turned", column, Mux(writing, write_end + p.wtr, 0))
        ready = Mux(self.write, column + p.wl, turned + p.rl)
        free = bus_free + Mux(self.write & ~writing, Const(1 << FRACTION_BITS), 0)
        start = _later(m, "start", _units(ready), free)
        after = Signal.like(bus_free)
        end = Signal(TIME_BITS)
        m.d.comb += [after.eq(start + p.duration), end.eq(_ceil(after))]
        recovered = Mux(self.write, end + p.wr, (_ceil(start) + p.rtp - p.rl)[:TIME_BITS])
        next_precharge = _later(m, "next_precharge", precharge_from, recovered)

        m.d.comb += [
            self.leave.eq(end),
            self.response.eq(end + p.latency),
            write.addr.eq(bank),
            write.en.eq(self.valid),
            write.data.row.eq(row),
            write.data.column_from.eq(column_from),
            write.data.precharge_from.eq(next_precharge),
        ]
        with m.If(self.valid):
            m.d.sync += [
                open_rows.bit_select(bank, 1).eq(1),
                bus_free.eq(after),
                writing.eq(self.write),
                banks_quiet.eq(Mux(next_precharge > banks_quiet, next_precharge, banks_quiet)),
            ]
            with m.If(self.write):
                m.d.sync += write_end.eq(end)
            with m.If(~self.hit):
                m.d.sync += activate_from.eq(activate + p.rrd)
        with m.If(self.refresh):
            m.d.sync += [
                open_rows.eq(0),
                refreshed.eq(Mux(banks_quiet > self.now, banks_quiet, self.now) + (p.rp + p.rfc)),
            ]
