"""The memory port's bursts as AXI4."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import Axi4Signature, MemoryReadSignature, MemoryWriteSignature
from hw.spec.config import NpuConfig

BURST_INCR = 1


class AxiAdapter(wiring.Component):
    """Passes requests and data between a memory interface and AXI4, each in its own cycle; the AXI ID is the client.

    W beats are offered from the cycle in which their AW is first offered, and do not wait for it to be taken. B is
    always taken. An answer of SLVERR or DECERR is ``error``. Details: ``docs/timing/axi.md``.
    """

    read: wiring.PureInterface
    write: wiring.PureInterface
    axi: wiring.PureInterface

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "read": In(MemoryReadSignature(config)),
                "write": In(MemoryWriteSignature(config)),
                "axi": Out(Axi4Signature(config)),
            }
        )
        self._config = config

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, read, write = self.axi, self.read, self.write
        size = self._config.bus_bytes.bit_length() - 1

        m.d.comb += [
            axi.arvalid.eq(read.request.valid),
            read.request.ready.eq(axi.arready),
            axi.arid.eq(read.request.payload.client),
            axi.araddr.eq(read.request.payload.address),
            axi.arlen.eq(read.request.payload.beats - 1),
            axi.arsize.eq(size),
            axi.arburst.eq(BURST_INCR),
            read.data.valid.eq(axi.rvalid),
            axi.rready.eq(read.data.ready),
            read.data.payload.data.eq(axi.rdata),
            read.data.payload.last.eq(axi.rlast),
            read.data.payload.error.eq(axi.rresp[1]),
            read.data.payload.client.eq(axi.rid),
            axi.awvalid.eq(write.request.valid),
            write.request.ready.eq(axi.awready),
            axi.awid.eq(write.request.payload.client),
            axi.awaddr.eq(write.request.payload.address),
            axi.awlen.eq(write.request.payload.beats - 1),
            axi.awsize.eq(size),
            axi.awburst.eq(BURST_INCR),
            axi.bready.eq(1),
            write.done.valid.eq(axi.bvalid),
            write.done.payload.error.eq(axi.bresp[1]),
            write.done.payload.client.eq(axi.bid),
        ]

        # Bursts whose AW has been taken less those whose last W has: -1 while a whole burst of W ran ahead of its AW.
        ahead = Signal(signed(9))
        begun = Signal()  # the AW of the burst that is next on W has at least been offered
        m.d.comb += [
            begun.eq((ahead > 0) | ((ahead == 0) & axi.awvalid)),
            axi.wvalid.eq(write.data.valid & begun),
            write.data.ready.eq(axi.wready & begun),
            axi.wdata.eq(write.data.payload.data),
            axi.wstrb.eq(write.data.payload.strobe),
            axi.wlast.eq(write.data.payload.last),
        ]
        m.d.sync += ahead.eq(ahead + (axi.awvalid & axi.awready) - (axi.wvalid & axi.wready & axi.wlast))
        return m
