"""Carries out a program's commands on plain arrays: what the hardware computes, without its time.

It stands between the golden model (which sees only the graph) and the RTL (which sees only commands): a difference from
the golden model is a compiler's fault, one from the RTL is the hardware's.
"""

import numpy as np
from numpy.typing import NDArray

from hw.spec.commands import Engine, Opcode
from hw.spec.config import NpuConfig
from sim.command_model import convolve
from sw.check import runs
from sw.decode import decode_stream
from sw.program import Program
from sw.replay import Event, Place, Replay

Bytes = NDArray[np.uint8]


class Functional:
    """Scratchpad and accumulators of one NPU; ``buffers`` are the four that base registers name."""

    def __init__(self, config: NpuConfig, buffers: dict[int, Bytes]) -> None:
        self.config = config
        self.scratchpad: Bytes = np.zeros(config.scratchpad.bytes, np.uint8)
        self.buffers = buffers
        self._sums = np.zeros((config.accumulator_half, config.array.n), np.int32)

    def run(self, program: Program) -> None:
        """Carry out one job of ``program``."""
        replay = Replay(self.config, {engine: decode_stream(program, engine) for engine in Engine})
        for event in replay:
            self.execute(event)

    def execute(self, event: Event) -> None:
        """Carry out one command whose operands are ready."""
        opcode = event.command.opcode
        if opcode in (Opcode.LOAD, Opcode.FILL, Opcode.STORE):
            self._transfer(event)
        elif opcode == Opcode.CONVOLVE:
            self._convolve(event)

    def _place(self, event: Event, index: int) -> Place:
        place = event.places[index]
        assert place is not None
        return place

    def _read(self, place: Place, delta: int, size: int) -> Bytes:
        return np.concatenate([self.scratchpad[a:b] for a, b in place.pieces(delta, size)])

    def _write(self, place: Place, delta: int, data: Bytes) -> None:
        position = 0
        for first, last in place.pieces(delta, len(data)):
            self.scratchpad[first:last] = data[position : position + last - first]
            position += last - first

    def _transfer(self, event: Event) -> None:
        body = event.command.body
        place = self._place(event, 0)
        size = body["run_bytes"]
        buffer = self.buffers[body["base"]]
        for offset, delta in runs(body):
            if event.command.opcode == Opcode.FILL:
                self._write(place, delta, np.full(size, body["fill"], np.uint8))
            elif event.command.opcode == Opcode.LOAD:
                self._write(place, delta, buffer[offset : offset + size])
            else:
                buffer[offset : offset + size] = self._read(place, delta, size)

    def _convolve(self, event: Event) -> None:
        places = [
            {} if place is None else {"base": place.ring.base, "start": place.start, "ring_bytes": place.ring.bytes}
            for place in event.places
        ]
        convolve(self.config, event.command.body, places, self.scratchpad, self._sums)
