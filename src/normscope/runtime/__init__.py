"""Devices, precision, memory, RNG state, and adapting the number of threads to the load of the machine."""
