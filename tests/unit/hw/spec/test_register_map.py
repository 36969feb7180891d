"""The compiled register map: what gateware and driver rely on."""

import pytest

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.control_block import HOST_ADDRESS_BITS
from hw.spec.register_map import ADDRESS_BITS, REGISTERS, Access, c_header, markdown


def test_offsets_are_words_and_fields_do_not_overlap() -> None:
    offsets = [register.offset for register in REGISTERS.values()]
    assert offsets == sorted(set(offsets))
    for register in REGISTERS.values():
        assert register.offset % 4 == 0
        assert register.offset < 1 << ADDRESS_BITS
        used = 0
        for field in register.fields.values():
            assert used & field.mask == 0
            assert field.mask < 1 << 32
            used |= field.mask


def test_identity_is_the_magic() -> None:
    assert REGISTERS["IDENTITY"].reset.to_bytes(4, "little") == b"RNDO"
    assert REGISTERS["IDENTITY"].offset == 0
    assert REGISTERS["IDENTITY"].fields["VALUE"].access is Access.CONSTANT


def test_every_engine_has_every_cause_in_order() -> None:
    for engine in Engine:
        offsets = [REGISTERS[f"COUNTER_{engine.name}_{cause.name}_LOW"].offset for cause in Cause]
        assert offsets == [offsets[0] + 8 * cause for cause in Cause]
        retired = REGISTERS[f"COUNTER_RETIRED_{engine.name}_LOW"]
        assert retired.fields["VALUE"].access is Access.READ
        for name in ("ADDRESS_LOW", "ADDRESS_HIGH", "COMMANDS"):
            assert REGISTERS[f"PROGRAM_{engine.name}_{name}"].fields["VALUE"].access is Access.READ_WRITE


def test_wide_values_are_adjacent_pairs() -> None:
    lows = [name[:-4] for name in REGISTERS if name.endswith("_LOW")]
    assert lows
    for name in lows:
        assert REGISTERS[f"{name}_HIGH"].offset == REGISTERS[f"{name}_LOW"].offset + 4


def test_addresses_have_their_width() -> None:
    highs = [name for name in REGISTERS if name.endswith("_ADDRESS_HIGH")]
    assert len(highs) == len(Engine) + 2
    for name in highs:
        assert 32 + REGISTERS[name].fields["VALUE"].width == HOST_ADDRESS_BITS


def test_interrupt_bits_are_enabled_by_the_bits_of_the_same_names() -> None:
    status, enable = REGISTERS["INTERRUPT_STATUS"].fields, REGISTERS["INTERRUPT_ENABLE"].fields
    assert {name: field.mask for name, field in status.items()} == {name: field.mask for name, field in enable.items()}
    assert status["COMPLETION_ERROR"].access is Access.WRITE_ONE_TO_CLEAR


def test_field_extracts_and_inserts() -> None:
    code = REGISTERS["STATUS"].fields["FAULT_CODE"]
    assert code.extract(0x0002_5A03) == 0x5A
    assert code.insert(0xFF, 0x0002_5A03) == 0x0002_FF03
    with pytest.raises(ValueError, match="FAULT_CODE of 256 does not fit 8 bits"):
        code.insert(256)


def test_documents_name_every_register() -> None:
    header, document = c_header(), markdown()
    assert "RONDO__CONTROL__RESUME_bm 0x2" in header
    assert "RONDO__DOORBELL__VALUE_bm 0xffff" in header
    for block in ("IDENTITY", "PROGRAM_LOAD", "JOB_RING", "COMPLETION_TAIL", "COUNTER"):
        assert block in header
        assert block in document
