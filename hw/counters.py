"""Performance counters: one cause a cycle for each engine, and events on the memory and scratchpad ports."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import CAUSE_FLAGS
from hw.spec.causes import PRECEDENCE, Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from hw.spec.register_map import REGISTERS

COUNTER_BITS = 48

COUNTERS = [name[:-4].lower() for name in REGISTERS if name.startswith("COUNTER_") and name.endswith("_LOW")]
"""Every counter of the register map, by the name of its port on the register file."""

_CAUSE_COUNTERS = {
    (engine, cause): f"counter_{engine.name}_{cause.name}".lower() for engine in Engine for cause in Cause
}
_CYCLES = "counter_cycles"

EVENTS = {name: name.removeprefix("counter_") for name in COUNTERS if name not in {*_CAUSE_COUNTERS.values(), _CYCLES}}
"""Input that moves each counter which is not a cause: ``conflict_*`` and ``retired_*`` one for each cycle of the
event, ``read_bytes_*`` and ``write_bytes_*`` one for each beat."""


class Counters(wiring.Component):
    """Counts, copies and clears, as ``docs/timing/counters.md`` says.

    Attributes
    ----------
    flags_load, flags_compute, flags_store
        Conditions of each engine in this cycle.
    conflict_PORT, retired_ENGINE, read_bytes_CLASS, write_bytes_CLASS
        Events in this cycle (``EVENTS``).
    snapshot, clear
        Pulses.
    cycle
        Cycles since reset.
    cause_load, cause_compute, cause_store
        What this cycle of each engine is counted as; for observation.
    counter_*
        The copies (``COUNTERS``), for the ports of the register file of the same names.
    """

    snapshot: Signal
    clear: Signal
    cycle: Signal

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                **{f"flags_{engine.name.lower()}": In(CAUSE_FLAGS) for engine in Engine},
                **{f"cause_{engine.name.lower()}": Out(Cause) for engine in Engine},
                **{event: In(1) for event in EVENTS.values()},
                "snapshot": In(1),
                "clear": In(1),
                "cycle": Out(64),
                **{name: Out(64) for name in COUNTERS},
            }
        )
        self._config = config

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.sync += self.cycle.eq(self.cycle + 1)

        happens = {_CYCLES: Const(1), **{name: getattr(self, event) for name, event in EVENTS.items()}}
        for engine in Engine:
            flags = getattr(self, f"flags_{engine.name.lower()}")
            first: Value = Const(Cause.IDLE, Cause)
            for cause in reversed(PRECEDENCE[:-1]):
                first = Mux(flags[cause.name.lower()], cause, first)
            m.d.comb += getattr(self, f"cause_{engine.name.lower()}").eq(first)
            earlier = Const(0)
            for cause in PRECEDENCE:
                if cause is Cause.IDLE:  # the last in precedence, and what is left when nothing is raised
                    chosen = ~earlier
                else:
                    raised = flags[cause.name.lower()]
                    chosen, earlier = raised & ~earlier, earlier | raised
                happens[_CAUSE_COUNTERS[engine, cause]] = chosen[0]

        beat_shift = (self._config.bus_bytes - 1).bit_length()
        for name in COUNTERS:
            shift = beat_shift if "_bytes_" in name else 0  # beats are counted, bytes are shown
            count = Signal(COUNTER_BITS - shift, name=name.removeprefix("counter_") + "_count")
            with m.If(self.clear):
                m.d.sync += count.eq(happens[name])
            with m.Elif(happens[name]):
                m.d.sync += count.eq(count + 1)
            copy = Signal.like(count, name=name.removeprefix("counter_") + "_copy")
            with m.If(self.snapshot):
                m.d.sync += copy.eq(count)
            m.d.comb += getattr(self, name).eq(Cat(Const(0, shift), copy))
        return m


assert PRECEDENCE[-1] is Cause.IDLE
assert set(_CAUSE_COUNTERS.values()) < set(COUNTERS)
assert _CYCLES in COUNTERS
