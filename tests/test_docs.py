"""The README and the pages in docs: every Python example gives what it shows, every command runs, every link exists."""

import doctest
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from normscope.cli import main
from normscope.data.prepare import prepare_stories
from normscope.exporting.export import FORMATS
from normscope.training import create_run
from tests.cli.running import SMALL, write_text
from tests.exporting import matrix
from tests.interop.checkpoints import made
from tests.interop.gguf_files import write_model
from tests.runs.tiny_checkpoint import write_huggingface

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HISTORY = {"log.md"}  # what was true on its day
SHORTER = {
    "train my.txt --from": ["--steps", "2"],
    "train": [*SMALL, "2"],
    "resume runs/my --steps": ["--steps", "6"],
    "xray gpt2": ["--depth", "1"],
    "import": ["--out", "runs/again"],
    "plan llama": ["--depth", "1", "--width", "48", "--heads", "3"],
    "plan nanochat": ["--depth", "1", "--width", "48", "--heads", "3"],
}
"""Options that make a command short enough for a test; they come after the page's own."""
NOT_RUN = (
    "chat",
    "doctor",
    "lab run",
    "compare",
    "lab report",
    "export",
    "studio",
    "train my.txt --nproc",
    "resume runs/my --nproc",
)
"""Commands of which only the arguments are checked: they serve, wait for input, measure, start processes, or
need minutes or Node.js."""

FUNCTION = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    return net, torch.randn(5, 3, 4), lambda output: F.cross_entropy(output, torch.zeros(5, dtype=torch.long))
"""

SCRIPT = """
import sys
import torch
from torch import nn

net = nn.Linear(12, 4)
sgd = torch.optim.SGD(net.parameters(), lr=float(sys.argv[2]))
for _ in range(30):
    sgd.zero_grad()
    nn.functional.cross_entropy(net(torch.randn(5, 12)), torch.zeros(5, dtype=torch.long)).backward()
    sgd.step()
"""


def ids(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_python_examples_give_what_they_show(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(prepare_stories, size_bytes=100_000, validation_bytes=5_000)
    monkeypatch.setattr(create_run, "prepare_stories", few)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_and_make_targets_exist(page: Path) -> None:
    if page.name in HISTORY:
        pytest.skip("its links were true on their day")
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in re.findall(r"`?make ([a-z-]+)\b`", text))


def commands() -> list[tuple[str, str]]:
    """Every line of every shell block that calls normscope, with its page."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = [re.sub(r"\s+# .*", "", line) for line in block.splitlines()]
            found += [(page.name, line) for line in lines if line.startswith("normscope ")]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages assume to be there: a text, a run, two records, a Python file."""
    folder = tmp_path_factory.mktemp("docs")
    text = write_text(folder, "my.txt")
    text.write_text(text.read_text() + "Dear")  # a prompt of the pages
    (folder / "mine.py").write_text(FUNCTION)
    (folder / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "my.txt", "--out", "runs/my", *SMALL, "4"]) == 0
        write_huggingface(Path("SmolLM2-135M"))
        assert main(["import", "SmolLM2-135M", "--out", "runs/smollm"]) == 0
        write_model(Path("SmolLM2-135M-Q8_0.gguf"), made("llama", vocab_size=259))
        for name in ("before", "after"):
            assert main(["xray", "mine.py:make", "--json", f"{name}.json"]) == 0
    return folder


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_has_a_page_with_a_row_for_each_model(to: str) -> None:
    page = ROOT / "docs" / matrix.PAGES.get(to, f"{to}.md")
    table = page.read_text(encoding="utf-8").partition(matrix.START.format(to=to))[2].partition(matrix.END)[0]
    weights = " | ".join(f"out, {one}" for one in FORMATS[to].weights)
    assert table.startswith(f"\n| model | in | {weights} |\n")
    rows, refused = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)[2:], table.partition("Refused: ")[2]
    assert sorted([*rows, *filter(None, re.split(r"; |\.\n", refused))]) == sorted(matrix.MODELS)
    assert page.name in (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_commands_to_run() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: str(value))
def test_commands_run(
    page: str, line: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    words = shlex.split(line)[1:]
    if any(" ".join(words).startswith(name) for name in NOT_RUN):
        assert main([*words, "--no-such-option"]) == 2
        assert "--no-such-option" in capsys.readouterr().err.splitlines()[0]  # so the others were understood
        return
    more = next((more for name, more in SHORTER.items() if " ".join(words).startswith(name)), [])
    assert main([*words, *more]) == 0
