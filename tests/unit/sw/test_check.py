"""The static check passes what the compiler writes, and finds each kind of planted fault."""

import dataclasses

import pytest

from hw.spec.commands import ComputeOperand, Cursor, Engine, Opcode
from hw.spec.config import load_config
from sw.check import CheckError, check_command_lengths, check_program, check_streams
from sw.compiler import compile_graph
from sw.decode import decode, decode_stream
from sw.emit import Operand, Streams
from sw.policy import POLICIES, policy
from sw.workloads import quantised_yolov5

CONFIG = load_config("tiny")


@pytest.fixture(scope="module")
def program():
    graph = quantised_yolov5("n", 32, 32)
    return compile_graph(graph, CONFIG, policy("pingpong")).program


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_programs_pass_as_consecutive_jobs(name):
    graph = quantised_yolov5("n", 32, 32)
    check_program(compile_graph(graph, CONFIG, policy(name)).program, CONFIG, jobs=2)


def _streams(program):
    return {engine: decode_stream(program, engine) for engine in Engine}


def _check(program, streams, buffer_bytes=None):
    check_streams(streams, buffer_bytes or program.buffer_bytes, CONFIG)


def _find(commands, opcode, condition=lambda command: True):
    return next(i for i, c in enumerate(commands) if c.opcode == opcode and condition(c))


def _change(command, operand=None, body=None, **fields):
    operands = list(command.operands)
    if operand is not None:
        operands[operand] = dataclasses.replace(operands[operand], **fields)
    return dataclasses.replace(command, operands=tuple(operands), body=command.body | (body or {}))


def test_another_configuration_is_refused(program):
    with pytest.raises(CheckError, match="is for configuration"):
        check_program(program, load_config("ecp5"))


def test_a_load_that_is_left_out_is_a_deadlock(program):
    streams = _streams(program)
    del streams[Engine.LOAD][_find(streams[Engine.LOAD], Opcode.LOAD)]
    with pytest.raises(CheckError, match=r"deadlock: .*compute command 0 .*waits for 1 filled slots"):
        _check(program, streams)


def test_a_store_that_is_left_out_is_a_deadlock(program):
    streams = _streams(program)
    del streams[Engine.STORE][_find(streams[Engine.STORE], Opcode.STORE, lambda c: c.operands[1] is not None)]
    with pytest.raises(CheckError, match="deadlock"):
        _check(program, streams)


def test_a_store_that_no_load_waits_for_is_missed_by_the_load_itself(program):
    streams = _streams(program)
    del streams[Engine.STORE][_find(streams[Engine.STORE], Opcode.STORE, lambda c: c.operands[1] is None)]
    with pytest.raises(CheckError, match=r"reads DRAM that nothing has written"):
        _check(program, streams)


def test_publishing_more_than_reserved_is_an_overflow(program):
    streams = _streams(program)
    index = _find(streams[Engine.COMPUTE], Opcode.CONVOLVE)
    streams[Engine.COMPUTE][index] = _change(streams[Engine.COMPUTE][index], 4, need=0)
    with pytest.raises(CheckError, match="beyond"):
        _check(program, streams)


def test_a_read_before_the_slot_is_written_is_found(program):
    streams = _streams(program)
    index = _find(streams[Engine.LOAD], Opcode.LOAD, lambda c: c.body["run_bytes"] > 300)
    command = streams[Engine.LOAD][index]
    streams[Engine.LOAD][index] = _change(command, body={"run_bytes": command.body["run_bytes"] - 128})
    with pytest.raises(CheckError, match="that nothing has written"):
        _check(program, streams)


def test_a_load_that_does_not_wait_for_its_store_is_found(program):
    streams = _streams(program)
    index = _find(streams[Engine.LOAD], Opcode.LOAD, lambda c: c.operands[1] is not None)
    command = streams[Engine.LOAD][index]
    streams[Engine.LOAD][index] = dataclasses.replace(command, operands=(command.operands[0], *[None] * 4))
    with pytest.raises(CheckError, match="reads DRAM that nothing has written"):
        _check(program, streams)


