"""What every cycle of every engine is counted as.

Each engine raises one flag for each condition that holds; the first raised in ``PRECEDENCE`` is the cycle's cause, so
the causes of an engine add up to the cycles exactly.
"""

from amaranth.lib import enum


class Cause(enum.IntEnum, shape=4):
    BUSY = 0
    """Load, store: a beat moved. Compute: the array (or the maximum) took a line, or the epilogue finished one."""
    BANK_CONFLICT = 1
    """Work was ready but a scratchpad bank was taken by another port."""
    MEMORY = 2
    """Waiting for the memory port: a request not taken, data or a write response not yet there."""
    PIPELINE = 3
    """The engine's own latencies: weight preload, table load, accumulators still draining, operand look-up."""
    WAIT_FILLED = 4
    """The next command waits for a filled slot."""
    WAIT_FREE = 5
    """The next command waits for a free slot."""
    WAIT_COMMAND = 6
    """A job runs but no command has arrived yet."""
    STOPPED = 7
    """Stopped by a fault."""
    IDLE = 8
    """No job."""


PRECEDENCE: tuple[Cause, ...] = tuple(Cause)
"""The order of the enumeration is the order of precedence."""
