"""The signatures by which units meet. Directions are those of the unit that *asks* (the initiator, or producer)."""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.spec.causes import PRECEDENCE
from hw.spec.commands import COMMAND_BITS, COUNT_BITS, OPERANDS
from hw.spec.config import NpuConfig
from hw.spec.control_block import INDEX_BITS

CLIENT_BITS = 3
"""Clients of the memory port; the AXI ID is the client."""
CLIENT_LOAD, CLIENT_STORE, CLIENT_FETCH_LOAD, CLIENT_FETCH_COMPUTE, CLIENT_FETCH_STORE, CLIENT_COMPLETION = range(6)
TASK_BITS = 4
"""Tasks whose addresses can be told apart; the memory port tags requests with the active one."""


# --- memory port ------------------------------------------------------------------------------------------------


def memory_request(config: NpuConfig) -> data.StructLayout:
    """A burst: ``beats`` beats from ``address`` (a multiple of the bus width), inside one 4 KiB page.

    The memory port sets ``client`` and ``task``, whatever its clients put there.
    """
    return data.StructLayout(
        {
            "address": config.address_bits,
            "beats": 7,  # 1 .. dma.burst_beats
            "client": CLIENT_BITS,
            "task": TASK_BITS,
        }
    )


def memory_read_data(config: NpuConfig) -> data.StructLayout:
    return data.StructLayout({"data": config.dma.bus_bits, "last": 1, "error": 1, "client": CLIENT_BITS})


def memory_write_data(config: NpuConfig) -> data.StructLayout:
    return data.StructLayout({"data": config.dma.bus_bits, "strobe": config.bus_bytes, "last": 1})


MEMORY_WRITE_DONE = data.StructLayout({"error": 1, "client": CLIENT_BITS})


class MemoryReadSignature(wiring.Signature):
    """A client's reads: bursts asked, beats back in the order asked. A client must always have room for the beats it
    asked for; it may then still hold ``data.ready`` low for a while."""

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "request": Out(stream.Signature(memory_request(config))),
                "data": In(stream.Signature(memory_read_data(config))),
            }
        )


class MemoryWriteSignature(wiring.Signature):
    """A client's writes: a burst's beats follow its request in order; one ``done`` a burst, in order."""

    def __init__(self, config: NpuConfig):
        super().__init__(
            {
                "request": Out(stream.Signature(memory_request(config))),
                "data": Out(stream.Signature(memory_write_data(config))),
                "done": In(stream.Signature(MEMORY_WRITE_DONE, always_ready=True)),
            }
        )