def test_a_store_over_bytes_still_to_be_loaded_is_found(program):
    streams = _streams(program)
    stores = streams[Engine.STORE]
    # The first layer's second store lands on the network's input, which later loads still read.
    stores[1] = _change(stores[1], body={"base": 2, "dram_offset": 0})
    with pytest.raises(CheckError, match=r"store command 1 \(STORE\) stores into the input buffer"):
        _check(program, streams)


def test_a_ring_over_another_that_is_not_waited_for_is_found(program):
    streams = _streams(program)
    loads = streams[Engine.LOAD]
    configures = [i for i, c in enumerate(loads) if c.opcode == Opcode.RING_CONFIGURE]
    first = loads[configures[1]]
    index = next(i for i in configures[2:] if loads[i].body["ring"] != first.body["ring"] and loads[i].body["ring"] < 6)
    loads[index] = _change(loads[index], body={"base": first.body["base"], "drained_mask": 0})
    with pytest.raises(CheckError, match="without waiting for it"):
        _check(program, streams)


def test_an_address_outside_a_buffer_is_found(program):
    sizes = program.buffer_bytes | {"arena": program.buffer_bytes["arena"] // 2}
    with pytest.raises(CheckError, match="of a buffer of"):
        _check(program, _streams(program), sizes)


def test_a_stream_without_end_is_found(program):
    streams = _streams(program)
    streams[Engine.STORE].pop()
    with pytest.raises(CheckError, match="does not end with END"):
        _check(program, streams)


# --- CONVOLVE, on streams written by hand ----------------------------------------------------------------------------

N = CONFIG.array.n
WEIGHT_BYTES = (9 + N) * N
TILE = {
    "accumulate_first": 1,
    "accumulate_last": 1,
    "out_width": 2,
    "out_rows": 2,
    "kernel_width": 1,
    "kernel_height": 1,
    "in_blocks": 1,
    "stride_x": 1,
    "stride_y": 1,
    "in_width": 2,
    "in_rows": 2,
    "in_pixel_stride": N,
    "in_row_stride": 2 * N,
    "out_row_stride": 2 * N,
    "residual_row_stride": 2 * N,
}
"""One weight tile over 2 x 2 pixels."""
SLOT_BYTES = {"input": 4 * N, "weights": WEIGHT_BYTES, "table": 256, "residual": 4 * N, "output": 4 * N}
INPUT, WEIGHTS, TABLE, RESIDUAL, OUTPUT = (int(operand) for operand in ComputeOperand)
BUFFERS = {"constants": 1024, "arena": 256, "input": 256, "output": 256}


def _hand(*tiles, slot_bytes=(), slots=(), load_bytes=(), operands=(), body=None, before=0):
    """Streams of one CONVOLVE for each of ``tiles`` (changes to ``TILE``): each operand has its own ring, loaded whole.

    ``before`` bytes of the input ring are passed first, so that the input wraps.
    """
    streams = Streams()
    sizes = dict(enumerate(SLOT_BYTES.values())) | dict(slot_bytes)
    counts = dict.fromkeys(sizes, 1) | dict(slots)
    for ring, size in sizes.items():
        streams.configure(ring, 1024 * ring, counts[ring], size, 0)
    for ring, size in sizes.items():
        if ring != OUTPUT:
            run = {"base": 0, "run_bytes": dict(load_bytes).get(ring, size), "count": [1, 1, 1]}
            for _ in range(before if ring == INPUT else 0):
                streams.add(Engine.LOAD, Opcode.LOAD, (Operand(ring, Cursor.PRODUCER, 1, 1),), run)
                streams.add(Engine.COMPUTE, Opcode.WAIT, (Operand(ring, Cursor.CONSUMER_0, 1, 1),))
            body = run | {"run_bytes": run["run_bytes"] * (counts[ring] if ring == INPUT else 1)}
            filled = counts[ring] if ring == INPUT else 1
            streams.add(Engine.LOAD, Opcode.LOAD, (Operand(ring, Cursor.PRODUCER, filled, filled),), body)
    for number, tile in enumerate(tiles):
        fields = TILE | tile
        last = number == len(tiles) - 1
        used = []
        for ring in sizes:
            need = counts[ring] if ring == INPUT else 1
            used.append(Operand(ring, Cursor.CONSUMER_0, need, need * last))
        used[OUTPUT] = Operand(OUTPUT, Cursor.PRODUCER, int(number == 0), int(last))
        for which, operand in dict(operands).items():
            used[which] = operand
        streams.add(Engine.COMPUTE, Opcode.CONVOLVE, used, fields)
    body = {"base": 3, "run_bytes": sizes[OUTPUT], "count": [1, 1, 1]}
    streams.add(Engine.STORE, Opcode.STORE, (Operand(OUTPUT, Cursor.CONSUMER_0, 1, 1),), body)
    for engine in Engine:
        streams.add(engine, Opcode.END)
    return {
        engine: [decode(int.from_bytes(raw, "little")) for raw in commands]
        for engine, commands in streams.commands.items()
    }


def _fails(message, *tiles, config=CONFIG, **options):
    with pytest.raises(CheckError, match=message):
        check_streams(_hand(*tiles, **options), BUFFERS, config)


ALL = {"load_table": 1, "residual": 1}
FIRST, LAST = {"accumulate_last": 0}, {"accumulate_first": 0}


@pytest.mark.parametrize("tiles", [({},), (ALL,), (FIRST, LAST), ({"maximum": 1},), ({"diagonal": 1},)])
def test_hand_written_tiles_pass(tiles):
    streams = _hand(*tiles)
    check_streams(streams, BUFFERS, CONFIG)
    check_command_lengths(streams, CONFIG)


def test_diagonal_weights_for_a_maximum():
    _fails(r"compute command 0 \(CONVOLVE\) has diagonal weights for a maximum", {"diagonal": 1, "maximum": 1})


@pytest.mark.parametrize(
    ("tiles", "lines"),
    [
        ([{"diagonal": 1}], 9 + 1),
        ([{"diagonal": 1, "kernel_height": 3}], 9 + 3),
        ([FIRST | {"diagonal": 1, "kernel_height": 20}, LAST | {"diagonal": 1}], 20),
        ([FIRST | {"diagonal": 1}, LAST], 9 + N),
    ],
)
def test_a_diagonal_tile_is_one_line(tiles, lines):
    """A slot of just these lines is enough; a byte less is not."""
    check_streams(_hand(*tiles, slot_bytes={WEIGHTS: lines * N}), BUFFERS, CONFIG)
    _fails("reads weights beyond the slots that it acquired", *tiles, slot_bytes={WEIGHTS: lines * N - 1})


@pytest.mark.parametrize("loop", ["out_width", "out_rows", "kernel_width", "kernel_height", "in_blocks"])
def test_a_loop_of_nothing(loop):
    _fails(rf"compute command 0 \(CONVOLVE\) has {loop} 0", {loop: 0})


def test_more_pixels_than_half_the_accumulator():
    _fails("computes 65 pixels; half the accumulator holds 64", {"out_width": 65, "out_rows": 1})


@pytest.mark.parametrize("field", ["in_row_stride", "in_block_stride", "out_row_stride", "residual_row_stride"])
def test_a_stride_that_the_hardware_has_no_bits_for(field):
    size = 2 * CONFIG.scratchpad.bytes
    _fails(f"has {field} {size}; it must be less than {size}", {field: size, "out_rows": 1})


@pytest.mark.parametrize("operand", list(ComputeOperand))
def test_an_operand_that_is_needed_and_unused(operand):
    _fails(f"has no {operand.name.lower()} operand", ALL, operands={operand: None})


def test_a_maximum_that_goes_on_needs_only_its_input():
    unused = {WEIGHTS: None, TABLE: None, RESIDUAL: None, OUTPUT: None}
    _fails("deadlock|is not drained", {"maximum": 1, "accumulate_last": 0}, operands=unused)
    _fails("has no weights operand", {"maximum": 0, "accumulate_last": 0}, operands=unused)


@pytest.mark.parametrize("operand", [ComputeOperand.RESIDUAL, ComputeOperand.OUTPUT])
def test_an_operand_that_nothing_commits(operand):
    message = f"moves its {operand.name.lower()} operand, which only a chain's last command commits"
    cursor = Cursor.PRODUCER if operand == ComputeOperand.OUTPUT else Cursor.CONSUMER_0
    others = {RESIDUAL: None, OUTPUT: None} | {int(operand): Operand(operand, cursor, 1, 1)}
    _fails(message, FIRST, operands=others)


def test_a_chain_that_no_command_began():
    _fails("goes on with a chain that no command began", LAST)
    _fails(r"compute command 1 .* goes on with a chain that no command began", {}, LAST)


def test_a_chain_of_changing_size():
    _fails(r"compute command 1 .* computes 2 pixels in a chain of 4", FIRST, LAST | {"out_rows": 1})


def test_one_cursor_twice():
    twice = Operand(INPUT, Cursor.CONSUMER_0, 1, 0)
    _fails(r"compute command 0 \(CONVOLVE\) names one cursor of a ring twice", {}, operands={RESIDUAL: twice})


@pytest.mark.parametrize(("opcode", "name"), [(Opcode.END, "END"), (Opcode.RING_CONFIGURE, "RING_CONFIGURE")])
def test_operands_of_a_command_that_has_none(opcode, name):
    streams = _hand({})
    index = _find(streams[Engine.LOAD], opcode)
    operands = (Operand(INPUT, Cursor.CONSUMER_0), *[None] * 4)
    streams[Engine.LOAD][index] = dataclasses.replace(streams[Engine.LOAD][index], operands=operands)
    with pytest.raises(
        CheckError, match=rf"load command {index} \({name}\) has an operand, which the hardware ignores"
    ):
        check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"ring": 16}, "configures ring 16; there are 16"),
        ({"slots": 0}, "has 0 slots; a ring may have 1 to 16383"),
        ({"slots": 16384}, "has 16384 slots; a ring may have 1 to 16383"),
        ({"ring_bytes": 20}, "gives 20 bytes to 1 slots of 16"),
        ({"base": CONFIG.scratchpad.bytes}, "places ring 0 beyond the scratchpad"),
        ({"base": CONFIG.scratchpad.bytes - 12}, "places ring 0 beyond the scratchpad"),
        ({"base": 2}, "places ring 0 at 2, which is no multiple of 4"),
        ({"consumer_mask": 17}, "names a consumer that does not exist; rings have 4"),
        ({"follows": [1, 4, 4, 4]}, "lets consumer 0 follow 1, which is not active"),
        ({"follows": [5, 4, 4, 4]}, "lets consumer 0 follow 5, which is not active"),
    ],
)
def test_rings_that_the_hardware_refuses(body, message):
    streams = _hand({})
    streams[Engine.LOAD][0] = _change(streams[Engine.LOAD][0], body=body)
    with pytest.raises(CheckError, match=rf"load command 0 \(RING_CONFIGURE\) {message}"):
        check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"run_bytes": 0}, "moves nothing: run_bytes is 0"),
        ({"count": [1, 0, 1]}, "moves nothing: a count is 0"),
        ({"base": 4}, "names base register 4"),
        ({"run_bytes": CONFIG.scratchpad.bytes + 1}, "steps 131073 bytes in a scratchpad of 131072"),
        ({"scratchpad_stride": [0, 0, CONFIG.scratchpad.bytes + 1]}, "steps 131073 bytes in a scratchpad of 131072"),
        ({"run_bytes": 17}, "steps 17 bytes, which passes the end of a ring of 16 bytes"),
        ({"count": [1, 2, 1], "scratchpad_stride": [0, 17, 0]}, "steps 17 bytes, which passes the end of a ring of 16"),
        ({"dram_offset": 1020}, "reaches from byte 1020 to byte 1036 of a buffer of 1024"),
        ({"count": [2, 1, 1], "dram_stride": [-4, 0, 0]}, "reaches from byte -4 to byte 12 of a buffer of 1024"),
        ({"count": [1, 1, 2], "scratchpad_stride": [0, 0, 4]}, "writes beyond the slots that it reserved"),
    ],
)
def test_transfers_that_the_hardware_refuses_or_that_leave_their_place(body, message):
    streams = _hand({})
    index = _find(streams[Engine.LOAD], Opcode.LOAD)
    streams[Engine.LOAD][index] = _change(streams[Engine.LOAD][index], body=body)
    with pytest.raises(CheckError, match=rf"load command {index} \(LOAD\) {message}"):
        check_streams(streams, BUFFERS, CONFIG)


