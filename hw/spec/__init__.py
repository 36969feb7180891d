"""The contracts that gateware, compiler, driver and simulators share: formats, arithmetic, configuration."""
