"""Imported by the server that forks processes, some of them to be killed, so that everything is loaded once."""

import importlib
import sys

from tests.training.small_run import warm_up

warm_up()
IMPORTED = frozenset(sys.modules)
"""What a run had imported, before what follows."""
importlib.import_module("torch._dynamo")  # DDP imports it, which takes a second
