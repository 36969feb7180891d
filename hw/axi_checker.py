"""Rules of AXI4, as hardware that hangs on a bus in any simulator."""

import enum

from amaranth.hdl import Assert, Cat, Format, Module, Mux, Signal
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import CLIENT_BITS, Axi4Signature
from hw.spec.config import NpuConfig

BURSTS = 64
"""Bursts that the checker can follow, for each ID in reads, for all together in writes."""


class AxiRule(enum.IntEnum):
    """What can be broken; bit numbers of ``AxiChecker.broken``."""

    AR_STABLE = 0
    """A channel's VALID and payload stay until READY."""
    AW_STABLE = 1
    W_STABLE = 2
    R_STABLE = 3
    B_STABLE = 4
    AR_BURST = 5
    """A burst is INCR, of full-width beats, aligned, inside 4 KiB, no longer than the configuration's bursts."""
    AW_BURST = 6
    W_BEFORE_AW = 7
    """W is not offered before its AW has been."""
    W_LAST = 8
    """WLAST comes with the last beat of the burst, and only then."""
    R_UNASKED = 9
    """No R beat without an open read burst of its ID."""
    R_LAST = 10
    B_UNASKED = 11
    """No B before the AW and the last W of a burst of its ID have been taken."""
    TOO_MANY = 12
    """More bursts open than the checker can follow."""


