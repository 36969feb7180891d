"""Hardware: the specification, the gateware and everything that generates Verilog.  Imports neither `sw` nor `sim`."""
