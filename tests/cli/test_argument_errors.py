"""What tyro cannot read, in our words; and words of its that are not known, as they are."""

import pytest

from normscope.cli.argument_errors import argument_error
from tests.cli.running import refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sample", "RUN is missing\nfix: normscope sample --help"),
        ("sample a b", "'b' is one word too many\nfix: normscope sample --help"),
        ("sample a --tokens x", "--tokens 'x' is not a whole number\nfix: normscope sample --help"),
        ("doctor --seconds x", "--seconds 'x' is not a number\nfix: normscope doctor --help"),
        ("resume a --tensorboar", "there is no option --tensorboar\nfix: did you mean --tensorboard?"),
        ("resume a --untill 3 --from-stp 4", "there is no option --untill\nfix: did you mean --until?"),
        ("draw", "a word is missing\nfix: one of block, gallery, model, scope"),
        ("draw scope", "SCOPE is missing\nfix: normscope draw scope --help"),
        ("draw gallery", "--svg FILE is missing\nfix: normscope draw gallery --help"),
        ("train x --wandb 3", "--wandb '3' cannot be chosen\nfix: one of off, offline, online"),
    ],
)
def test_what_cannot_be_read(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(words.split(), capsys) == f"error: {message}\n"


def test_unknown_words_are_passed_on() -> None:
    lines = ["Two \x1b[31mthings\x1b[0m", "at once.", "───", "For full helptext, run normscope x --help"]
    box = "\n".join(["╭─ Trouble ──╮", *(f"│ {line} │" for line in lines), "╰─╯"])
    assert str(argument_error(box)) == "Two things at once.\nfix: normscope x --help"
