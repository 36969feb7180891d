"""The one port to memory: arbitrates the clients a burst at a time, and routes the answers back."""

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import CLIENT_BITS, TASK_BITS, MemoryReadSignature, MemoryWriteSignature
from hw.spec.config import NpuConfig

GRANTS_BEFORE_YIELD = 7
"""Read grants in a row that may leave a lower client waiting."""
WRITE_BURSTS_AHEAD = 8
"""Write bursts granted whose last beat has not passed."""


class MemoryPort(wiring.Component):
    """Joins clients into one read and one write interface. ``read_clients`` (in order of priority) and
    ``write_clients`` are the tags of ``read_0``, ``read_1`` ... and ``write_0`` ...; the port sets them, and
    ``task``, the task for which all clients work, on every request that it grants.

    A request takes one cycle, one passes a cycle; data and ``done`` pass in their own cycle. Reads: priority, but a
    lower client has every eighth grant. Writes: round robin. A client's beats wait for the bursts granted before.
    Details: ``docs/timing/memory_port.md``.

    Raises
    ------
    ValueError
        If there is no client of a kind, or a tag occurs twice in a list or does not fit.
    """

    task: Signal
    port_read: wiring.PureInterface
    port_write: wiring.PureInterface

    def __init__(self, config: NpuConfig, read_clients: Sequence[int], write_clients: Sequence[int]):
        for name, clients in (("read_clients", read_clients), ("write_clients", write_clients)):
            if not clients:
                raise ValueError(f"{name} must name at least one client")
            if len(set(clients)) != len(clients) or not all(0 <= tag < 1 << CLIENT_BITS for tag in clients):
                raise ValueError(
                    f"{name} must be different tags from 0 to {(1 << CLIENT_BITS) - 1}, not {list(clients)!r}"
                )
        members = {f"read_{k}": In(MemoryReadSignature(config)) for k in range(len(read_clients))}
        members |= {f"write_{k}": In(MemoryWriteSignature(config)) for k in range(len(write_clients))}
        members["task"] = In(TASK_BITS)
        members["port_read"] = Out(MemoryReadSignature(config))
        members["port_write"] = Out(MemoryWriteSignature(config))
        super().__init__(members)
        self._read_clients = tuple(read_clients)
        self._write_clients = tuple(write_clients)

    @property
    def read_clients(self) -> tuple[int, ...]:
        return self._read_clients

    @property
    def write_clients(self) -> tuple[int, ...]:
        return self._write_clients

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._reads(m)
        self._writes(m)
        return m

    def _reads(self, m: Module) -> None:
        clients = [getattr(self, f"read_{k}") for k in range(len(self._read_clients))]
        waiting = Cat(client.request.valid for client in clients)
        grant = _request_register(m, clients, self._read_clients, self.port_read.request, self.task)

        # One-hot, lowest first.
        first = Signal(len(clients))
        lower = Signal(len(clients))
        yielded = Signal(len(clients))  # the lower client whose turn it is
        turn = Signal(len(clients))  # lower client served last, one-hot
        streak = Signal(range(GRANTS_BEFORE_YIELD + 1))
        yields = Signal()
        m.d.comb += [
            first.eq(waiting & (~waiting + 1)),
            lower.eq(waiting & ~first),
            yielded.eq(_next_after(lower, turn)),
            yields.eq((streak == GRANTS_BEFORE_YIELD) & (lower != 0)),
            grant.choice.eq(Mux(yields, yielded, first)),
        ]
        with m.If(grant.go):
            m.d.sync += streak.eq(Mux((lower != 0) & ~yields, streak + 1, 0))
            with m.If(yields):
                m.d.sync += turn.eq(yielded)

        answer = self.port_read.data
        for client, tag in zip(clients, self._read_clients, strict=True):
            mine = Signal(name=f"mine_{tag}")
            m.d.comb += [
                mine.eq(answer.payload.client == tag),
                client.data.valid.eq(answer.valid & mine),
                client.data.payload.eq(answer.payload),
            ]
            with m.If(mine):
                m.d.comb += answer.ready.eq(client.data.ready)

    def _writes(self, m: Module) -> None:
        clients = [getattr(self, f"write_{k}") for k in range(len(self._write_clients))]
        waiting = Cat(client.request.valid for client in clients)
        m.submodules.order = order = fifo.SyncFIFO(width=len(clients), depth=WRITE_BURSTS_AHEAD)
        grant = _request_register(m, clients, self._write_clients, self.port_write.request, self.task, order.w_rdy)

        turn = Signal(len(clients))
        m.d.comb += [
            grant.choice.eq(_next_after(waiting, turn)),
            order.w_data.eq(grant.choice),
            order.w_en.eq(grant.go),
        ]
        with m.If(grant.go):
            m.d.sync += turn.eq(grant.choice)

        out = self.port_write.data
        m.d.comb += order.r_en.eq(out.valid & out.ready & out.payload.last)
        for k, (client, tag) in enumerate(zip(clients, self._write_clients, strict=True)):
            with m.If(order.r_rdy & order.r_data[k]):
                m.d.comb += [
                    out.valid.eq(client.data.valid),
                    out.payload.eq(client.data.payload),
                    client.data.ready.eq(out.ready),
                ]
            done = self.port_write.done
            m.d.comb += [
                client.done.valid.eq(done.valid & (done.payload.client == tag)),
                client.done.payload.eq(done.payload),
            ]


class _Grant:
    """``choice``: one-hot, the client that has its turn if any waits. ``go``: it is granted in this cycle."""

    def __init__(self, clients: int, name: str):
        self.choice = Signal(clients, name=f"{name}_choice")
        self.go = Signal(name=f"{name}_go")


def _request_register(
    m: Module,
    clients: Sequence[wiring.PureInterface],
    tags: Sequence[int],
    out: wiring.PureInterface,
    task: Value,
    allowed: Value | int = 1,
) -> _Grant:
    """The register between clients' requests and the port."""
    grant = _Grant(len(clients), "grant")
    free = Signal()
    m.d.comb += free.eq((~out.valid | out.ready) & allowed)
    m.d.comb += grant.go.eq(free & (grant.choice != 0))
    with m.If(out.ready):
        m.d.sync += out.valid.eq(0)
    with m.If(grant.go):
        m.d.sync += out.valid.eq(1)
    for k, (client, tag) in enumerate(zip(clients, tags, strict=True)):
        m.d.comb += client.request.ready.eq(free & grant.choice[k])
        with m.If(grant.go & grant.choice[k]):
            m.d.sync += [
                out.payload.eq(client.request.payload),
                out.payload.client.eq(tag),
                out.payload.task.eq(task),
            ]
    return grant


def _next_after(waiting: Value, turn: Value) -> Value:
    """Of the ``waiting``, the first after ``turn`` (one-hot), cyclically; the lowest if there was no turn yet."""
    size = len(waiting)
    above = waiting & ~((turn - 1)[:size] | turn)
    lowest = (waiting & (~waiting + 1))[:size]
    lowest_above = (above & (~above + 1))[:size]
    return Mux((turn != 0) & (above != 0), lowest_above, lowest)
