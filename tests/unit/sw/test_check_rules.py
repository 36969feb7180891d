"""Each rule of the static check by itself, on streams written by hand."""

import pytest

from hw.spec.commands import Cursor, Engine, Opcode
from hw.spec.config import load_config
from sw.check import CheckError, check_command_lengths, check_streams
from sw.decode import decode
from sw.emit import Operand, Streams

CONFIG = load_config("tiny")

BUFFERS = {"constants": 256, "arena": 256, "input": 256, "output": 256}
IN, SEMAPHORE = 0, 2


def _take(ring, need=1, advance=1):
    return Operand(ring, Cursor.CONSUMER_0, need, advance)


def _make(ring, need=1, advance=1):
    return Operand(ring, Cursor.PRODUCER, need, advance)


def _move(base, offset=0, run=16, **fields):
    return {"base": base, "dram_offset": offset, "run_bytes": run, "count": [1, 1, 1]} | fields


class Direct:
    """Streams in which load hands slots straight to store: a ring of two slots of 16 bytes, and a semaphore."""

    def __init__(self):
        self.streams = Streams()
        for ring, size in ((IN, 16), (SEMAPHORE, 0)):
            self.streams.configure(ring, 32 * ring, 2, size, 0)

    def store(self, base, *others, **fields):
        self.streams.add(Engine.STORE, Opcode.STORE, (_take(IN), *others), _move(base, **fields))

    def check(self, config=CONFIG):
        for engine in Engine:
            self.streams.add(engine, Opcode.END)
        commands = {
            engine: [decode(int.from_bytes(raw, "little")) for raw in self.streams.commands[engine]]
            for engine in Engine
        }
        check_streams(commands, BUFFERS, config)
        check_command_lengths(commands, config)

    def load(self, base, *waits, **fields):
        self.streams.add(Engine.LOAD, Opcode.LOAD, (_make(IN), *waits), _move(base, **fields))


def test_hand_written_streams_pass():
    hand = Direct()
    hand.load(2)
    hand.store(1, _make(SEMAPHORE))
    hand.load(1, _take(SEMAPHORE))
    hand.store(3)
    hand.check()


def test_a_load_that_only_happens_to_come_after_its_store_is_found():
    hand = Direct()
    hand.load(2)
    hand.store(1)
    hand.load(2)
    hand.load(2)
    # Two slots: the third load waits for the first store to have passed, the second did not have to.
    hand.store(1, offset=16)
    hand.store(1, offset=32)
    hand.load(1)
    hand.store(3)
    hand.check()
    race = Direct()
    race.load(2)
    race.store(1)
    race.load(2)
    race.store(1, offset=16)
    race.load(1, offset=16)
    race.store(3)
    with pytest.raises(CheckError, match="may read DRAM before an earlier store has written it"):
        race.check()


def test_a_store_that_only_happens_to_come_after_a_load_is_found():
    race = Direct()
    race.load(2)
    race.store(1, _make(SEMAPHORE))
    race.load(2, _take(SEMAPHORE))
    race.load(1)
    race.store(1)
    race.store(3)
    with pytest.raises(CheckError, match="may overwrite DRAM that an earlier load has not read yet"):
        race.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": 0}, "has runs of 0 bytes"),
        ({"count": [0, 1, 1]}, "has a count of 0"),
        ({"run": 64}, "writes beyond the slots that it reserved"),
        ({"count": [2, 1, 1], "run": 1, "scratchpad_stride": [33, 0, 0]}, "writes beyond the slots that it reserved"),
        ({"offset": 250}, "reaches bytes 250 to 266 of a buffer of 256"),
    ],
)
def test_bad_transfers_are_found(change, message):
    hand = Direct()
    hand.load(2, **change)
    hand.store(1)
    with pytest.raises(CheckError, match=message):
        hand.check()


@pytest.mark.parametrize(("base", "name"), [(0, "constants"), (2, "input")])
def test_a_store_into_what_is_only_read_is_found(base, name):
    hand = Direct()
    hand.load(2)
    hand.store(base)
    with pytest.raises(CheckError, match=f"stores into the {name} buffer"):
        hand.check()


def test_a_transfer_that_takes_too_long_is_found():
    config = load_config("tiny", {"command_cycles_max": 256})
    hand = Direct()
    hand.load(2, run=16, count=[512, 1, 1])
    hand.store(1)
    with pytest.raises(CheckError, match="takes 2560 beats; command_cycles_max allows 256"):
        hand.check(config)


def test_a_command_of_another_stream_is_found():
    hand = Direct()
    hand.load(2)
    hand.streams.add(Engine.STORE, Opcode.LOAD, (_take(IN),), _move(1))
    with pytest.raises(CheckError, match="does not belong in the store stream"):
        hand.check()


@pytest.mark.parametrize(
    ("base", "ring_bytes", "message"),
    [
        (130, 32, "at 130, not a multiple of a word of 4 bytes"),
        (128, 33, "has 2 slots of 16 bytes in a ring of 33 bytes"),
    ],
)
def test_a_badly_shaped_ring_is_found(base, ring_bytes, message):
    hand = Direct()
    body = {"ring": 5, "consumer_mask": 1, "slots": 2, "base": base, "slot_bytes": 16, "ring_bytes": ring_bytes}
    hand.streams.add(Engine.LOAD, Opcode.RING_CONFIGURE, (), body | {"follows": [4] * 4})
    hand.load(2)
    hand.store(1)
    with pytest.raises(CheckError, match=message):
        hand.check()


def test_a_consumer_that_a_ring_does_not_have_is_found():
    config = load_config("tiny", {"rings.consumers": 1})
    hand = Direct()
    hand.streams.configure(6, 256, 2, 0, 0)
    hand.streams.add(Engine.LOAD, Opcode.WAIT, (Operand(6, Cursor.CONSUMER_3, 0, 0),))
    with pytest.raises(CheckError, match="uses cursor 3 of ring 6; rings have 1 consumers"):
        hand.check(config)


def test_a_ring_that_is_used_before_it_is_known_to_be_configured_is_found():
    hand = Direct()
    hand.load(2)
    # Nothing tells the store engine that the load engine has come this far.
    hand.streams.configure(6, 256, 2, 0, 0)
    hand.store(1, _make(6))
    hand.streams.add(Engine.LOAD, Opcode.WAIT, (_take(6),))
    hand.streams.configure(6, 256, 1, 0, 0)
    hand.streams.add(Engine.STORE, Opcode.WAIT, (_make(6),))
    hand.streams.add(Engine.LOAD, Opcode.WAIT, (_take(6),))
    with pytest.raises(CheckError, match=r"ring 6 before it is|ring 6 in an earlier shape"):
        hand.check()


def test_a_slot_beyond_those_needed_is_not_readable():
    hand = Direct()
    hand.load(2)
    hand.load(2)
    hand.streams.add(Engine.STORE, Opcode.STORE, (_take(IN, 1, 1),), _move(1, run=32))
    hand.streams.add(Engine.STORE, Opcode.WAIT, (_take(IN),))
    with pytest.raises(CheckError, match="reads scratchpad beyond the slots that it acquired"):
        hand.check()
