"""What a command imports before its arguments are known to be valid, which delays every --help and every typo."""

import subprocess
import sys

from normscope.cli import COMMANDS
from tests.cli.test_completion import SUBCOMMANDS

HEAVY = ("torch", "numpy", "numba", "transformers", "scipy", "rich", "jinja2", "pyarrow", "tokenizers")

CODE = """
import contextlib, io, sys
from normscope.cli import main
for line in {lines!r}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(line.split())
    imported = [name for name in {heavy!r} if name in sys.modules]
    assert not imported, (line, imported)
    print(code, "error:" in said.getvalue(), line)
"""


def test_help_argument_errors_and_completion_import_neither_torch_nor_numpy() -> None:
    commands = [line for name in COMMANDS for line in SUBCOMMANDS.get(name, (name,))]
    asked = ["--help", "help", *(f"{line} --help" for line in commands), "draw --help", "lab", "completion zsh"]
    wrong = ["train --stpes 3", "sample", "resume", "draw", "draw block --x", "lab run --x", "nonsense"]
    wrong += [f"{line} --no-such-option" for line in commands]
    code = CODE.format(lines=asked + wrong, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    expected = [f"0 False {line}" for line in asked] + [f"2 True {line}" for line in wrong]
    assert done.stdout.splitlines() == expected