def test_a_stride_that_is_not_taken_may_be_any():
    streams = _hand({})
    index = _find(streams[Engine.LOAD], Opcode.LOAD)
    streams[Engine.LOAD][index] = _change(streams[Engine.LOAD][index], body={"scratchpad_stride": [17, 17, 17]})
    check_streams(streams, BUFFERS, CONFIG)


def test_a_transfer_without_data():
    streams = _hand({})
    streams[Engine.STORE][0] = dataclasses.replace(streams[Engine.STORE][0], operands=(None,) * 5)
    with pytest.raises(CheckError, match=r"store command 0 \(STORE\) has no data operand"):
        check_streams(streams, BUFFERS, CONFIG)


def test_an_opcode_that_does_not_exist():
    streams = _hand({})
    streams[Engine.COMPUTE].insert(0, dataclasses.replace(streams[Engine.COMPUTE][0], opcode=99, body={}))
    with pytest.raises(CheckError, match=r"compute command 0 \(ILLEGAL_99\) does not belong into the compute stream"):
        check_streams(streams, BUFFERS, CONFIG)


def test_an_end_within_a_stream():
    streams = _hand({})
    streams[Engine.STORE].insert(0, streams[Engine.STORE][-1])
    with pytest.raises(CheckError, match="store command 0: END before the end of the stream"):
        check_streams(streams, BUFFERS, CONFIG)


