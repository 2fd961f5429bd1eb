"""The README's Python runs, and gives what it says."""

import doctest
import re
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_give_what_they_say() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README", str(README), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.tries > 10
    assert runner.failures == 0


def test_what_it_points_at_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    local = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    folders = re.findall(r"^\| `(src/[^`]+)`", text, re.MULTILINE)
    targets = set(re.findall(r"^make (\w+)", text, re.MULTILINE))
    assert targets == {"train", "test"}
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
    missing = [path for path in local + folders if not (README.parent / path).exists()]
    assert missing == []
