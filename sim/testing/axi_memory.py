"""A memory behind AXI4 in plain Python: any latency and back-pressure, answers with errors where asked."""

import collections
import dataclasses
import random
from collections.abc import Callable

from amaranth.lib import wiring
from amaranth.sim import SimulatorContext

OKAY, SLVERR, DECERR = 0, 2, 3


def _never(address: int) -> bool:
    return False


@dataclasses.dataclass(kw_only=True)
class AxiBehaviour:
    """How the memory answers. The default is ideal: one beat a cycle, in order, after a fixed latency."""

    latency: tuple[int, int] = (1, 1)
    """Cycles from a taken AR to its first R beat offered, and from the taken last W (and AW) to B: least, most."""
    ready: float = 1.0
    """Probability, each cycle, that ARREADY, AWREADY, WREADY are high; each for itself."""
    stalled: Callable[[int], bool] = _never
    """Cycles in which ARREADY and AWREADY are low whatever ``ready`` says."""
    valid: float = 1.0
    """Probability, each cycle, that a beat that could be offered is."""
    interleave: bool = False
    """R beats of different IDs mix, and B of different IDs pass each other."""
    read_error: Callable[[int], bool] = _never
    """Whether the beat at an address is answered with an error."""
    write_error: Callable[[int], bool] = _never
    """Whether a burst at an address is answered with an error; it is not written then."""


@dataclasses.dataclass
class Burst:
    """A burst as it was taken, in ``AxiMemory.reads`` and ``AxiMemory.writes``."""

    cycle: int
    id: int
    address: int
    beats: int


