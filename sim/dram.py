"""External memory as gateware: the timing of ``docs/timing/dram.md`` between an AXI port and a memory of bytes.

```
 AR ─► ReadSplitter ───┐              ┌─► ReadReturn ─► R
                       ├─► turn ─► enter
 AW, W ─► WriteCollector              └─► WriteResponse ─► B
```

Nothing here holds data: a write beat goes to the bytes when it is accepted, a read beat is fetched when it is due.
What passes along are *accesses*, whose times ``AccessTiming`` works out in the cycle in which they enter.
"""

import typing

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import CLIENT_BITS, Axi4Signature
from hw.spec.config import NpuConfig
from sim.dram_access import BEAT_BITS, TIME_BITS, AccessTiming
from sim.dram_timing import BURSTS, DramParameters
from sim.memory import MemoryPortSignature, word_bits

COUNTER_BITS = 48
COUNTERS = ("row_hits", "row_misses", "refreshes", "bytes_read", "bytes_written")
RESPONSE_ERROR = 2  # SLVERR


def _burst(config: NpuConfig) -> data.StructLayout:
    return data.StructLayout({"word": word_bits(config), "beats": BEAT_BITS, "id": CLIENT_BITS, "error": 1})


def _access(config: NpuConfig) -> data.StructLayout:
    """``beats`` beats from ``word``, the ``last`` of their burst or not."""
    return data.StructLayout({"word": word_bits(config), "beats": BEAT_BITS, "last": 1, "id": CLIENT_BITS, "error": 1})


def _timed_access(config: NpuConfig) -> data.StructLayout:
    return data.StructLayout({"access": _access(config), "time": TIME_BITS})


def _queue(m: Module, name: str, layout: data.StructLayout, depth: int) -> tuple[typing.Any, stream.Interface]:
    """Input and output of a queue; an entry written in a cycle is there in the next."""
    queue = fifo.SyncFIFO(width=layout.size, depth=depth)
    m.submodules[name] = queue
    source = stream.Signature(layout).flip().create(path=(name, "in"))
    sink = stream.Signature(layout).create(path=(name, "out"))
    m.d.comb += [
        queue.w_data.eq(source.payload),
        queue.w_en.eq(source.valid),
        source.ready.eq(queue.w_rdy),
        sink.payload.eq(queue.r_data),
        sink.valid.eq(queue.r_rdy),
        queue.r_en.eq(sink.ready),
    ]
    return source, sink


def _room(parameters: DramParameters, word: Value) -> Value:
    """Beats from a word to the end of its access."""
    if not parameters.banked:
        return Const(parameters.beats, BEAT_BITS)
    return parameters.beats - word[: parameters.beats.bit_length() - 1]


