"""The packing of commands equals Amaranth's own, field by field."""

import os
import random

import pytest

from hw.spec.commands import (
    BODIES,
    BODY_BITS,
    COMPLETION,
    CONVOLVE,
    HEADER,
    LEGAL_OPCODES,
    OPERAND,
    RING_CONFIGURE,
    SIGNED,
    TRANSFER,
    Engine,
    Opcode,
    pack,
    unpack,
)

LAYOUTS = (HEADER, OPERAND, RING_CONFIGURE, TRANSFER, CONVOLVE, COMPLETION)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["header", "operand", "ring", "transfer", "convolve", "completion"])
def test_pack_equals_amaranth_and_unpack_inverts(layout):
    seed = int(os.environ.get("RONDO_SEED", random.randrange(1 << 32)))
    print(f"RONDO_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(50):
        raw, values = {}, {}
        for name, field in layout:
            length = getattr(field.shape, "length", 0)
            width = field.width // (length or 1)
            numbers = [rng.getrandbits(width) for _ in range(length or 1)]
            meant = [n - (1 << width) if name in SIGNED and n >> (width - 1) else n for n in numbers]
            raw[name], values[name] = (numbers, meant) if length else (numbers[0], meant[0])
        bits = pack(layout, values)
        assert bits == layout.const(raw).as_bits()
        assert unpack(layout, bits) == values


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="need of 16384 does not fit 14 bits"):
        pack(OPERAND, {"need": 1 << 14})
    with pytest.raises(KeyError, match="nedd"):
        pack(OPERAND, {"nedd": 1})
    with pytest.raises(ValueError, match="x_origin of 40000 does not fit 16 bits"):
        pack(CONVOLVE, {"x_origin": 40000})
    with pytest.raises(ValueError, match="out_width of -1 does not fit 16 bits"):
        pack(CONVOLVE, {"out_width": -1})
    assert pack(CONVOLVE, {"x_origin": -3}) == 0xFFFD << dict(CONVOLVE)["x_origin"].offset


def test_zeroed_memory_is_no_command_and_every_opcode_has_an_engine():
    assert 0 not in list(Opcode)
    assert set(Opcode) == {opcode for legal in LEGAL_OPCODES.values() for opcode in legal}
    assert set(LEGAL_OPCODES) == set(Engine)
    assert all(body is None or body.size <= BODY_BITS for body in BODIES.values())
