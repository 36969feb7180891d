"""Each rule of the order of commands by itself, on streams written by hand.

Bodies are left out: the replay looks only at operands and at RING_CONFIGURE.
"""

import dataclasses

import pytest

from hw.spec.commands import ComputeOperand, Cursor, Engine, Opcode
from hw.spec.config import load_config
from sw.decode import Command
from sw.emit import Operand
from sw.replay import Part, Replay, ReplayError

CONFIG = load_config("tiny")
INPUT, OUTPUT, SEMAPHORE, OTHER = 0, 4, 8, 9
"""Numbers of rings."""


def take(ring, need=1, advance=None, cursor=Cursor.CONSUMER_0, offset=0):
    return Operand(ring, cursor, need, need if advance is None else advance, offset)


def make(ring, need=1, advance=None, offset=0):
    return take(ring, need, advance, Cursor.PRODUCER, offset)


class Hand:
    """Streams under construction; rings have 2 slots of 16 bytes, each in its own place, and one consumer."""

    def __init__(self, *rings):
        self.streams: dict[Engine, list[Command]] = {engine: [] for engine in Engine}
        for ring in rings:
            self.configure(ring)

    def add(self, engine, opcode, *operands, body=None):
        padded = (*operands, *[None] * (5 - len(operands)))
        self.streams[engine].append(Command(opcode, 0, padded, body or {}))

    def configure(self, ring, mask=0, slots=2, place=None, consumers=1, follows=(4, 4, 4, 4), slot_bytes=16):
        body = {
            "ring": ring,
            "base": 64 * (ring if place is None else place),
            "slots": slots,
            "slot_bytes": slot_bytes,
            "consumer_mask": consumers,
            "follows": list(follows),
            "drained_mask": mask,
        }
        self.add(Engine.LOAD, Opcode.RING_CONFIGURE, body=body)

    def load(self, *operands):
        self.add(Engine.LOAD, Opcode.LOAD, *operands)

    def convolve(self, source, result, weights=None):
        self.add(Engine.COMPUTE, Opcode.CONVOLVE, source, weights, None, None, result)

    def store(self, *operands):
        self.add(Engine.STORE, Opcode.STORE, *operands)

    def run(self, config=CONFIG, jobs=1):
        streams = {
            engine: [*commands, Command(Opcode.END, 0, (None,) * 5, {})] for engine, commands in self.streams.items()
        }
        return list(Replay(config, streams, jobs))

    def fails(self, message, config=CONFIG, jobs=1):
        with pytest.raises(ReplayError, match=message):
            self.run(config, jobs)


def chain(slots=2):
    """Two tiles from load through compute to store."""
    hand = Hand()
    hand.configure(INPUT, slots=slots)
    hand.configure(OUTPUT, slots=slots)
    hand.configure(SEMAPHORE, slot_bytes=0)
    for _ in range(2):
        hand.load(make(INPUT))
        hand.convolve(take(INPUT), make(OUTPUT))
        hand.store(take(OUTPUT), make(SEMAPHORE))
    return hand


def bits(*rings):
    return sum(1 << ring for ring in rings)


def test_a_whole_set_of_rings_may_be_configured_anew():
    """What compiled programs do: input drained, so all is issued; output drained, so all is stored."""
    hand = chain()
    hand.configure(INPUT, bits(INPUT, OUTPUT), slots=1, place=OUTPUT)
    hand.configure(OUTPUT, bits(INPUT, OUTPUT), slots=1, place=INPUT)
    hand.load(make(INPUT))
    hand.convolve(take(INPUT), make(OUTPUT))
    hand.store(take(OUTPUT), None)
    hand.load(take(SEMAPHORE, 2))
    events = hand.run()
    configured = [event for event in events if event.command.opcode == Opcode.RING_CONFIGURE][3]
    assert configured.started == (5, 2, 2, 2, 2, 2)
    assert configured.started[Part.STORE] == 2


# --- a ring that happens to be drained -------------------------------------------------------------------------------


def test_an_output_ring_drained_between_two_uses_is_a_race():
    """The load of the second tile waits for the first, so only the first result is known to have passed."""
    hand = chain(slots=1)
    hand.configure(OUTPUT, bits(OUTPUT))
    hand.fails(r"compute command 1 \(CONVOLVE\) may use ring 4 before it is configured")