def test_a_ring_that_is_left_full():
    streams = _hand({})
    del streams[Engine.STORE][0]
    with pytest.raises(CheckError, match="ring 4 is not drained at the end of the program"):
        check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ({"in_rows": 3, "out_rows": 3}, "reads input beyond the slots that it acquired"),
        ({"in_pixel_stride": N + 1}, "reads input beyond the slots that it acquired"),
        ({"kernel_width": 2}, "reads weights beyond the slots that it acquired"),
        (ALL | {"residual_row_stride": 3 * N}, "reads a residual beyond the slots that it acquired"),
        ({"out_row_stride": 3 * N}, "writes beyond the slots that it reserved"),
        (
            {"in_blocks": 2, "in_block_stride": 17, "x_origin": -9},
            "steps 17 bytes, which passes the end of a ring of 16",
        ),
        (ALL | {"residual_row_stride": 17}, "steps 17 bytes, which passes the end of a ring of 16 bytes"),
        ({"out_row_stride": 17}, "steps 17 bytes, which passes the end of a ring of 16 bytes"),
    ],
)
def test_tiles_that_leave_their_slots(tile, message):
    _fails(message, tile)


def test_a_window_in_which_nothing_exists_still_needs_a_ring_of_bytes():
    outside = {"x_origin": -9}
    check_streams(_hand(outside), BUFFERS, CONFIG)
    semaphore = Operand(8, Cursor.CONSUMER_0, 1, 1)
    streams = _hand(outside, operands={INPUT: semaphore})
    loads = streams[Engine.LOAD]
    ring = _change(loads[0], body={"ring": 8, "slot_bytes": 0, "ring_bytes": 0})
    wait = dataclasses.replace(loads[-1], opcode=Opcode.WAIT, operands=(Operand(8, Cursor.PRODUCER, 1, 1), *[None] * 4))
    streams[Engine.LOAD] = [ring, wait, *loads]
    with pytest.raises(CheckError, match="steps 1 bytes, which passes the end of a ring of 0 bytes"):
        check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("ring", "what"), [(INPUT, "input"), (WEIGHTS, "weights"), (TABLE, "a table"), (RESIDUAL, "a residual")]
)
def test_bytes_that_nothing_has_written(ring, what):
    size = list(SLOT_BYTES.values())[ring]
    _fails(f"reads {what} that nothing has written", ALL, load_bytes={ring: size - 1})