class Axi4Signature(wiring.Signature):
    """AXI4 as initiator (IHI 0022): INCR bursts of full-width beats, no lock, cache, protection or QoS signals."""

    def __init__(self, config: NpuConfig):
        bits, width, ids = config.address_bits, config.dma.bus_bits, CLIENT_BITS
        super().__init__(
            {
                "awid": Out(ids), "awaddr": Out(bits), "awlen": Out(8), "awsize": Out(3), "awburst": Out(2),
                "awvalid": Out(1), "awready": In(1),
                "wdata": Out(width), "wstrb": Out(width // 8), "wlast": Out(1), "wvalid": Out(1), "wready": In(1),
                "bid": In(ids), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
                "arid": Out(ids), "araddr": Out(bits), "arlen": Out(8), "arsize": Out(3), "arburst": Out(2),
                "arvalid": Out(1), "arready": In(1),
                "rid": In(ids), "rdata": In(width), "rresp": In(2), "rlast": In(1), "rvalid": In(1), "rready": Out(1),
            }
        )  # fmt: skip


class Axi4LiteSignature(wiring.Signature):
    """AXI4-Lite as initiator, 32 data bits, ``address_bits`` of byte address."""

    def __init__(self, address_bits: int):
        super().__init__(
            {
                "awaddr": Out(address_bits), "awprot": Out(3), "awvalid": Out(1), "awready": In(1),
                "wdata": Out(32), "wstrb": Out(4), "wvalid": Out(1), "wready": In(1),
                "bresp": In(2), "bvalid": In(1), "bready": Out(1),
                "araddr": Out(address_bits), "arprot": Out(3), "arvalid": Out(1), "arready": In(1),
                "rdata": In(32), "rresp": In(2), "rvalid": In(1), "rready": Out(1),
            }
        )  # fmt: skip


# --- scratchpad ports ---------------------------------------------------------------------------------------------


class ScratchpadReadSignature(wiring.Signature):
    """Reads ``size`` bytes at any byte address. ``ready`` is the grant, in the cycle of ``valid``; ``data`` holds the
    bytes in the next cycle, and in that cycle only."""

    def __init__(self, config: NpuConfig, size: int):
        super().__init__(
            {
                "valid": Out(1),
                "address": Out(config.scratchpad_address_bits),
                "ready": In(1),
                "data": In(size * 8),
            }
        )


class ScratchpadWriteSignature(wiring.Signature):
    """Writes up to ``size`` bytes at any byte address: byte i of ``data`` goes to ``address + i`` if strobed. A write
    granted in cycle t is seen by reads granted from cycle t + 1 on."""

    def __init__(self, config: NpuConfig, size: int):
        super().__init__(
            {
                "valid": Out(1),
                "address": Out(config.scratchpad_address_bits),
                "data": Out(size * 8),
                "strobe": Out(size),
                "ready": In(1),
            }
        )


# --- ring file ----------------------------------------------------------------------------------------------------


class RingSignature(wiring.Signature):
    """One engine's view of the ring file. Look-ups are combinational; takes and commits act at the clock edge."""

    def __init__(self, config: NpuConfig):
        bits = config.scratchpad_address_bits
        super().__init__(
            {
                # look-up of a cursor
                "ring": Out(6),
                "cursor": Out(3),
                "need": Out(COUNT_BITS),
                "advance": Out(COUNT_BITS),
                "ready": In(1),  # the operand fits and its condition holds
                "illegal": In(1),  # no such ring or cursor, whatever the ring's shape
                "fits": In(1),  # the ring is configured, the cursor active, need and advance at most the slots
                "base": In(bits),  # of the ring
                "start": In(bits),  # offset of the slot at the cursor, from the base
                "ring_bytes": In(bits + 1),
                "take": Out(1),  # takes the looked-up operand (need, advance)
                # commit
                "commit": Out(1),
                "commit_ring": Out(6),
                "commit_cursor": Out(3),
                "commit_advance": Out(COUNT_BITS),
            }
        )


class RingConfigureSignature(wiring.Signature):
    """The load engine's way to give a ring its place and shape (fields of the RING_CONFIGURE command)."""

    def __init__(self, config: NpuConfig):
        bits = config.scratchpad_address_bits
        super().__init__(
            {
                "drained_mask": Out(32),
                "drained": In(1),  # combinational: all rings of the mask are drained
                "valid": Out(1),  # configure at the clock edge
                "ring": Out(6),
                "base": Out(bits),
                "slots": Out(COUNT_BITS),
                "slot_bytes": Out(bits + 1),
                "ring_bytes": Out(bits + 1),
                "consumer_mask": Out(config.rings.consumers),
                "follows": Out(data.ArrayLayout(3, config.rings.consumers)),
            }
        )


# --- commands -----------------------------------------------------------------------------------------------------


def fetched_command(config: NpuConfig) -> data.StructLayout:
    """A command on its way from the fetcher to the issue unit. ``epoch`` counts the fetcher's flushes."""
    return data.StructLayout({"command": COMMAND_BITS, "index": INDEX_BITS, "epoch": 2})


def operand_place(config: NpuConfig) -> data.StructLayout:
    """An operand taken: where it is, and what its commit passes."""
    bits = config.scratchpad_address_bits
    return data.StructLayout(
        {
            "ring": 6,
            "cursor": 3,
            "advance": COUNT_BITS,
            "base": bits,  # of the ring
            "start": bits,  # offset from the base: slot plus the operand's own offset, wrapped
            "ring_bytes": bits + 1,
        }
    )


def issued_command(config: NpuConfig) -> data.StructLayout:
    """A command whose operands are all taken: from here on it waits for no other engine."""
    return data.StructLayout(
        {
            "command": COMMAND_BITS,
            "index": INDEX_BITS,
            "operand": data.ArrayLayout(operand_place(config), OPERANDS),
        }
    )


FAULT_REPORT = data.StructLayout({"code": 8, "command": INDEX_BITS})
CAUSE_FLAGS = data.StructLayout({cause.name.lower(): 1 for cause in PRECEDENCE})
"""One bit for each condition; ``hw.counters`` picks the first in precedence."""


class RingCommitSignature(wiring.Signature):
    """An engine passes slots: one cursor a cycle. Always accepted."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "ring": Out(6), "cursor": Out(3), "advance": Out(COUNT_BITS)})


class RetireSignature(wiring.Signature):
    """A command is committed: all its effects are visible and its operands passed. In order, at most one a cycle."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "index": Out(INDEX_BITS)})


class FaultSignature(wiring.Signature):
    """A pulse that says why an engine stopped and at which command."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "report": Out(FAULT_REPORT)})
