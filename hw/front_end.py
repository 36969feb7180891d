"""From the job ring to three engines' commands, and from their reports to completions: the state of the task."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.fetcher import Fetcher
from hw.interfaces import (
    CLIENT_FETCH_COMPUTE,
    CLIENT_FETCH_LOAD,
    CLIENT_FETCH_STORE,
    FAULT_REPORT,
    FaultSignature,
    MemoryReadSignature,
    RetireSignature,
    fetched_command,
)
from hw.spec.commands import BASE_REGISTERS, COMPLETION, Engine
from hw.spec.config import NpuConfig
from hw.spec.control_block import (
    HOST_ADDRESS_BITS,
    INDEX_BITS,
    JOB_INDEX_BITS,
    base_register,
    engine_progress,
)

FETCH_CLIENTS = {
    Engine.LOAD: CLIENT_FETCH_LOAD,
    Engine.COMPUTE: CLIENT_FETCH_COMPUTE,
    Engine.STORE: CLIENT_FETCH_STORE,
}
JOBS_IN_FLIGHT = 2
"""Jobs begun by some engine and not completed: one, and the one that the load engine is ahead."""

FAULT_RECORD = data.StructLayout(
    {"valid": 1, "code": 8, "engine": 2, "command": INDEX_BITS, "job_index": JOB_INDEX_BITS}
)


def _before(a, b):
    """Whether job index ``a`` is earlier than ``b``, both running freely."""
    return (a - b)[JOB_INDEX_BITS - 1]


class FrontEnd(wiring.Component):
    """Runs the jobs of the job ring on three engines, each at its own pace; timing, order and faults:
    ``docs/timing/front_end.md``.

    Attributes, each of ``*_ENGINE`` for ``load``, ``compute`` and ``store``
    ----------
    enable, resume, program_address_ENGINE, program_commands_ENGINE, job_ring_address, job_ring_log2_entries, doorbell
        From the registers of these names.
    job_head, running, stopped, fault_code, fault_engine, fault_command, fault_job_index
        For the registers of these names.
    cycle
        Cycles since reset.
    completion
        A record for each job that ended, in order.
    commands_ENGINE, base_ENGINE, running_ENGINE, job_index_ENGINE, stop_ENGINE
        For the engine's issue unit: commands, what base registers hold, whether in a job and which, order to stop.
    parked_ENGINE
        Does nothing more of any job in flight: stopped, or between jobs and no other engine is ahead.
    progress_ENGINE
        The engine's part of the task control block.
    retire_ENGINE, job_done_ENGINE, fault_ENGINE, idle_ENGINE
        From the engine: a command is committed, END is committed, a fault, nothing under way.
    clear
        Pulse: rings and engines forget everything.
    fetch_ENGINE
        Clients of the memory port.
    """

    def __init__(self, config: NpuConfig):
        members = {
            "enable": In(1),
            "resume": In(1),
            "job_ring_address": In(HOST_ADDRESS_BITS),
            "job_ring_log2_entries": In(4),
            "doorbell": In(JOB_INDEX_BITS),
            "job_head": Out(JOB_INDEX_BITS),
            "running": Out(1),
            "stopped": Out(1),
            "fault_code": Out(8),
            "fault_engine": Out(2),
            "fault_command": Out(INDEX_BITS),
            "fault_job_index": Out(JOB_INDEX_BITS),
            "cycle": In(64),
            "completion": Out(stream.Signature(COMPLETION)),
            "clear": Out(1),
        }
        for engine in Engine:
            members |= {
                f"{name}_{engine.name.lower()}": member
                for name, member in {
                    "program_address": In(HOST_ADDRESS_BITS),
                    "program_commands": In(INDEX_BITS),
                    "commands": Out(stream.Signature(fetched_command(config))),
                    "base": Out(data.ArrayLayout(base_register(config), BASE_REGISTERS)),
                    "running": Out(1),
                    "job_index": Out(JOB_INDEX_BITS),
                    "stop": Out(1),
                    "parked": Out(1),
                    "retire": In(RetireSignature()),
                    "job_done": In(1),
                    "fault": In(FaultSignature()),
                    "idle": In(1),
                    "fetch": Out(MemoryReadSignature(config)),
                    "progress": Out(engine_progress(config)),
                }.items()
            }
        super().__init__(members)
        self._config = config
        self.fetchers = {engine: Fetcher(config, FETCH_CLIENTS[engine]) for engine in Engine}

    def _of(self, name: str, engine: Engine):
        return getattr(self, f"{name}_{engine.name.lower()}")

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config

        # --- state of the task
        head, newest = self.job_head, Signal(JOB_INDEX_BITS)
        record = Signal(FAULT_RECORD)
        own_fault = {engine: Signal(name=f"own_fault_{engine.name.lower()}") for engine in Engine}
        progress = {engine: Signal(engine_progress(config), name=f"state_{engine.name.lower()}") for engine in Engine}
        fetchers = self.fetchers

        # What completions need of the jobs in flight; a job's slot is its index modulo JOBS_IN_FLIGHT.
        slot_bits = (JOBS_IN_FLIGHT - 1).bit_length()
        slot = data.StructLayout({"job": 32, "started": 64, "finished": 64})
        slots = Signal(data.ArrayLayout(slot, JOBS_IN_FLIGHT))

        m.d.comb += [self._of("progress", engine).eq(progress[engine]) for engine in Engine]

        # --- each engine: start, progress, end
        may_begin, begins = Signal(), Signal()
        m.d.comb += may_begin.eq(
            self.enable & (newest != self.doorbell) & ((newest - head)[:JOB_INDEX_BITS] < JOBS_IN_FLIGHT)
        )
        starts, reports = [], []
        for engine in Engine:
            state, fetcher = progress[engine], fetchers[engine]
            m.submodules[f"fetcher_{engine.name.lower()}"] = fetcher
            connect(m, flipped(self._of("fetch", engine)), fetcher.memory)
            connect(m, flipped(self._of("commands", engine)), fetcher.commands)
            start = Signal(name=f"start_{engine.name.lower()}")
            stop = self._of("stop", engine)
            allowed = ~record.valid | _before(state.job_index, record.job_index)
            m.d.comb += [
                start.eq(~state.running & fetcher.ready & allowed & ((state.job_index != newest) | may_begin)),
                stop.eq(own_fault[engine] | ~allowed),
                self._of("parked", engine).eq(stop | (~state.running & (state.job_index == newest))),
                fetcher.start.eq(start),
                fetcher.job_index.eq(state.job_index),
                fetcher.job_ring_address.eq(self.job_ring_address),
                fetcher.job_ring_log2_entries.eq(self.job_ring_log2_entries),
                fetcher.program_address.eq(self._of("program_address", engine)),
                fetcher.program_commands.eq(self._of("program_commands", engine)),
                fetcher.engine_idle.eq(self._of("idle", engine)),
                fetcher.hold.eq(stop),
                fetcher.flush.eq(self.clear),
                self._of("running", engine).eq(state.running),
                self._of("job_index", engine).eq(state.job_index),
                self._of("base", engine).eq(state.base),
            ]
            starts.append(start & (state.job_index == newest))

            with m.If(start):
                m.d.sync += state.running.eq(1)
            with m.If(fetcher.entry_valid):
                m.d.sync += [state.job.eq(fetcher.entry.job), state.base.eq(fetcher.entry.base)]
            retire = self._of("retire", engine)
            with m.If(retire.valid):
                m.d.sync += state.command.eq(retire.index + 1)
            with m.If(self._of("job_done", engine)):
                m.d.sync += [state.running.eq(0), state.command.eq(0), state.job_index.eq(state.job_index + 1)]
            with m.If(self.clear):
                m.d.sync += [
                    state.running.eq(0),
                    state.command.eq(0),
                    state.job_index.eq(head),
                    own_fault[engine].eq(0),
                ]

        # --- jobs in flight
        m.d.comb += begins.eq(Cat(*starts).any())
        with m.If(begins):
            m.d.sync += newest.eq(newest + 1)
        with m.If(self.clear):
            m.d.sync += newest.eq(head)
        for number in range(JOBS_IN_FLIGHT):
            with m.If(begins & (newest[:slot_bits] == number)):
                m.d.sync += [slots[number].started.eq(self.cycle), slots[number].job.eq(0)]
            for engine in Engine:
                state, fetcher = progress[engine], fetchers[engine]
                with m.If(state.job_index[:slot_bits] == number):
                    with m.If(fetcher.entry_valid):
                        m.d.sync += slots[number].job.eq(fetcher.entry.job)
                    with m.If(self._of("job_done", engine)):
                        m.d.sync += slots[number].finished.eq(self.cycle)

        # --- faults: of what is recorded and what is reported, the first in order of job, time, engine stays
        # Each field a signal of its own: compiled simulators see a vector that is built up in steps as a loop.
        best = {name: record[name] for name, _ in FAULT_RECORD}
        for engine in Engine:
            state, fault, fetch_fault = progress[engine], self._of("fault", engine), fetchers[engine].fault
            report = Mux(fault.valid, fault.report.as_value(), fetch_fault.report.as_value())
            report = data.View(FAULT_REPORT, report)
            raised = Signal(FAULT_RECORD, name=f"raised_{engine.name.lower()}")
            m.d.comb += [
                raised.valid.eq(fault.valid | fetch_fault.valid),
                raised.code.eq(report.code),
                raised.engine.eq(engine),
                raised.command.eq(report.command),
                raised.job_index.eq(state.job_index),
            ]
            with m.If(raised.valid):
                m.d.sync += own_fault[engine].eq(1)
            first = Signal(name=f"first_{engine.name.lower()}")
            m.d.comb += first.eq(raised.valid & (~best["valid"] | _before(raised.job_index, best["job_index"])))
            best = {name: Mux(first, raised[name], best[name]) for name in best}
            reports.append(raised.valid)
        m.d.sync += [record[name].eq(value) for name, value in best.items()]
        with m.If(self.clear):
            m.d.sync += record.eq(0)
        m.d.comb += [
            self.fault_code.eq(record.code),
            self.fault_engine.eq(record.engine),
            self.fault_command.eq(record.command),
            self.fault_job_index.eq(record.job_index),
        ]

        # --- completions
        ended, quiet, was_quiet = Signal(), Signal(), Signal()
        oldest = slots[head[:slot_bits]]
        done = [progress[engine].job_index != head for engine in Engine]
        still = [
            ~_before(progress[engine].job_index, record.job_index)
            & (~progress[engine].running | self._of("idle", engine))
            for engine in Engine
        ]
        m.d.comb += [
            self.running.eq(newest != head),
            ended.eq(self.running & Cat(*done).all()),
            quiet.eq(record.valid & (record.job_index == head) & Cat(*still).all() & ~Cat(*reports).any()),
            self.completion.p.job.eq(oldest.job),
            self.completion.p.started.eq(oldest.started),
            self.completion.p.finished.eq(oldest.finished),
        ]
        with m.If(self.completion.valid & self.completion.ready):
            m.d.sync += head.eq(head + 1)
        with m.FSM():
            with m.State("RUN"):
                m.d.comb += self.completion.valid.eq(ended)
                m.d.sync += was_quiet.eq(quiet)
                with m.If(quiet & was_quiet):
                    m.d.sync += [was_quiet.eq(0), oldest.finished.eq(self.cycle)]
                    m.next = "FAIL"
            with m.State("FAIL"):
                m.d.comb += [
                    self.completion.valid.eq(1),
                    self.completion.p.status.eq(record.code),
                    self.completion.p.engine.eq(record.engine),
                    self.completion.p.command.eq(record.command),
                ]
                with m.If(self.completion.ready):
                    m.next = "STOPPED"
            with m.State("STOPPED"):
                m.d.comb += [self.stopped.eq(1), self.clear.eq(self.resume)]
                with m.If(self.resume):
                    m.next = "RUN"
        return m
