"""On-chip SRAM: banks behind a small crossbar with fixed priorities.

::

    read_k  ─► banks needed ─► grant ─► bank address ─► bank ─┐ (cycle t)
            ◄── shift down by the lane ◄── pick two words ◄───┘ (cycle t + 1)

    write_k ─► rotate to lanes, strobes of both words ─► grant ─► one-hot pick a bank ─► bank

Timing: docs/timing/scratchpad.md.
"""

import typing
from collections.abc import Sequence

from amaranth.hdl import Cat, Const, MemoryData, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In

from hw.interfaces import ScratchpadReadSignature, ScratchpadWriteSignature
from hw.spec.config import NpuConfig


class _Place(typing.NamedTuple):
    """Where the two words that an access may touch lie: the even one and the odd one."""

    lane: Value
    odd_first: Value
    even_region: Value
    odd_region: Value
    even_row: Value
    odd_row: Value


def _select(words: Sequence[Value], index: Value) -> Value:
    """A tree of two-way choices: simulators run it faster than a case over wide words."""
    for bit in index:
        words = [Mux(bit, high, low) for low, high in zip(words[0::2], words[1::2], strict=True)]
    (word,) = words
    return word


class Scratchpad(wiring.Component):
    """``config.scratchpad.bytes`` of byte-addressed SRAM.

    Parameters
    ----------
    config
        Size, number of banks, width of a word.
    read_sizes, write_sizes
        Bytes of each port's accesses, at most a word, in order of priority: port 0 comes first.

    Attributes
    ----------
    read_0, read_1, ...
        ``ScratchpadReadSignature``, flipped. Granted at once or not at all; data in the next cycle.
    write_0, write_1, ...
        ``ScratchpadWriteSignature``, flipped.
    banks
        The contents, of submodules ``bank_0`` and so on; ``locate`` says which row and lane of which one holds a byte.
        Simulations read and write them behind the ports' back: ``ctx.get(scratchpad.banks[bank][row])``.
    """

    def __init__(self, config: NpuConfig, read_sizes: Sequence[int], write_sizes: Sequence[int]):
        for size in (*read_sizes, *write_sizes):
            if not 1 <= size <= config.word_bytes:
                raise ValueError(f"a port's size must be from 1 to the word's {config.word_bytes} bytes, not {size}")
        self._config = config
        self._word = config.word_bytes
        self._regions = config.scratchpad.banks // 2
        self._rows = config.scratchpad.bytes // (self._word * config.scratchpad.banks)
        self._read_sizes = tuple(read_sizes)
        self._write_sizes = tuple(write_sizes)
        self.banks = [
            MemoryData(shape=self._word * 8, depth=self._rows, init=[]) for _ in range(config.scratchpad.banks)
        ]
        members: dict[str, wiring.Member] = {}
        for k, size in enumerate(self._read_sizes):
            members[f"read_{k}"] = In(ScratchpadReadSignature(config, size))
        for k, size in enumerate(self._write_sizes):
            members[f"write_{k}"] = In(ScratchpadWriteSignature(config, size))
        super().__init__(members)

    def locate(self, address: int) -> tuple[int, int, int]:
        """Bank, row in it and byte lane in that row, of the byte at ``address``."""
        word, lane = divmod(address % self._config.scratchpad.bytes, self._word)
        region, within = divmod(word, 2 * self._rows)
        return 2 * region + within % 2, within // 2, lane

    def elaborate(self, platform: object) -> Module:
        m = Module()
        banks = [memory.Memory(contents) for contents in self.banks]
        for index, bank in enumerate(banks):
            m.submodules[f"bank_{index}"] = bank
        self._elaborate_reads(m, banks)
        self._elaborate_writes(m, banks)
        return m

    def _place(self, m: Module, name: str, address: Value) -> _Place:
        lane_bits = (self._word - 1).bit_length()
        row_bits = (self._rows - 1).bit_length()
        word = address[lane_bits:]
        odd_first = word[0]
        odd = word[1:]
        even = Signal(len(odd), name=f"{name}_even")  # the pair after, if the access starts in an odd word
        m.d.comb += even.eq(odd + odd_first)
        return _Place(address[:lane_bits], odd_first, even[row_bits:], odd[row_bits:], even[:row_bits], odd[:row_bits])

    def _request(self, m: Module, name: str, place: _Place, first: Value, second: Value) -> Signal:
        """One bit a bank: does the access need it?"""
        even = Signal(self._regions, name=f"{name}_even_request")
        odd = Signal(self._regions, name=f"{name}_odd_request")
        m.d.comb += [
            even.eq(Mux(place.odd_first, second, first) << place.even_region),
            odd.eq(Mux(place.odd_first, first, second) << place.odd_region),
        ]
        request = Signal(len(self.banks), name=f"{name}_request")
        m.d.comb += request.eq(Cat(bit for pair in zip(even, odd, strict=True) for bit in pair))
        return request

    def _grant(self, m: Module, name: str, ports: Sequence[typing.Any], requests: Sequence[Signal]) -> list[Signal]:
        """Grants in order of priority. Gives for each port the banks granted to it."""
        taken: Value = Const(0, len(self.banks))
        grants = []
        for k, (port, request) in enumerate(zip(ports, requests, strict=True)):
            grant = Signal(len(self.banks), name=f"{name}_{k}_grant")
            with m.If(port.valid & ~(request & taken).any()):
                m.d.comb += [port.ready.eq(1), grant.eq(request)]
            taken = taken | grant
            grants.append(grant)
        return grants

    def _row(self, place: _Place, bank: int) -> Value:
        return place.odd_row if bank % 2 else place.even_row

    def _elaborate_reads(self, m: Module, banks: Sequence[memory.Memory]) -> None:
        ports = [getattr(self, f"read_{k}") for k in range(len(self._read_sizes))]
        places = [self._place(m, f"read_{k}", port.address) for k, port in enumerate(ports)]
        requests = []
        for k, (place, size) in enumerate(zip(places, self._read_sizes, strict=True)):
            crosses = place.lane > self._word - size
            requests.append(self._request(m, f"read_{k}", place, Const(1, 1), crosses))
        grants = self._grant(m, "read", ports, requests)

        words = []
        for index, bank in enumerate(banks):
            port = bank.read_port()
            m.d.comb += port.en.eq(Cat(grant[index] for grant in grants).any())
            row: Value = Const(0, len(port.addr))
            for place, grant in reversed(list(zip(places, grants, strict=True))):
                row = Mux(grant[index], self._row(place, index), row)
            m.d.comb += port.addr.eq(row)
            words.append(port.data)

        for k, (port, place, size) in enumerate(zip(ports, places, self._read_sizes, strict=True)):
            lane = Signal.like(place.lane, name=f"read_{k}_lane")
            odd_first = Signal(name=f"read_{k}_odd_first")
            even_region = Signal(len(place.even_region), name=f"read_{k}_even_region")
            odd_region = Signal(len(place.odd_region), name=f"read_{k}_odd_region")
            with m.If(port.ready):
                m.d.sync += [
                    lane.eq(place.lane),
                    odd_first.eq(place.odd_first),
                    even_region.eq(place.even_region),
                    odd_region.eq(place.odd_region),
                ]
            even = Signal(self._word * 8, name=f"read_{k}_even_word")
            odd = Signal(self._word * 8, name=f"read_{k}_odd_word")
            m.d.comb += [even.eq(_select(words[0::2], even_region)), odd.eq(_select(words[1::2], odd_region))]
            pair = Signal(self._word * 16, name=f"read_{k}_pair")
            m.d.comb += [
                pair.eq(Mux(odd_first, Cat(odd, even), Cat(even, odd))),
                port.data.eq((pair >> (lane << 3))[: size * 8]),
            ]

    def _elaborate_writes(self, m: Module, banks: Sequence[memory.Memory]) -> None:
        ports = [getattr(self, f"write_{k}") for k in range(len(self._write_sizes))]
        places = [self._place(m, f"write_{k}", port.address) for k, port in enumerate(ports)]
        requests, rotated, strobes = [], [], []
        for k, (port, place) in enumerate(zip(ports, places, strict=True)):
            strobe = Signal(self._word * 2, name=f"write_{k}_strobe")
            m.d.comb += strobe.eq(port.strobe << place.lane)
            first, second = strobe[: self._word], strobe[self._word :]
            # A port's bytes are at most a word, so no two share a lane: both words take the same rotated data.
            shifted = Signal(self._word * 16, name=f"write_{k}_shifted")
            data = Signal(self._word * 8, name=f"write_{k}_rotated")
            m.d.comb += shifted.eq(port.data << (place.lane << 3))
            m.d.comb += data.eq(shifted[: self._word * 8] | shifted[self._word * 8 :])
            rotated.append(data)
            strobes.append(
                (Mux(place.odd_first, second, first), Mux(place.odd_first, first, second))  # of the even and odd word
            )
            requests.append(self._request(m, f"write_{k}", place, first.any(), second.any()))
        grants = self._grant(m, "write", ports, requests)

        for index, bank in enumerate(banks):
            port = bank.write_port(granularity=8)
            row: Value = Const(0, len(port.addr))
            data: Value = Const(0, self._word * 8)
            for k in reversed(range(len(ports))):
                row = Mux(grants[k][index], self._row(places[k], index), row)
                data = rotated[k] if k == len(ports) - 1 else Mux(grants[k][index], rotated[k], data)
            lanes: Value = Const(0, self._word)
            for k in reversed(range(len(ports))):
                lanes = Mux(grants[k][index], strobes[k][index % 2], lanes)
            m.d.comb += [port.addr.eq(row), port.data.eq(data), port.en.eq(lanes)]