class AxiChecker(wiring.Component):
    """Watches a bus. ``broken`` has a bit for each ``AxiRule``, which stays once set, from the cycle after the offence.

    With ``assertions`` an ``Assert`` fails too, which ends a simulation at once.
    """

    broken: Signal

    def __init__(self, config: NpuConfig, *, assertions: bool = False):
        members = {name: In(member.shape) for name, member in Axi4Signature(config).members.items()}
        super().__init__(members | {"broken": Out(len(AxiRule))})
        self._config = config
        self._assertions = assertions

    def watch(self, m: Module, axi: wiring.PureInterface) -> None:
        """Connect every signal of the checker to those of ``axi``."""
        m.d.comb += [getattr(self, name).eq(getattr(axi, name)) for name in Axi4Signature(self._config).members]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        broken = Signal(len(AxiRule))
        m.d.sync += self.broken.eq(self.broken | broken)
        self._stability(m, broken)
        self._bursts(m, broken)
        too_many_writes = Signal()
        self._writes(m, broken, too_many_writes)
        self._reads(m, broken, too_many_writes)
        if self._assertions:
            m.d.sync += Assert(self.broken == 0, Format("AXI rules broken: {:013b}", self.broken))
        return m

    def _stability(self, m: Module, broken: Signal) -> None:
        for rule, prefix, payload in (
            (AxiRule.AR_STABLE, "ar", ("id", "addr", "len", "size", "burst")),
            (AxiRule.AW_STABLE, "aw", ("id", "addr", "len", "size", "burst")),
            (AxiRule.W_STABLE, "w", ("data", "strb", "last")),
            (AxiRule.R_STABLE, "r", ("id", "data", "resp", "last")),
            (AxiRule.B_STABLE, "b", ("id", "resp")),
        ):
            now = Cat(getattr(self, prefix + field) for field in payload)
            before = Signal(len(now), name=f"{prefix}_before")
            held = Signal(name=f"{prefix}_held")
            valid, ready = getattr(self, f"{prefix}valid"), getattr(self, f"{prefix}ready")
            m.d.sync += [before.eq(now), held.eq(valid & ~ready)]
            m.d.comb += broken[rule].eq(held & (~valid | (now != before)))

    def _bursts(self, m: Module, broken: Signal) -> None:
        config = self._config
        for rule, prefix in ((AxiRule.AR_BURST, "ar"), (AxiRule.AW_BURST, "aw")):
            address, length = getattr(self, f"{prefix}addr"), getattr(self, f"{prefix}len")
            legal = (
                (getattr(self, f"{prefix}burst") == 1)
                & (getattr(self, f"{prefix}size") == config.bus_bytes.bit_length() - 1)
                & (address & (config.bus_bytes - 1) == 0)
                & (length < config.dma.burst_beats)
                & ((address & 4095) + (length + 1) * config.bus_bytes <= 4096)
            )
            m.d.comb += broken[rule].eq(getattr(self, f"{prefix}valid") & ~legal)

    def _reads(self, m: Module, broken: Signal, too_many_writes: Signal) -> None:
        unasked, wrong_last, too_many = [], [], []
        for tag in range(1 << CLIENT_BITS):
            m.submodules[f"lengths_{tag}"] = lengths = fifo.SyncFIFO(width=8, depth=BURSTS)
            beat = Signal(8, name=f"beat_{tag}")
            asked = Signal(name=f"asked_{tag}")
            offered = Signal(name=f"offered_{tag}")
            last = Signal(name=f"last_{tag}")
            m.d.comb += [
                asked.eq(self.arvalid & self.arready & (self.arid == tag)),
                offered.eq(self.rvalid & (self.rid == tag)),
                last.eq(beat == lengths.r_data),
                lengths.w_en.eq(asked),
                lengths.w_data.eq(self.arlen),
                lengths.r_en.eq(offered & self.rready & last),
            ]
            with m.If(offered & self.rready):
                m.d.sync += beat.eq(Mux(last, 0, beat + 1))
            unasked.append(offered & ~lengths.r_rdy)
            wrong_last.append(offered & lengths.r_rdy & (last != self.rlast))
            too_many.append(asked & ~lengths.w_rdy)
        m.d.comb += broken[AxiRule.R_UNASKED].eq(Cat(unasked).any())
        m.d.comb += broken[AxiRule.R_LAST].eq(Cat(wrong_last).any())
        m.d.comb += broken[AxiRule.TOO_MANY].eq(Cat(too_many).any() | too_many_writes)

    def _writes(self, m: Module, broken: Signal, too_many: Signal) -> None:
        # Bursts enter when their AW is first offered, except one whose only beat passes in that very cycle.
        burst = data.StructLayout({"length": 8, "id": CLIENT_BITS})
        m.submodules.writes = writes = fifo.SyncFIFO(width=burst.size, depth=BURSTS)
        offered_before = Signal()
        begins = Signal()
        offered = Signal(burst)
        current = Signal(burst)
        known = Signal()
        beat = Signal(8)
        last = Signal()
        taken = Signal()
        ends = Signal()
        m.d.sync += offered_before.eq(self.awvalid & ~self.awready)
        m.d.comb += [
            begins.eq(self.awvalid & ~offered_before),
            offered.length.eq(self.awlen),
            offered.id.eq(self.awid),
            known.eq(writes.r_rdy | begins),
            current.eq(Mux(writes.r_rdy, writes.r_data, offered)),
            last.eq(beat == current.length),
            taken.eq(self.wvalid & self.wready & known),
            ends.eq(taken & last),
            writes.r_en.eq(ends),
            writes.w_en.eq(begins & ~(ends & ~writes.r_rdy)),
            writes.w_data.eq(offered),
            too_many.eq(writes.w_en & ~writes.w_rdy),
            broken[AxiRule.W_BEFORE_AW].eq(self.wvalid & ~known),
            broken[AxiRule.W_LAST].eq(self.wvalid & known & (last != self.wlast)),
        ]
        with m.If(taken):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))

        unasked = []
        for tag in range(1 << CLIENT_BITS):
            addresses = Signal(range(2 * BURSTS), name=f"addresses_{tag}")
            bodies = Signal(range(2 * BURSTS), name=f"bodies_{tag}")
            answered = Signal(name=f"answered_{tag}")
            offers = Signal(name=f"offers_{tag}")
            m.d.comb += [
                offers.eq(self.bvalid & (self.bid == tag)),
                answered.eq(offers & self.bready),
            ]
            m.d.sync += [
                addresses.eq(addresses + (self.awvalid & self.awready & (self.awid == tag)) - answered),
                bodies.eq(bodies + (ends & (current.id == tag)) - answered),
            ]
            unasked.append(offers & ((addresses == 0) | (bodies == 0)))
        m.d.comb += broken[AxiRule.B_UNASKED].eq(Cat(unasked).any())
