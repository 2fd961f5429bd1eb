"""What the processes that will be killed are copies of: everything is imported and loaded."""

from tests.training.small_run import warm_up

warm_up()
