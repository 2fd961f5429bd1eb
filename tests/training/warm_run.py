"""Imported by the server that forks processes, some of them to be killed, so that everything is loaded once."""

import torch._dynamo  # DDP imports it, which takes a second  # noqa: F401

from tests.training.small_run import warm_up

warm_up()
