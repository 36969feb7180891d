"""All rings and their cursors: three ports look up, take and commit in every cycle.

::

    port_k: ring, cursor ─► row of the ring ─► ready, fits, start ─► take ─► issue, offset, reserved of that row
            commit ──────► row of the ring ─► + advance ────────────► commit of that row
    configure ──────────────────────────────────────────────────────► place of a row; its counts to zero

Cursors lie in small memories, a row a ring, read asynchronously: a simulator reads and writes only the rows addressed.

Timing: docs/timing/ring_file.md.
"""

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.interfaces import RingConfigureSignature, RingSignature
from hw.ring_address import wrap
from hw.spec.commands import COUNT_BITS, Cursor
from hw.spec.config import NpuConfig
from hw.spec.control_block import COUNTER_BITS, ENGINES, ring_state


def _place(config: NpuConfig) -> data.StructLayout:
    """What RING_CONFIGURE gives a ring."""
    bits = config.scratchpad_address_bits
    return data.StructLayout(
        {
            "base": bits,
            "slot_bytes": bits + 1,
            "ring_bytes": bits + 1,
            "slots": COUNT_BITS,
            "consumer_mask": config.rings.consumers,
            "follows": data.ArrayLayout(3, config.rings.consumers),
        }
    )


def _select(values: Sequence[Value], index: Value) -> Value:
    """``values[index]`` as a tree of two-way choices; the last value for an index beyond."""
    level = list(values)
    for bit in index:
        if len(level) > 1:
            level.extend(level[-1:] * (len(level) % 2))
            level = [Mux(bit, high, low) for low, high in zip(level[0::2], level[1::2], strict=True)]
    return level[0]


