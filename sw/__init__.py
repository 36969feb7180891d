"""Software: networks, quantisation, compiler, planner and driver.  Of `hw` it imports only `hw.spec`."""
