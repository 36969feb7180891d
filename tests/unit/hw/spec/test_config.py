"""Presets, overrides, and the one clear line that each bad value gets."""

import dataclasses

import pytest

from hw.spec.config import ConfigError, load_config, presets


def test_every_preset_loads_and_hashes_differ():
    hashes = {name: load_config(name).hash for name in presets()}
    assert {"tiny", "edge", "ecp5"} <= set(hashes)
    assert len(set(hashes.values())) == len(hashes)


def test_edge_is_the_design_s_hardware():
    edge = load_config("edge")
    assert (edge.array.n, edge.clock_mhz, edge.scratchpad.bytes, edge.dma.bus_bits) == (32, 500.0, 2 << 20, 256)


def test_settings_override_and_convert():
    config = load_config("tiny", {"array.n": "8", "dma.bus_bits": "0x40", "clock_mhz": "50"})
    assert (config.array.n, config.dma.bus_bits, config.clock_mhz) == (8, 64, 50.0)


def test_name_does_not_change_the_hash():
    config = load_config("tiny")
    assert dataclasses.replace(config, name="other").hash == config.hash
    assert load_config("tiny", {"dma.outstanding": "4"}).hash != config.hash


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"array.n": "7"}, "array.n must be"),
        ({"array.n": "many"}, "array.n wants a number, not 'many'"),
        ({"array.m": "8"}, "unknown configuration key array.m"),
        ({"array": "8"}, "array is a section"),
        ({"clock_mhz.x": "8"}, "clock_mhz wants float"),
        ({"scratchpad.bytes": "100000"}, "scratchpad.bytes must be a power of two"),
        ({"dma.bus_bits": "48"}, "dma.bus_bits must be"),
        ({"dram.model": "sram"}, "dram.model must be 'ideal' or 'banked', not 'sram'"),
        ({"dram.refi_ns": "100"}, "dram.refi_ns must exceed"),
        ({"rings.count": "33"}, "rings.count must be from 2 to 32, not 33"),
    ],
)
def test_bad_values_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config("tiny", settings)
    assert "\n" not in str(caught.value)


def test_unknown_preset_and_bad_files(tmp_path):
    with pytest.raises(ConfigError, match="unknown NPU preset 'huge'"):
        load_config("huge")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("array = [")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(str(bad))
    good = tmp_path / "mine.toml"
    good.write_text("[array]\nn = 8\n")
    config = load_config(str(good))
    assert (config.name, config.array.n) == ("mine", 8)
