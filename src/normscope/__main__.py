"""Entry point of `normscope` and `python -m normscope`: does as little as possible before Ctrl-C is handled."""

import signal
from typing import NoReturn


def program() -> NoReturn:
    """What the `normscope` command runs."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the imports, where Ctrl-C would show a traceback
    from normscope.cli import program as run

    run()


if __name__ == "__main__":
    program()
