"""Simulation: the golden model, the reference runtime, the cycle model and the engines that run the gateware."""