def test_a_slot_that_is_used_again_holds_nothing():
    """The second tile's load leaves out a byte that the first had written into the same slot."""
    streams = _hand({}, slots={INPUT: 1}, before=1)
    index = [i for i, c in enumerate(streams[Engine.LOAD]) if c.opcode == Opcode.LOAD][1]
    streams[Engine.LOAD][index] = _change(streams[Engine.LOAD][index], body={"run_bytes": 15})
    with pytest.raises(CheckError, match="reads input that nothing has written"):
        check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"in_pixel_stride": 3, "in_row_stride": 8}, "reads input across the end of its ring, inside a line"),
        ({"in_row_stride": 8}, None),
    ],
)
def test_a_line_across_the_end_of_its_ring(fields, message):
    """Slots of 10 bytes, three of them, from the third on: a line begins 2 bytes before the ring's end."""
    streams = _hand(
        {"in_rows": 1, "out_rows": 1, "in_width": 4, "out_width": 4}
        | fields
        | {"in_pixel_stride": 3 if message else 4},
        slot_bytes={INPUT: 8},
        slots={INPUT: 3},
        before=2,
    )
    if message is None:
        check_streams(streams, BUFFERS, CONFIG)
    else:
        with pytest.raises(CheckError, match=message):
            check_streams(streams, BUFFERS, CONFIG)


