"""What tyro cannot read, in our words; and words of its that are not known, as they are."""

import pytest

from normscope.cli.argument_errors import argument_error
from tests.cli.running import refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sample", "missing required argument SOURCE\nfix: normscope sample --help"),
        ("sample a b", "unexpected argument 'b'\nfix: normscope sample --help"),
        ("sample a --tokens x", "invalid value 'x' for --tokens: expected an integer\nfix: normscope sample --help"),
        ("doctor --seconds x", "invalid value 'x' for --seconds: expected a number\nfix: normscope doctor --help"),
        ("resume a --tensorboar", "unexpected argument '--tensorboar'\nfix: did you mean '--tensorboard'?"),
        ("resume a --untill 3 --from-stp 4", "unexpected argument '--untill'\nfix: did you mean '--until'?"),
        ("train x --step 5", "unexpected argument '--step'\nfix: did you mean '--steps'?"),
        ("sample a --max-tokens 5", "unexpected argument '--max-tokens'\nfix: did you mean '--max-new-tokens'?"),
        ("draw", "missing subcommand\nfix: use one of: scope, block, model, gallery"),
        ("draw scope", "missing required argument SCOPE\nfix: normscope draw scope --help"),
        ("draw gallery", "missing required argument --svg FILE\nfix: normscope draw gallery --help"),
        ("train x --wandb 3", "invalid value '3' for --wandb\nfix: use one of off, offline, online"),
    ],
)
def test_what_cannot_be_read(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(words.split(), capsys) == f"error: {message}\n"


def test_unknown_words_are_passed_on() -> None:
    lines = ["Two \x1b[31mthings\x1b[0m", "at once.", "───", "For full helptext, run normscope x --help"]
    box = "\n".join(["╭─ Trouble ──╮", *(f"│ {line} │" for line in lines), "╰─╯"])
    assert str(argument_error(box)) == "Two things at once.\nfix: normscope x --help"
