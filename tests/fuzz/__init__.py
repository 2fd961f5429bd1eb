"""Faults on purpose: damaged files, hostile folders, wrong arguments, kills. `python -m tests.fuzz --help`."""
