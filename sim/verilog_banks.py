"""SRAM banks in generated Verilog: one small module that every tool understands, instead of a cascade of byte lanes.

Amaranth gives each byte lane of a write port a statement of its own, and clears every row; for megabytes of scratchpad
that is most of the text, and half of the simulation's time. A memory with one read and one write port and byte enables
becomes an instance of ``rondo_bank`` instead, which behaves alike: a read in the cycle of a write gives the old row.
"""

from amaranth.hdl import ClockSignal, Elaboratable, Fragment, Instance, Module, Shape

BANK_VERILOG = """
module rondo_bank #(parameter WIDTH = 32, parameter DEPTH = 16, parameter ADDRESS = 4) (
    input clk,
    input read_enable,
    input [ADDRESS-1:0] read_address,
    output reg [WIDTH-1:0] read_data,
    input [WIDTH/8-1:0] write_enable,
    input [ADDRESS-1:0] write_address,
    input [WIDTH-1:0] write_data
);
  reg [WIDTH-1:0] rows [DEPTH-1:0];
  reg [WIDTH-1:0] row;
  integer i;
  initial begin
    read_data = 0;
    for (i = 0; i < DEPTH; i = i + 1) rows[i] = 0;
  end
  always @(posedge clk) begin
    if (read_enable) read_data <= rows[read_address];
    if (|write_enable) begin
      row = rows[write_address];
      for (i = 0; i < WIDTH / 8; i = i + 1) if (write_enable[i]) row[8*i +: 8] = write_data[8*i +: 8];
      rows[write_address] <= row;
    end
  end
endmodule
"""
MINIMUM_BITS = 4096
"""Smaller memories stay as they are."""


class BankPlatform:
    """Platform for ``rtlil.convert``; append ``BANK_VERILOG`` to what Yosys writes."""

    def get_memory(self, memory) -> Elaboratable | Fragment:
        """What Amaranth's ``Memory`` becomes."""
        reads, writes = memory.read_ports, memory.write_ports
        width = Shape.cast(memory.shape).width
        suits = (
            len(reads) == len(writes) == 1
            and reads[0].domain == "sync"
            and len(writes[0].en) > 1
            and len(writes[0].en) * 8 == width
            and width * memory.depth >= MINIMUM_BITS
        )
        if not suits:
            return memory.elaborate(None)
        (read,), (write,) = reads, writes
        m = Module()
        m.submodules.bank = Instance(
            "rondo_bank",
            p_WIDTH=width,
            p_DEPTH=memory.depth,
            p_ADDRESS=len(read.addr),
            i_clk=ClockSignal(),
            i_read_enable=read.en,
            i_read_address=read.addr,
            o_read_data=read.data,
            i_write_enable=write.en,
            i_write_address=write.addr,
            i_write_data=write.data,
        )
        return m