class RingFile(wiring.Component):
    """Cursors of every ring of the active task.

    Look-ups are combinational; takes, commits and configuration act at the clock edge, all ports in the same cycle.
    No two ports may move the same cursor: each cursor belongs to one engine.

    Attributes
    ----------
    port_0, port_1, port_2
        ``RingSignature``, flipped: load, compute and store engine.
    configure
        ``RingConfigureSignature``, flipped.
    clear
        Forgets all rings; wins over ``configure``.
    state
        Every ring as the control block keeps it. Of a ring with ``slots`` 0 nothing else means anything.
    """

    def __init__(self, config: NpuConfig):
        self._config = config
        super().__init__(
            {f"port_{engine}": In(RingSignature(config)) for engine in range(ENGINES)}
            | {
                "configure": In(RingConfigureSignature(config)),
                "clear": In(1),
                "state": Out(data.ArrayLayout(ring_state(config), config.rings.count)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, rings, consumers = self._config, self._config.rings.count, self._config.rings.consumers
        cursors = consumers + 1  # the producer comes last
        ring_bits = ceil_log2(rings)
        configure = self.configure
        codes = [*range(consumers), int(Cursor.PRODUCER)]

        m.submodules.places = places = memory.Memory(shape=_place(config), depth=rings, init=[])
        # Elements of a row of counts: issue of each cursor, commit of each cursor, reserved.
        m.submodules.counts = counts = memory.Memory(
            shape=data.ArrayLayout(COUNTER_BITS, 2 * cursors + 1), depth=rings, init=[]
        )
        m.submodules.offsets = offsets = memory.Memory(
            shape=data.ArrayLayout(config.scratchpad_address_bits, cursors), depth=rings, init=[]
        )
        configured = Signal(rings)

        for engine in range(ENGINES):
            port = getattr(self, f"port_{engine}")

            def row(source: memory.Memory, ring: Value):
                read = source.read_port(domain="comb")
                m.d.comb += read.addr.eq(ring)
                return read.data

            place, count, offset = (row(source, port.ring) for source in (places, counts, offsets))
            active = (configured >> port.ring)[0]
            consumer = port.cursor[:2]
            is_producer = port.cursor == Cursor.PRODUCER
            is_none = port.cursor == Cursor.NONE
            is_consumer = ~port.cursor[2] & (place.consumer_mask >> consumer)[0]
            commits = [count[cursors + k] for k in range(cursors)]
            reserved = count[2 * cursors]

            follows = _select([place.follows[k] for k in range(consumers)], consumer)
            limit = Mux(follows[2], commits[consumers], _select(commits[:consumers], follows[:2]))
            issue = Signal(COUNTER_BITS, name=f"issue_{engine}")
            filled = Signal(COUNTER_BITS, name=f"filled_{engine}")
            m.d.comb += [
                issue.eq(Mux(is_producer, count[consumers], _select([count[k] for k in range(consumers)], consumer))),
                filled.eq(limit - issue),
            ]
            held: Value = Const(0, COUNTER_BITS)  # reserved slots that the slowest consumer has not passed
            for k in range(consumers):
                of_consumer = Signal(COUNTER_BITS, name=f"held_{engine}_{k}")
                m.d.comb += of_consumer.eq(Mux(place.consumer_mask[k], reserved - commits[k], 0))
                held = Mux(of_consumer > held, of_consumer, held)
            m.d.comb += [
                # What does not fit is not ready: the configuration that it needs may be on its way in the load stream.
                port.fits.eq(
                    is_none
                    | (
                        active
                        & (is_producer | is_consumer)
                        & (port.need <= place.slots)
                        & (port.advance <= place.slots)
                    )
                ),
                port.ready.eq(
                    is_none | (port.fits & Mux(is_producer, held + port.need <= place.slots, port.need <= filled))
                ),
                port.illegal.eq(~is_none & ((port.ring >= rings) | ~(is_producer | (port.cursor < consumers)))),
                port.base.eq(place.base),
                port.start.eq(
                    Mux(is_producer, offset[consumers], _select([offset[k] for k in range(consumers)], consumer))
                ),
                port.ring_bytes.eq(place.ring_bytes),
            ]

            # Take. Moving no slots writes nothing, so that it may meet the configuration of the same (drained) ring.
            step = Signal(config.scratchpad_address_bits + 1, name=f"step_{engine}")  # at most the whole ring
            taken = Signal(cursors, name=f"taken_{engine}")
            write = counts.write_port(granularity=1)
            write_offset = offsets.write_port(granularity=1)
            m.d.comb += [
                step.eq(port.advance * place.slot_bytes),
                taken.eq(Cat(port.take & (port.advance != 0) & (port.cursor == code) for code in codes)),
                write.addr.eq(port.ring),
                write.en.eq(Cat(taken, Const(0, cursors), port.take & (port.need != 0) & is_producer)),
                write.data[2 * cursors].eq(reserved + port.need),
                write_offset.addr.eq(port.ring),
                write_offset.en.eq(taken),
            ]
            for k in range(cursors):
                m.d.comb += [
                    write.data[k].eq(issue + port.advance),
                    write_offset.data[k].eq(wrap(port.start + step, place.ring_bytes)),
                ]

            # Commit.
            before = row(counts, port.commit_ring)
            passed = Signal(COUNTER_BITS, name=f"passed_{engine}")
            commit = port.commit & (port.commit_advance != 0)
            write = counts.write_port(granularity=1)
            m.d.comb += [
                passed.eq(
                    Mux(
                        port.commit_cursor[2],
                        before[cursors + consumers],
                        _select([before[cursors + k] for k in range(consumers)], port.commit_cursor[:2]),
                    )
                    + port.commit_advance
                ),
                write.addr.eq(port.commit_ring),
                write.en.eq(Cat(Const(0, cursors), (commit & (port.commit_cursor == code) for code in codes))),
            ]
            for k in range(cursors):
                m.d.comb += write.data[cursors + k].eq(passed)

        write_place, write, write_offset = places.write_port(), counts.write_port(), offsets.write_port()
        for port in (write_place, write, write_offset):
            m.d.comb += [port.addr.eq(configure.ring), port.en.eq(configure.valid)]
        for name in ("base", "slot_bytes", "ring_bytes", "slots", "consumer_mask", "follows"):
            m.d.comb += write_place.data[name].eq(getattr(configure, name))
        with m.If(configure.valid):
            m.d.sync += configured.bit_select(configure.ring[:ring_bits], 1).eq(configure.slots != 0)
        with m.If(self.clear):
            m.d.sync += configured.eq(0)

        drained = Signal(rings, init=-1)
        m.d.comb += configure.drained.eq(~(configure.drained_mask & ~drained).any())
        for ring in range(rings):
            views = []
            for source in (places, counts, offsets):
                read = source.read_port(domain="comb")
                m.d.comb += read.addr.eq(ring)
                views.append(read.data)
            place, count, offset = views
            published = count[cursors + consumers]
            moving: Value = (count[consumers] != published) | (count[2 * cursors] != published)
            for k in range(consumers):
                moving |= place.consumer_mask[k] & ((count[k] != published) | (count[cursors + k] != published))
            m.d.comb += drained[ring].eq(~(configured[ring] & moving))

            state = self.state[ring]
            for name in ("base", "slot_bytes", "ring_bytes", "follows"):
                m.d.comb += state[name].eq(place[name])
            for name in ("slots", "consumer_mask"):
                m.d.comb += state[name].eq(Mux(configured[ring], place[name], 0))
            m.d.comb += state.reserved.eq(count[2 * cursors])
            for k, cursor in enumerate([*(state.consumer[k] for k in range(consumers)), state.producer]):
                m.d.comb += [
                    cursor.issue.eq(count[k]),
                    cursor.commit.eq(count[cursors + k]),
                    cursor.offset.eq(offset[k]),
                ]
        return m
