"""The task control block: all that a task keeps between commands, in one layout for gateware and driver."""

from amaranth.lib import data

from hw.spec.commands import BASE_REGISTERS, COUNT_BITS, Engine
from hw.spec.config import NpuConfig

ENGINES = len(Engine)
COUNTER_BITS = COUNT_BITS + 2
"""Cursor counts run freely modulo 2**COUNTER_BITS; differences are exact since a ring has fewer slots."""
INDEX_BITS = 24
"""Bits of a command index within its stream."""
JOB_INDEX_BITS = 16
"""Bits of a job index; job ring entry = index modulo the ring's (power of two) length."""
HOST_ADDRESS_BITS = 48
"""Bits of an address in the host's registers, at least ``address_bits``; what lies beyond the latter is a fault."""


def base_register(config: NpuConfig) -> data.StructLayout:
    """A buffer: at most the whole address space, hence the extra bit of ``bytes``."""
    return data.StructLayout({"address": config.address_bits, "bytes": config.address_bits + 1})


def engine_progress(config: NpuConfig) -> data.StructLayout:
    """One engine's place in the program."""
    return data.StructLayout(
        {
            "command": INDEX_BITS,  # index of the oldest command that is not committed
            "job_index": JOB_INDEX_BITS,
            "running": 1,  # inside a job
            "job": 32,  # the host's number for the job
            "base": data.ArrayLayout(base_register(config), BASE_REGISTERS),
        }
    )


def cursor_state(config: NpuConfig) -> data.StructLayout:
    """One cursor. ``issue`` runs ahead of ``commit`` by what commands under way will pass."""
    return data.StructLayout(
        {
            "issue": COUNTER_BITS,
            "commit": COUNTER_BITS,
            "offset": config.scratchpad_address_bits,  # bytes from the ring's base to the slot at ``issue``
        }
    )


def ring_state(config: NpuConfig) -> data.StructLayout:
    """One ring: place, shape, cursors. ``reserved`` counts slots reserved since the ring was configured."""
    return data.StructLayout(
        {
            "base": config.scratchpad_address_bits,
            "slot_bytes": config.scratchpad_address_bits + 1,
            "ring_bytes": config.scratchpad_address_bits + 1,
            "slots": COUNT_BITS,
            "consumer_mask": config.rings.consumers,
            "follows": data.ArrayLayout(3, config.rings.consumers),
            "reserved": COUNTER_BITS,
            "producer": cursor_state(config),  # issue: claimed by commands; commit: published
            "consumer": data.ArrayLayout(cursor_state(config), config.rings.consumers),
        }
    )


def task_control_block(config: NpuConfig) -> data.StructLayout:
    """The whole task: identity and state, progress of each engine, rings, rings of jobs and completions."""
    return data.StructLayout(
        {
            "task": 8,
            "stopped": 1,  # by a fault, until the driver resumes it
            "fault": data.StructLayout({"code": 8, "engine": 2, "command": INDEX_BITS, "job_index": JOB_INDEX_BITS}),
            "program": data.ArrayLayout(
                data.StructLayout({"address": HOST_ADDRESS_BITS, "commands": INDEX_BITS}), ENGINES
            ),
            "job_ring": data.StructLayout({"address": HOST_ADDRESS_BITS, "log2_entries": 4, "tail": JOB_INDEX_BITS}),
            "completion_ring": data.StructLayout(
                {"address": HOST_ADDRESS_BITS, "log2_entries": 4, "head": JOB_INDEX_BITS, "tail": JOB_INDEX_BITS}
            ),
            "progress": data.ArrayLayout(engine_progress(config), ENGINES),
            "ring": data.ArrayLayout(ring_state(config), config.rings.count),
        }
    )