def test_an_output_ring_drained_after_a_use_that_load_does_not_know_of_is_a_race():
    hand = chain()
    hand.load(take(SEMAPHORE, 1))  # the first tile is stored
    hand.configure(OUTPUT, bits(OUTPUT))
    hand.load(take(SEMAPHORE, 1))
    hand.fails(r"load command 6 \(RING_CONFIGURE\) may place ring 4 while compute command 1 still uses ring 4")


def test_a_new_place_over_a_ring_that_load_does_not_know_to_be_done_with_is_a_race():
    hand = chain()
    hand.load(take(SEMAPHORE, 1))
    hand.configure(OTHER, bits(OUTPUT), place=OUTPUT)
    hand.load(take(SEMAPHORE, 1))
    hand.fails(r"may place ring 9 while compute command 1 still uses ring 4")


def test_the_semaphore_of_the_last_store_teaches_it():
    hand = chain()
    hand.load(take(SEMAPHORE, 2))
    hand.configure(OTHER, bits(OUTPUT), place=OUTPUT)
    assert hand.run()[-1].command.name == "END"


def test_input_drained_says_nothing_of_the_results():
    hand = chain()
    hand.configure(OTHER, bits(INPUT))
    event = next(e for e in hand.run() if e.index == 5 and e.engine == Engine.LOAD)
    assert event.started[Part.INPUT] == event.started[Part.ISSUED] == 2
    assert event.started[Part.COMPUTE] == event.started[Part.STORE] == 0


def test_weights_read_say_nothing_of_the_input():
    hand = Hand(INPUT, OTHER)
    hand.load(make(OTHER))
    hand.load(make(INPUT))
    hand.convolve(take(INPUT), None, take(OTHER))
    hand.configure(OTHER, bits(OTHER))
    event = next(e for e in hand.run() if e.index == 4 and e.engine == Engine.LOAD)
    assert event.started == (4, 0, 0, 0, 1, 1)  # of compute: weights and issue


def test_a_place_over_a_ring_that_is_not_waited_for():
    hand = Hand(INPUT)
    hand.configure(OTHER, place=INPUT)
    hand.fails("places ring 9 over ring 0 without waiting for it")


def test_a_ring_waits_for_itself_whatever_the_mask():
    hand = Hand(INPUT)
    hand.load(make(INPUT))
    hand.configure(INPUT)
    hand.fails(r"deadlock: load command 2 \(RING_CONFIGURE waits for drained rings\)")


# --- use before the configuration is known ---------------------------------------------------------------------------


def test_a_producer_does_not_order_itself():
    hand = Hand(OUTPUT)
    hand.store(make(OUTPUT))
    hand.load(take(OUTPUT))
    hand.fails(r"store command 0 \(STORE\) may use ring 4 before it is configured")


def test_an_operand_relies_only_on_those_before_it():
    hand = Hand(INPUT, OUTPUT)
    hand.load(make(INPUT))
    hand.store(make(OUTPUT), take(INPUT))
    hand.load(take(OUTPUT))
    hand.fails("may use ring 4 before it is configured")
    right = Hand(INPUT, OUTPUT)
    right.load(make(INPUT))
    right.store(take(INPUT), make(OUTPUT))
    right.load(take(OUTPUT))
    right.run()


def test_an_operand_that_needs_nothing_does_not_order_itself():
    hand = Hand(INPUT)
    hand.store(take(INPUT, 0))
    hand.fails(r"store command 0 \(STORE\) may use ring 0 before it is configured")


def test_a_ring_in_use_must_not_be_named_by_a_mask():
    """The ring may fill up again before the test, which then waits for commands that wait for it."""
    hand = Hand(INPUT, OUTPUT)
    hand.load(make(INPUT))
    hand.load(make(INPUT))
    hand.store(take(INPUT), None)
    hand.add(Engine.STORE, Opcode.WAIT, make(OUTPUT))
    hand.configure(OTHER, bits(OUTPUT))
    hand.load(take(OUTPUT))
    hand.fails(r"store command 1 \(WAIT\) may use ring 4 before it is found drained")


def test_a_shape_that_the_engine_never_met():
    hand = Hand(INPUT)
    hand.configure(INPUT)
    hand.load(make(INPUT))
    hand.store(take(INPUT))
    hand.fails("may take ring 0 in an earlier shape, in which cursor 0 was not the store engine's")


def test_a_shape_in_which_the_cursor_was_another_engines():
    hand = Hand(INPUT, OTHER)
    hand.load(make(INPUT))
    hand.convolve(take(INPUT), None)
    hand.load(make(OTHER))
    hand.store(take(OTHER))  # so store knows the first shape
    hand.configure(INPUT, bits(INPUT))
    hand.load(make(INPUT))
    hand.store(take(INPUT))
    hand.fails("may take ring 0 in an earlier shape, in which cursor 0 was not the store engine's")


