"""Verilog text: stable names, same text twice, no warnings beyond the waived ones."""

import pathlib
import re

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.interfaces import Axi4Signature
from hw.spec.config import load_config
from sim.dram import Dram
from sim.engines import EngineError
from sim.verilator import verilate
from sim.verilog import VerilogError, generate, run_yosys

PAIR = data.StructLayout({"low": 4, "high": 4})


class Adder(wiring.Component):
    """A counter that a pair of numbers is added to."""

    pair: data.View
    sum: Signal

    def __init__(self) -> None:
        super().__init__({"pair": In(PAIR), "sum": Out(8, init=17)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.sum.eq(self.sum + self.pair.low + self.pair.high)
        return m


def test_ports_and_initial_values() -> None:
    text = generate(Adder(), "adder")
    assert re.search(r"^module adder\(([\w, \n]*)\);", text, re.MULTILINE)
    assert re.search(r"input \[7:0\] pair;", text)
    assert re.search(r"output \[7:0\] sum;", text)
    assert "8'h11" in text
    assert "Yosys" not in text
    assert str(pathlib.Path(__file__).parent) not in text


def test_port_names_of_a_bus() -> None:
    config = load_config("tiny")
    text = generate(Dram(config), "dram")
    for name, member in Axi4Signature(config).members.items():
        kind = "input" if member.flow == wiring.Out else "output"
        assert re.search(rf"^ *{kind} (\[\d+:0\] )?axi_{name};", text, re.MULTILINE), name


def test_cleared_memories_are_loops() -> None:
    text = generate(Dram(load_config("tiny")), "dram")
    assert re.search(r"for \(i = 0; i < 64; i = i \+ 1\)\s+\\returning.storage \[i\] = \d+'[dh]0+;", text)
    assert not re.search(r"^ *\\\S+ \[1\] = ", text, re.MULTILINE)


@pytest.mark.parametrize("preset", ["tiny", "edge"])
def test_same_text_and_clean(preset: str, tmp_path: pathlib.Path) -> None:
    text = generate(Dram(load_config(preset)), "system")
    assert text == generate(Dram(load_config(preset)), "system")
    assert "Warning" not in verilate(text, tmp_path)


def test_one_line_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(VerilogError, match=r"^Yosys failed: .*no_such_command") as refused:
        run_yosys("no_such_command\n", tmp_path)
    assert "\n" not in str(refused.value)
    with pytest.raises(EngineError, match=r"^verilator_bin failed: ") as failed:
        verilate("module system(; endmodule\n", tmp_path)
    assert "\n" not in str(failed.value)
