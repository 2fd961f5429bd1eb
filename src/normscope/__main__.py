"""`python -m normscope` is `normscope`, and both begin here: with as little as possible before Ctrl-C is seen to."""

import signal
from typing import NoReturn


def program() -> NoReturn:
    """What the `normscope` command runs."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the imports: Ctrl-C in one of them would show a traceback
    from normscope.cli import program as run

    run()


if __name__ == "__main__":
    program()