# --- cursors ---------------------------------------------------------------------------------------------------------


def test_a_cursor_of_another_engine():
    hand = Hand(INPUT)
    hand.load(make(INPUT))
    hand.load(make(INPUT))
    hand.convolve(take(INPUT), None)
    hand.store(take(INPUT))
    hand.fails(r"store command 0 \(STORE\) moves cursor 0 of ring 0, which belongs to the compute engine")


def test_a_cursor_through_two_operands_of_compute():
    hand = Hand(INPUT)
    hand.load(make(INPUT))
    hand.load(make(INPUT))
    hand.convolve(None, None, take(INPUT))
    hand.convolve(take(INPUT), None)
    hand.fails(
        rf"moves cursor 0 of ring 0 by operand {ComputeOperand.INPUT:d}; an earlier command did by operand "
        rf"{ComputeOperand.WEIGHTS:d}"
    )


def test_a_consumer_passes_only_what_it_waited_for():
    hand = Hand(INPUT)
    hand.load(make(INPUT, 2))
    hand.store(take(INPUT, 1, 2))
    hand.fails(r"store command 0 \(STORE\) passes 2 slots of ring 0 but needs 1")


def test_a_consumer_may_touch_only_what_it_waited_for():
    hand = Hand(INPUT)
    hand.load(make(INPUT, 2))
    hand.store(take(INPUT, 1, offset=4))
    hand.store(take(INPUT, 1))
    place = next(event.places[0] for event in hand.run() if event.command.opcode == Opcode.STORE)
    assert place is not None and (place.room, place.produces) == (12, False)


def test_a_producer_publishes_only_what_it_reserved():
    hand = Hand(INPUT)
    hand.load(make(INPUT, 1, 2))
    hand.fails(r"load command 1 \(LOAD\) publishes ring 0 beyond what was reserved")


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (take(CONFIG.rings.count), r"load command 1 \(LOAD\) uses ring 16; there are 16"),
        (take(INPUT, cursor=Cursor.CONSUMER_1), r"uses cursor 1 of ring 0, which is not active"),
        (make(INPUT, 3, 0), r"wants more slots than ring 0 has"),
        (make(INPUT, 0, 3), r"wants more slots than ring 0 has"),
        (make(INPUT, offset=33), r"has an offset beyond ring 0"),
    ],
)
def test_operands_that_no_ring_fits(operand, message):
    hand = Hand(INPUT)
    hand.load(operand)
    hand.fails(message)


def test_a_consumer_that_the_hardware_does_not_have():
    hand = Hand()
    hand.configure(INPUT, consumers=9)
    hand.load(take(INPUT, cursor=Cursor.CONSUMER_3))
    config = dataclasses.replace(CONFIG, rings=dataclasses.replace(CONFIG.rings, consumers=3))
    hand.fails("uses cursor 3 of ring 0; rings have 3 consumers", config)


def test_a_consumer_that_follows_another_waits_for_it():
    hand = Hand()
    hand.configure(INPUT, consumers=3, follows=(4, 0, 4, 4))
    hand.load(make(INPUT))
    hand.store(take(INPUT, cursor=Cursor.CONSUMER_1))
    hand.fails(r"deadlock: store command 0 \(STORE waits for 1 filled slots of ring 0\)")
    hand.convolve(take(INPUT), None)
    store = next(event for event in hand.run() if event.command.opcode == Opcode.STORE)
    assert store.started[Part.INPUT] == 1


def test_a_deadlock_names_every_engine_that_waits():
    hand = Hand(INPUT, OUTPUT)
    hand.load(take(OUTPUT))
    hand.store(take(INPUT), make(OUTPUT))
    hand.fails(
        r"deadlock: load command 2 \(LOAD waits for 1 filled slots of ring 4\), "
        r"store command 0 \(STORE waits for 1 filled slots of ring 0\)"
    )
    full = Hand(INPUT)
    full.load(make(INPUT))
    full.load(make(INPUT, 2))
    full.fails(r"deadlock: load command 2 \(LOAD waits for 2 free slots of ring 0\)")


def test_a_stream_without_end():
    with pytest.raises(ReplayError, match="the load stream does not end with END"):
        list(Replay(CONFIG, {engine: [] for engine in Engine}))