@pytest.mark.parametrize(
    ("ring", "verb"),
    [(WEIGHTS, "reads weights"), (TABLE, "reads a table"), (RESIDUAL, "reads a residual"), (OUTPUT, "writes")],
)
def test_a_slot_that_begins_inside_a_line(ring, verb):
    """The ring is two bytes longer than its slot's contents, which begin at an offset: the last line wraps inside."""
    size = list(SLOT_BYTES.values())[ring]
    slot = size // 2 + 1
    produces = ring == OUTPUT
    cursor = Cursor.PRODUCER if produces else Cursor.CONSUMER_0
    streams = _hand(ALL, slot_bytes={ring: slot}, slots={ring: 3}, operands={ring: Operand(ring, cursor, 2, 2)})
    before = {ring: Operand(ring, cursor, 1, 1)}
    _shift(streams, ring, slot, before, produces)
    with pytest.raises(CheckError, match=f"{verb} across the end of its ring, inside a line"):
        check_streams(streams, BUFFERS, CONFIG)


def _shift(streams, ring, slot, before, produces):
    """Pass two slots of ``ring`` before anything else, then fill two."""
    produce = Operand(ring, Cursor.PRODUCER, 1, 1)
    consume = Operand(ring, Cursor.CONSUMER_0, 1, 1)
    wait = dataclasses.replace(streams[Engine.LOAD][-1], opcode=Opcode.WAIT)

    def waiting(operand):
        return dataclasses.replace(wait, operands=(operand, *[None] * 4))

    if produces:
        first = next(i for i, c in enumerate(streams[Engine.COMPUTE]) if c.opcode == Opcode.CONVOLVE)
        known = waiting(Operand(INPUT, Cursor.CONSUMER_0, 1, 0))
        streams[Engine.COMPUTE][first:first] = [known, waiting(produce), waiting(produce)]
        store = _change(streams[Engine.STORE][0], 0, body={"run_bytes": 2 * slot - 2}, need=2, advance=2)
        streams[Engine.STORE][0:1] = [waiting(consume), waiting(consume), store]
        return
    loads = streams[Engine.LOAD]
    index = next(i for i, c in enumerate(loads) if c.opcode == Opcode.LOAD and c.operands[0].ring == ring)
    whole = _change(loads[index], 0, body={"run_bytes": 2 * slot}, need=2, advance=2)
    loads[index : index + 1] = [waiting(produce), waiting(produce), whole]
    streams[Engine.COMPUTE][0:0] = [waiting(consume), waiting(consume)]


