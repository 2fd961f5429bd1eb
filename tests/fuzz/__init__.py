"""Fuzzing: damaged files, hostile folders, wrong arguments, kills. See `python -m tests.fuzz --help`."""