class ReadSplitter(wiring.Component):
    """Cuts read bursts into accesses, one a cycle; up to ``BURSTS`` bursts wait here."""

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(_burst(config))),
                "access": Out(stream.Signature(_access(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        parameters = DramParameters.of(self._config)
        source, burst = _queue(m, "bursts", _burst(self._config), BURSTS)
        wiring.connect(m, wiring.flipped(self.request), source)

        begun = Signal()
        next_word = Signal(word_bits(self._config))
        next_left = Signal(BEAT_BITS)
        access = self.access.payload
        left = Signal(BEAT_BITS)
        room = Signal(BEAT_BITS)
        m.d.comb += [
            access.word.eq(Mux(begun, next_word, burst.payload.word)),
            left.eq(Mux(begun, next_left, burst.payload.beats)),
            room.eq(_room(parameters, access.word)),
            access.last.eq(left <= room),
            access.beats.eq(Mux(access.last, left, room)),
            access.id.eq(burst.payload.id),
            access.error.eq(burst.payload.error),
            self.access.valid.eq(burst.valid),
            burst.ready.eq(self.access.ready & access.last),
        ]
        with m.If(self.access.valid & self.access.ready):
            m.d.sync += [
                begun.eq(~access.last),
                next_word.eq(access.word + access.beats),
                next_left.eq(left - access.beats),
            ]
        return m


class WriteCollector(wiring.Component):
    """Takes write data into the memory, a beat a cycle, and shows each access whose data has come.

    A beat is taken once its burst has been, while fewer than ``write_buffer`` accesses wait.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "request": In(stream.Signature(_burst(config))),
                "valid": In(1),  # a beat
                "ready": Out(1),
                "write_enable": Out(1),  # the beat taken goes to the memory
                "write_address": Out(word_bits(config)),
                "access": Out(stream.Signature(_access(config))),
                "batch": Out(1),  # a batch of accesses waits
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        parameters = DramParameters.of(self._config)
        source, burst = _queue(m, "bursts", _burst(self._config), BURSTS)
        wiring.connect(m, wiring.flipped(self.request), source)
        done, access = _queue(m, "accesses", _access(self._config), parameters.write_buffer)
        wiring.connect(m, access, wiring.flipped(self.access))

        index = Signal(BEAT_BITS)
        first_word = Signal(word_bits(self._config))
        beats = Signal(BEAT_BITS)  # of this access, before this beat
        word = Signal(word_bits(self._config))
        last = Signal()
        taken = Signal()
        m.d.comb += [
            self.ready.eq(burst.valid & done.ready),
            taken.eq(self.valid & self.ready),
            word.eq(burst.payload.word + index),
            last.eq(index + 1 == burst.payload.beats),
            burst.ready.eq(taken & last),
            self.write_enable.eq(taken & ~burst.payload.error),
            self.write_address.eq(word),
            done.payload.word.eq(Mux(beats == 0, word, first_word)),
            done.payload.beats.eq(beats + 1),
            done.payload.last.eq(last),
            done.payload.id.eq(burst.payload.id),
            done.payload.error.eq(burst.payload.error),
            done.valid.eq(taken & (last | (_room(parameters, word) == 1))),
        ]
        waiting = Signal(range(parameters.write_buffer + 1))
        m.d.comb += self.batch.eq(waiting >= parameters.batch)
        m.d.sync += waiting.eq(waiting + (done.valid & done.ready) - (access.valid & access.ready))
        with m.If(taken):
            m.d.sync += [index.eq(Mux(last, 0, index + 1)), beats.eq(Mux(done.valid, 0, beats + 1))]
            with m.If(beats == 0):
                m.d.sync += first_word.eq(word)
        return m


class ReadReturn(wiring.Component):
    """Fetches the beats of due accesses, one a cycle, and offers them; the memory holds the data meanwhile."""

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "access": In(stream.Signature(_timed_access(config))),
                "soon": In(TIME_BITS),  # the next cycle
                "fetch": Out(1),
                "read_enable": Out(1),
                "read_address": Out(word_bits(config)),
                "valid": Out(1),
                "ready": In(1),
                "id": Out(CLIENT_BITS),
                "last": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        access = self.access.payload.access
        index = Signal(BEAT_BITS)
        final = Signal()
        m.d.comb += [
            self.fetch.eq(self.access.valid & (self.access.payload.time <= self.soon) & (~self.valid | self.ready)),
            self.read_enable.eq(self.fetch & ~access.error),
            self.read_address.eq(access.word + index),
            final.eq(index + 1 == access.beats),
            self.access.ready.eq(self.fetch & final),
        ]
        with m.If(self.fetch):
            m.d.sync += [
                index.eq(Mux(final, 0, index + 1)),
                self.valid.eq(1),
                self.id.eq(access.id),
                self.last.eq(access.last & final),
                self.error.eq(access.error),
            ]
        with m.Elif(self.ready):
            m.d.sync += self.valid.eq(0)
        return m


class Dram(wiring.Component):
    """A DRAM and its controller as AXI4 subordinate; timing, order and limits are in ``docs/timing/dram.md``.

    Responses come in the order of requests in each direction, whatever the IDs. Bursts are INCR, of whole beats, and
    lie in one 4 KiB page. A burst beyond ``dram.bytes`` is answered by SLVERR and touches nothing; its read data mean
    nothing. Time begins with the first request after reset. Counters wrap at 2**48.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {
                "axi": In(Axi4Signature(config)),
                "memory": Out(MemoryPortSignature(config)),
                **{name: Out(COUNTER_BITS) for name in COUNTERS},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        p = DramParameters.of(config)
        axi = self.axi

        now = Signal(TIME_BITS)
        soon = Signal(TIME_BITS)
        started = Signal()
        m.d.comb += soon.eq(now + 1)
        with m.If((axi.arvalid & axi.arready) | (axi.awvalid & axi.awready)):
            m.d.sync += started.eq(1)
        with m.If(started):
            m.d.sync += now.eq(soon)

        m.submodules.splitter = splitter = ReadSplitter(config)
        m.submodules.collector = collector = WriteCollector(config)
        write_bursts = Signal(range(BURSTS + 1))
        begins, ends = axi.awvalid & axi.awready, axi.bvalid & axi.bready
        with m.If(begins & ~ends):
            m.d.sync += write_bursts.eq(write_bursts + 1)
        with m.Elif(~begins & ends):
            m.d.sync += write_bursts.eq(write_bursts - 1)
        m.d.comb += [
            *self._request(splitter.request.payload, axi.araddr, axi.arlen, axi.arid),
            splitter.request.valid.eq(axi.arvalid),
            axi.arready.eq(splitter.request.ready),
            *self._request(collector.request.payload, axi.awaddr, axi.awlen, axi.awid),
            axi.awready.eq(write_bursts != BURSTS),
            collector.request.valid.eq(begins),
            collector.valid.eq(axi.wvalid),
            axi.wready.eq(collector.ready),
            self.memory.write_enable.eq(collector.write_enable),
            self.memory.write_address.eq(collector.write_address),
            self.memory.write_data.eq(axi.wdata),
            self.memory.write_strobe.eq(axi.wstrb),
        ]

        refresh = Signal()
        if p.banked:
            next_refresh = Signal(TIME_BITS, init=p.refi)
            m.d.comb += refresh.eq(started & (now >= next_refresh))
            with m.If(refresh):
                m.d.sync += [next_refresh.eq(next_refresh + p.refi), self.refreshes.eq(self.refreshes + 1)]

        # One access a cycle enters, of the direction whose turn it is.
        leaving = fifo.SyncFIFO(width=TIME_BITS, depth=p.queue)
        m.submodules.leaving = leaving
        read_in, read_out = _queue(m, "returning", _timed_access(config), p.read_buffer)
        write_in, write_out = _queue(m, "responding", _timed_access(config), BURSTS)
        may_read = Signal()
        direction = Signal()  # 1 is write
        run = Signal(range(p.patience + 1))
        mine, other, enough, stay, turn, enters, writes = (
            Signal(name=name) for name in ("mine", "other", "enough", "stay", "turn", "enters", "writes")
        )
        m.d.comb += [
            may_read.eq(splitter.access.valid & read_in.ready),
            mine.eq(Mux(direction, collector.access.valid, may_read)),
            other.eq(Mux(direction, may_read, collector.access.valid)),
            enough.eq(direction | collector.batch | (run == p.patience)),
            stay.eq(mine & ~(other & (run >= p.batch) & enough)),
            turn.eq(other & ~stay),
            enters.eq((mine | other) & leaving.w_rdy & ~refresh),
            writes.eq(direction ^ turn),
        ]
        with m.If(enters & turn):
            m.d.sync += [direction.eq(~direction), run.eq(1)]
        with m.Elif(enters & (run != p.patience)):
            m.d.sync += run.eq(run + 1)

        m.submodules.timing = timing = AccessTiming(config)
        access = Signal(_access(config))
        m.d.comb += [
            access.eq(Mux(writes, collector.access.payload, splitter.access.payload)),
            splitter.access.ready.eq(enters & ~writes),
            collector.access.ready.eq(enters & writes),
            timing.now.eq(now),
            timing.valid.eq(enters),
            timing.write.eq(writes),
            timing.address.eq(access.word << (config.bus_bytes.bit_length() - 1)),
            timing.beats.eq(access.beats),
            timing.refresh.eq(refresh),
            leaving.w_data.eq(timing.leave),
            leaving.w_en.eq(enters),
            leaving.r_en.eq(leaving.r_data <= now),
            read_in.payload.access.eq(access),
            read_in.payload.time.eq(timing.response),
            read_in.valid.eq(enters & ~writes),
            write_in.payload.access.eq(access),
            write_in.payload.time.eq(timing.response),
            write_in.valid.eq(enters & writes & access.last),
        ]

        m.submodules.returns = returns = ReadReturn(config)
        wiring.connect(m, read_out, returns.access)
        m.d.comb += [
            returns.soon.eq(soon),
            self.memory.read_enable.eq(returns.read_enable),
            self.memory.read_address.eq(returns.read_address),
            axi.rdata.eq(self.memory.read_data),
            axi.rvalid.eq(returns.valid),
            axi.rid.eq(returns.id),
            axi.rlast.eq(returns.last),
            axi.rresp.eq(Mux(returns.error, RESPONSE_ERROR, 0)),
            returns.ready.eq(axi.rready),
        ]

        m.d.comb += write_out.ready.eq((write_out.payload.time <= soon) & (~axi.bvalid | axi.bready))
        with m.If(write_out.valid & write_out.ready):
            m.d.sync += [
                axi.bvalid.eq(1),
                axi.bid.eq(write_out.payload.access.id),
                axi.bresp.eq(Mux(write_out.payload.access.error, RESPONSE_ERROR, 0)),
            ]
        with m.Elif(axi.bready):
            m.d.sync += axi.bvalid.eq(0)

        if p.banked:
            with m.If(enters & timing.hit):
                m.d.sync += self.row_hits.eq(self.row_hits + 1)
            with m.If(enters & ~timing.hit):
                m.d.sync += self.row_misses.eq(self.row_misses + 1)
        with m.If(returns.fetch):
            m.d.sync += self.bytes_read.eq(self.bytes_read + config.bus_bytes)
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += self.bytes_written.eq(self.bytes_written + config.bus_bytes)
        return m

    def _request(self, burst: data.View, address: Value, length: Value, identifier: Value) -> list[object]:
        size_bits = (self._config.dram.bytes - 1).bit_length()
        return [
            burst.word.eq(address[self._config.bus_bytes.bit_length() - 1 :]),
            burst.beats.eq(length + 1),
            burst.id.eq(identifier),
            burst.error.eq(address[size_bits:].any()),
        ]