@pytest.mark.parametrize(
    ("which", "operand", "message"),
    [
        (INPUT, Operand(8, Cursor.PRODUCER, 1, 1), "reads input through a producer cursor"),
        (OUTPUT, Operand(RESIDUAL, Cursor.CONSUMER_0, 1, 1), "writes through a consumer cursor"),
    ],
)
def test_a_cursor_of_the_wrong_kind(which, operand, message):
    others = {RESIDUAL: None} if which == OUTPUT else {INPUT: Operand(INPUT, Cursor.CONSUMER_0, 1, 1)}
    streams = _hand({}, operands=others | {which: operand})
    if which == INPUT:
        ring = _change(streams[Engine.LOAD][0], body={"ring": 8, "base": 8192})
        streams[Engine.LOAD].insert(0, ring)
        known = dataclasses.replace(streams[Engine.COMPUTE][0], opcode=Opcode.WAIT)
        known = dataclasses.replace(known, operands=(Operand(INPUT, Cursor.CONSUMER_0, 1, 1), *[None] * 4))
        streams[Engine.COMPUTE].insert(0, known)
    with pytest.raises(CheckError, match=message):
        check_streams(streams, BUFFERS, CONFIG)


# --- lengths of commands ---------------------------------------------------------------------------------------------


def _lengths(config_max, *tiles):
    check_command_lengths(_hand(*tiles), load_config("tiny", {"command_cycles_max": config_max}))


def _window(taps, width):
    return {"kernel_width": taps, "out_width": width, "out_rows": 1, "in_width": width}


@pytest.mark.parametrize(
    ("tiles", "cycles"),
    [
        ([_window(60, 1)], 60 * (N + 1)),
        ([_window(5, 64)], 5 * 64),
        ([_window(150, 1) | {"maximum": 1}], 150 * 2),
        ([_window(150, 1) | {"diagonal": 1}], 150 * 2),
        ([_window(40, 1) | FIRST, _window(20, 1) | LAST], 60 * (N + 1)),
    ],
)
def test_a_chain_that_takes_too_long(tiles, cycles):
    _lengths(cycles, *tiles)
    with pytest.raises(
        CheckError, match=rf"\(CONVOLVE\) takes {cycles} cycles .*; command_cycles_max allows {cycles - 1}"
    ):
        _lengths(cycles - 1, *tiles)


def test_chains_are_counted_apart():
    _lengths(300, _window(60, 1), _window(60, 1))


def test_a_transfer_that_takes_too_long():
    streams = _hand({})
    index = _find(streams[Engine.LOAD], Opcode.LOAD)
    # 16 bytes are 4 beats, and each run may touch one more.
    streams[Engine.LOAD][index] = _change(streams[Engine.LOAD][index], body={"count": [10, 3, 2]})
    check_command_lengths(streams, load_config("tiny", {"command_cycles_max": 300}))
    with pytest.raises(CheckError, match=r"\(LOAD\) takes 300 beats; command_cycles_max allows 299"):
        check_command_lengths(streams, load_config("tiny", {"command_cycles_max": 299}))
