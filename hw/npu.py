"""The top: everything between the host's registers and the bus to DRAM.

```
 registers ──► front end ──► issue:load ────► DMA load ────┐ write
     ▲    ◄──  counters      issue:compute ─► compute ─────┼─► scratchpad
 AXI4-Lite                   issue:store ───► DMA store ───┘ read
                  └── fetch ──────┬──── memory port ── AXI4
```
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw.axi import AxiAdapter
from hw.completion import CompletionUnit
from hw.compute import Compute
from hw.counters import Counters
from hw.dma_load import DmaLoad
from hw.dma_store import DmaStore
from hw.front_end import FrontEnd
from hw.interfaces import (
    CAUSE_FLAGS,
    CLIENT_COMPLETION,
    CLIENT_FETCH_COMPUTE,
    CLIENT_FETCH_LOAD,
    CLIENT_FETCH_STORE,
    CLIENT_LOAD,
    CLIENT_STORE,
    TASK_BITS,
    Axi4LiteSignature,
    Axi4Signature,
)
from hw.issue import IssueUnit
from hw.memory_port import MemoryPort
from hw.registers import RegisterFile
from hw.ring_file import RingFile
from hw.scratchpad import Scratchpad
from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS, JOB_INDEX_BITS, task_control_block
from hw.spec.register_map import ADDRESS_BITS

READ_CLIENTS = (CLIENT_FETCH_LOAD, CLIENT_FETCH_COMPUTE, CLIENT_FETCH_STORE, CLIENT_LOAD)
"""In order of priority: a late command idles an engine, a late beat rarely does."""
WRITE_CLIENTS = (CLIENT_STORE, CLIENT_COMPLETION)
SCRATCHPAD_READS = ("pixels", "residual", "weights", "store")
SCRATCHPAD_WRITES = ("epilogue", "load")

JOB_RETIRE = wiring.Signature({"valid": Out(1), "index": Out(INDEX_BITS), "job_index": Out(JOB_INDEX_BITS)})

ACTIVITY = wiring.Signature({"cause": Out(Cause), "running": Out(1), "command": Out(INDEX_BITS)})


class Npu(wiring.Component):
    """A whole NPU.

    Attributes
    ----------
    axi
        The bus to DRAM.
    registers
        The host's register port; the map is ``hw/spec/registers.rdl``.
    interrupt
        Level.
    retire_0, retire_1, retire_2
        For observation: each engine's committed commands (``Engine`` order), in order.
    activity_0, activity_1, activity_2
        For observation: what each engine's cycle is counted as, whether the engine is in a job, and its oldest command
        that is not committed: it works on that one, or waits for it.
    control_block
        The task's whole state as the layout that memory holds it in, for observation and for saving.
    """

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "axi": Out(Axi4Signature(config)),
                "registers": In(Axi4LiteSignature(ADDRESS_BITS)),
                "interrupt": Out(1),
                **{f"retire_{int(engine)}": Out(JOB_RETIRE) for engine in Engine},
                **{f"activity_{int(engine)}": Out(ACTIVITY) for engine in Engine},
                "control_block": Out(task_control_block(config)),
            }
        )
        self.config = config

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        n = config.array.n

        m.submodules.registers = registers = RegisterFile(config)
        m.submodules.front_end = front_end = FrontEnd(config)
        m.submodules.completion = completion = CompletionUnit(config)
        m.submodules.counters = counters = Counters(config)
        m.submodules.ring_file = ring_file = RingFile(config)
        m.submodules.scratchpad = scratchpad = Scratchpad(
            config, read_sizes=(n, n, n, config.bus_bytes), write_sizes=(n, config.word_bytes)
        )
        m.submodules.memory_port = memory_port = MemoryPort(config, READ_CLIENTS, WRITE_CLIENTS)
        m.submodules.axi_adapter = axi_adapter = AxiAdapter(config)
        m.submodules.dma_load = dma_load = DmaLoad(config)
        m.submodules.compute = compute = Compute(config)
        m.submodules.dma_store = dma_store = DmaStore(config)
        workers = {Engine.LOAD: dma_load, Engine.COMPUTE: compute, Engine.STORE: dma_store}
        issue = {engine: IssueUnit(config, engine) for engine in Engine}
        for engine, unit in issue.items():
            m.submodules[f"issue_{engine.name.lower()}"] = unit

        # --- host
        connect(m, flipped(self.registers), registers.bus)
        m.d.comb += [
            self.interrupt.eq(registers.interrupt),
            front_end.enable.eq(registers.control_enable),
            front_end.resume.eq(registers.control_resume),
            front_end.job_ring_address.eq(registers.job_ring_address),
            front_end.job_ring_log2_entries.eq(registers.job_ring_log2_entries),
            front_end.doorbell.eq(registers.doorbell),
            registers.job_head.eq(front_end.job_head),
            registers.status_running.eq(front_end.running),
            registers.status_stopped.eq(front_end.stopped),
            registers.status_fault_code.eq(front_end.fault_code),
            registers.status_fault_engine.eq(front_end.fault_engine),
            registers.fault_command.eq(front_end.fault_command),
            registers.fault_job_index.eq(front_end.fault_job_index),
            front_end.cycle.eq(counters.cycle),
            registers.cycle.eq(counters.cycle),
            completion.ring_address.eq(registers.completion_ring_address),
            completion.ring_log2_entries.eq(registers.completion_ring_log2_entries),
            completion.tail.eq(registers.completion_tail),
            registers.completion_head.eq(completion.head),
            registers.interrupt_status_completion.eq(completion.pending),
            registers.interrupt_status_completion_error.eq(completion.error),
            registers.interrupt_status_fault.eq(front_end.stopped),
        ]
        connect(m, front_end.completion, completion.completion)

        # --- the active task: one so far, hence a constant. The context unit will drive it, with every engine at rest.
        active_task = Signal(TASK_BITS, init=0)
        m.d.comb += memory_port.task.eq(active_task)

        # --- engines
        # Frozen: waits for another engine, or does nothing more. Once all are, nothing can move: a cursor is moved only
        # by an engine at work, a ring is configured only by the load engine.
        frozen = Signal(len(Engine))
        stalled = Signal()
        m.d.sync += stalled.eq(frozen.all())
        for engine, unit in issue.items():
            name = engine.name.lower()
            worker = workers[engine]

            def of(port: str, name: str = name):
                return getattr(front_end, f"{port}_{name}")

            m.d.comb += [
                of("program_address").eq(getattr(registers, f"program_{name}_address")),
                of("program_commands").eq(getattr(registers, f"program_{name}_commands")),
            ]
            connect(m, of("commands"), unit.i)
            connect(m, unit.o, worker.i)
            connect(m, unit.rings, getattr(ring_file, f"port_{int(engine)}"))
            connect(m, worker.commit, unit.engine_commit)
            connect(m, worker.retire, unit.engine_retire)
            retire = getattr(self, f"retire_{int(engine)}")
            activity = getattr(self, f"activity_{int(engine)}")
            fault = of("fault")
            m.d.comb += [
                unit.engine_idle.eq(worker.idle),
                unit.stop.eq(of("stop")),
                unit.clear.eq(front_end.clear),
                unit.stalled.eq(stalled),
                frozen[engine].eq(worker.idle & (unit.blocked | (unit.idle & of("parked")))),
                # A table outlives no job: the next one may be of another program.
                worker.clear.eq(front_end.clear | (unit.job_done if engine == Engine.COMPUTE else 0)),
                of("retire").valid.eq(unit.retire.valid),
                of("retire").index.eq(unit.retire.index),
                of("job_done").eq(unit.job_done),
                of("idle").eq(unit.idle & worker.idle),
                retire.valid.eq(unit.retire.valid),
                retire.index.eq(unit.retire.index),
                retire.job_index.eq(of("job_index")),
                getattr(counters, f"retired_{name}").eq(unit.retire.valid),
                activity.cause.eq(getattr(counters, f"cause_{name}")),
                activity.running.eq(of("running")),
                activity.command.eq(of("progress").command),
            ]
            if engine == Engine.COMPUTE:
                m.d.comb += [fault.valid.eq(unit.fault.valid), fault.report.eq(unit.fault.report)]
            else:
                # The worker's command is the older one.
                m.d.comb += [
                    worker.base.eq(of("base")),
                    fault.valid.eq(worker.fault.valid | unit.fault.valid),
                    fault.report.eq(Mux(worker.fault.valid, worker.fault.report, unit.fault.report)),
                ]
            flags = getattr(counters, f"flags_{name}")
            m.d.comb += flags.eq(worker.flags.as_value() | unit.flags.as_value())
            waits_for_command = unit.flags.wait_command & of("running") & ~of("stop")
            m.d.comb += [
                data.View(CAUSE_FLAGS, flags).wait_command.eq(waits_for_command),
                data.View(CAUSE_FLAGS, flags).stopped.eq(of("stop")),
            ]
        connect(m, issue[Engine.LOAD].configure, ring_file.configure)
        # Nor does a ring outlive the jobs in flight: what begins after them finds none configured.
        m.d.comb += ring_file.clear.eq(front_end.clear | ~front_end.running)
        self._control_block(m, active_task, registers, front_end, completion, ring_file)

        # --- scratchpad
        reads = (compute.pixels, compute.residual, compute.weights, dma_store.scratchpad)
        writes = (compute.output, dma_load.scratchpad)
        for index, (name, port) in enumerate(zip(SCRATCHPAD_READS, reads, strict=True)):
            connect(m, port, getattr(scratchpad, f"read_{index}"))
            m.d.comb += getattr(counters, f"conflict_{name}").eq(port.valid & ~port.ready)
        for index, (name, port) in enumerate(zip(SCRATCHPAD_WRITES, writes, strict=True)):
            connect(m, port, getattr(scratchpad, f"write_{index}"))
            m.d.comb += getattr(counters, f"conflict_{name}").eq(port.valid & ~port.ready)

        # --- memory
        fetches = [getattr(front_end, f"fetch_{engine.name.lower()}") for engine in Engine]
        for index, port in enumerate((*fetches, dma_load.memory)):
            connect(m, port, getattr(memory_port, f"read_{index}"))
        for index, port in enumerate((dma_store.memory, completion.memory)):
            connect(m, port, getattr(memory_port, f"write_{index}"))
        connect(m, memory_port.port_read, axi_adapter.read)
        connect(m, memory_port.port_write, axi_adapter.write)
        connect(m, axi_adapter.axi, flipped(self.axi))

        m.d.comb += [
            counters.read_bytes_load.eq(dma_load.memory.data.valid & dma_load.memory.data.ready),
            counters.read_bytes_fetch.eq(
                sum(
                    (port.data.valid & port.data.ready for port in fetches[1:]),
                    fetches[0].data.valid & fetches[0].data.ready,
                )
            ),
            counters.write_bytes_store.eq(dma_store.memory.data.valid & dma_store.memory.data.ready),
            counters.write_bytes_completion.eq(completion.memory.data.valid & completion.memory.data.ready),
            counters.snapshot.eq(registers.counter_control_snapshot),
            counters.clear.eq(registers.counter_control_clear),
        ]
        for name in counters.signature.members:
            if name.startswith("counter_"):
                m.d.comb += getattr(registers, name).eq(getattr(counters, name))
        return m

    def _control_block(
        self,
        m: Module,
        active_task: Signal,
        registers: RegisterFile,
        front_end: FrontEnd,
        completion: CompletionUnit,
        ring_file: RingFile,
    ) -> None:
        """Gather the task's state from the units that hold it."""
        block = self.control_block
        m.d.comb += [
            block.task.eq(active_task),
            block.stopped.eq(front_end.stopped),
            block.fault.code.eq(front_end.fault_code),
            block.fault.engine.eq(front_end.fault_engine),
            block.fault.command.eq(front_end.fault_command),
            block.fault.job_index.eq(front_end.fault_job_index),
            block.job_ring.address.eq(registers.job_ring_address),
            block.job_ring.log2_entries.eq(registers.job_ring_log2_entries),
            block.job_ring.tail.eq(registers.doorbell),
            block.completion_ring.address.eq(registers.completion_ring_address),
            block.completion_ring.log2_entries.eq(registers.completion_ring_log2_entries),
            block.completion_ring.head.eq(completion.head),
            block.completion_ring.tail.eq(registers.completion_tail),
            block.ring.eq(ring_file.state),
        ]
        for engine in Engine:
            name = engine.name.lower()
            m.d.comb += [
                block.program[engine].address.eq(getattr(registers, f"program_{name}_address")),
                block.program[engine].commands.eq(getattr(registers, f"program_{name}_commands")),
                block.progress[engine].eq(getattr(front_end, f"progress_{name}")),
            ]