class AxiMemory:
    """The bytes in ``data``, from address 0. Add ``run`` to a simulation as a background testbench.

    ``reads`` and ``writes`` log all bursts; ``beats_read`` and ``beats_written`` the cycles in which beats passed,
    ``read_errors`` and ``write_errors`` those of answers with an error.
    An address beyond the memory raises ``AssertionError``.
    """

    def __init__(self, axi: wiring.PureInterface, data: bytearray, behaviour: AxiBehaviour, rng: random.Random):
        self.data = data
        self.reads: list[Burst] = []
        self.writes: list[Burst] = []
        self.beats_read: list[int] = []
        self.beats_written: list[int] = []
        self.read_errors: list[int] = []
        self.write_errors: list[int] = []
        self._axi = axi
        self._behaviour = behaviour
        self._rng = rng
        self._bytes = len(axi.wdata) // 8
        self._cycle = 0
        # Per ID: [cycle from which it may be answered, address of the next beat, beats left]
        self._open_reads: dict[int, collections.deque[list[int]]] = collections.defaultdict(collections.deque)
        self._read_order: collections.deque[int] = collections.deque()
        self._addresses: collections.deque[Burst] = collections.deque()
        self._body: list[tuple[int, int]] = []
        self._bodies: collections.deque[list[tuple[int, int]]] = collections.deque()
        # (cycle from which it may be answered, ID, response)
        self._answers: list[tuple[int, int, int]] = []

    async def run(self, ctx: SimulatorContext) -> None:
        axi, chance = self._axi, self._rng.random
        behaviour = self._behaviour
        ideal = behaviour.ready >= 1.0 and behaviour.stalled is _never
        signals = (
            axi.arvalid,
            axi.arid,
            axi.araddr,
            axi.arlen,
            axi.awvalid,
            axi.awid,
            axi.awaddr,
            axi.awlen,
            axi.wvalid,
            axi.wdata,
            axi.wstrb,
            axi.wlast,
            axi.rready,
            axi.bready,
        )
        ready = [True, True, True]
        read: tuple[int, int, int] | None = None  # ID, response, last
        answer: tuple[int, int, int] | None = None
        while True:
            if not ideal or self._cycle == 0:
                stalled = behaviour.stalled(self._cycle)
                ready = [chance() < behaviour.ready and not (stalled and k < 2) for k in range(3)]
                for signal, value in zip((axi.arready, axi.awready, axi.wready), ready, strict=True):
                    ctx.set(signal, value)
            if read is None and (read := self._next_read()) is not None:
                id, response, last = read
                address = self._open_reads[id][0][1]
                ctx.set(axi.rid, id)
                ctx.set(axi.rresp, response)
                ctx.set(axi.rlast, last)
                ctx.set(axi.rdata, int.from_bytes(self.data[address : address + self._bytes], "little"))
            ctx.set(axi.rvalid, read is not None)
            if answer is None and (answer := self._next_answer()) is not None:
                ctx.set(axi.bid, answer[1])
                ctx.set(axi.bresp, answer[2])
            ctx.set(axi.bvalid, answer is not None)

            _, _, *sampled = await ctx.tick().sample(*signals)
            arvalid, arid, araddr, arlen, awvalid, awid, awaddr, awlen, wvalid, wdata, wstrb, wlast, rready, bready = (
                sampled
            )
            if arvalid and ready[0]:
                self.reads.append(Burst(self._cycle, arid, araddr, arlen + 1))
                self._open_reads[arid].append([self._due(), araddr, arlen + 1])
                self._read_order.append(arid)
            if awvalid and ready[1]:
                self.writes.append(Burst(self._cycle, awid, awaddr, awlen + 1))
                self._addresses.append(self.writes[-1])
            if wvalid and ready[2]:
                self.beats_written.append(self._cycle)
                self._body.append((wdata, wstrb))
                if wlast:
                    self._bodies.append(self._body)
                    self._body = []
            while self._addresses and self._bodies:
                self._write(self._addresses.popleft(), self._bodies.popleft())
            if read is not None and rready:
                self.beats_read.append(self._cycle)
                if read[1] != OKAY:
                    self.read_errors.append(self._cycle)
                burst = self._open_reads[read[0]][0]
                burst[1] += self._bytes
                burst[2] -= 1
                if not burst[2]:
                    self._open_reads[read[0]].popleft()
                    self._read_order.remove(read[0])
                read = None
            if answer is not None and bready:
                if answer[2] != OKAY:
                    self.write_errors.append(self._cycle)
                answer = None
            self._cycle += 1

    def _due(self) -> int:
        return self._cycle + self._rng.randint(*self._behaviour.latency)

    def _next_read(self) -> tuple[int, int, int] | None:
        if not self._read_order:
            return None
        ids = [self._read_order[0]]
        if self._behaviour.interleave:
            ids = [id for id, bursts in self._open_reads.items() if bursts]
        ids = [id for id in ids if self._open_reads[id][0][0] <= self._cycle]
        if not ids or self._rng.random() >= self._behaviour.valid:
            return None
        id = self._rng.choice(ids)
        _, address, left = self._open_reads[id][0]
        assert address + self._bytes <= len(self.data), f"read at {address:#x}, beyond the memory"
        return id, SLVERR if self._behaviour.read_error(address) else OKAY, left == 1

    def _next_answer(self) -> tuple[int, int, int] | None:
        first_of_id = {}
        for answer in self._answers:
            first_of_id.setdefault(answer[1], answer)
        due = [answer for answer in first_of_id.values() if answer[0] <= self._cycle]
        if not self._behaviour.interleave:
            due = [answer for answer in due if answer is self._answers[0]]
        if not due or self._rng.random() >= self._behaviour.valid:
            return None
        answer = self._rng.choice(due)
        self._answers.remove(answer)
        return answer

    def _write(self, burst: Burst, body: list[tuple[int, int]]) -> None:
        assert burst.beats == len(body), f"{burst.beats} beats announced, {len(body)} came"
        assert burst.address + burst.beats * self._bytes <= len(self.data), (
            f"write at {burst.address:#x}, beyond the memory"
        )
        failed = self._behaviour.write_error(burst.address)
        if not failed:
            for beat, (word, strobe) in enumerate(body):
                for lane in range(self._bytes):
                    if strobe >> lane & 1:
                        self.data[burst.address + beat * self._bytes + lane] = word >> 8 * lane & 0xFF
        self._answers.append((self._due(), burst.id, DECERR if failed else OKAY))
