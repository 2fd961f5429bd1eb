"""Imported by the server that forks processes, some of them to be killed, so that everything is loaded once."""

from tests.training.small_run import warm_up

warm_up()
