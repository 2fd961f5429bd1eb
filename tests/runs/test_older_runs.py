"""Runs that earlier versions wrote open, resume and sample. Results are not compared to the bit: CPUs differ.

`python -m tests.runs.test_older_runs` writes the fixture of the current version. Do it once per release, and never
change the fixture of a released version: it shows what is in users' folders.
"""

import contextlib
import math
import shutil
import tempfile
from pathlib import Path

import pytest

from normscope._version import __version__
from normscope.data.batches import windows
from normscope.data.prepare import prepare
from normscope.runs.metrics_file import read_metrics
from normscope.runs.report.page import write_report
from normscope.runs.run import Run
from normscope.training.create_run import create_run
from normscope.training.loop import train_run
from normscope.training.recipes import Recipe
from normscope.training.validation import evaluate
from tests.runs.tampering import rewrite

FIXTURES = Path(__file__).parent / "fixtures"
STEPS, SAVED_STEP = 8, 4
TEXT = "".join(f"{i} green bottles hanging on the wall.\n" for i in range(100))
RECIPE = Recipe(
    preset="nanochat",
    model={"depth": 2, "width": 16, "heads": 2, "context": 16},
    train={"steps": STEPS, "batch": 4, "eval_every": SAVED_STEP, "save_every": SAVED_STEP, "device": "cpu"},
    tokenizer="characters",
)


@pytest.fixture(params=sorted(path.name for path in FIXTURES.glob("run-*")))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(FIXTURES / request.param, tmp_path / "run"))


def test_there_is_a_run_of_every_release() -> None:
    releases = {"0.1.0"} if "dev" in __version__ else {"0.1.0", __version__}
    folders = list(FIXTURES.glob("run-*"))
    assert {folder.name for folder in folders} >= {f"run-{version}" for version in releases}
    for folder in folders:
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 300_000


def test_it_opens_with_its_corpus_and_history(run: Run) -> None:
    corpus = run.corpus(verify=True)
    assert corpus.tokenizer.decode(corpus.train.window(0, 10)) in TEXT
    assert run.checkpoints.last() == SAVED_STEP
    assert not run.is_done()
    assert [event["step"] for event in read_metrics(run.metrics) if event["kind"] == "step"] == [1, 2, 3, 4]


def test_its_weights_have_the_loss_they_had(run: Run) -> None:
    model, step = run.load_model("last")
    corpus = run.corpus()
    part = corpus.record.validation
    batches = windows(corpus.validation, run.config.model.context, 4)
    loss = evaluate(model, batches, part.bytes / part.tokens).loss
    (then,) = (
        event["loss"] for event in read_metrics(run.metrics) if event["kind"] == "validation" and event["step"] == step
    )
    assert math.isclose(loss, then, rel_tol=1e-4)


def test_it_resumes_to_its_end(run: Run) -> None:
    before = read_metrics(run.metrics)
    assert train_run(run) == "done"
    events = read_metrics(run.metrics)
    steps = [event for event in events if event["kind"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    assert steps[:SAVED_STEP] == [event for event in before if event["kind"] == "step"]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert run.is_done()
    assert "8 steps" in write_report(run.folder).read_text(encoding="utf-8")


def test_it_samples(run: Run) -> None:
    texts = [run.sample("10 green", max_new_tokens=20, seed=seed) for seed in range(4)]
    assert all(text.startswith("10 green") and set(text) <= set(TEXT) for text in texts)
    assert max(map(len, texts)) > len("10 green") + 1


def write_fixture() -> Path:
    """Write the fixture of the current version, without paths of this machine."""
    name = f"run-{__version__}"
    target = FIXTURES / name
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("text.txt").write_text(TEXT)
        prepare(["text.txt"], f"{name}/data", tokenizer="characters", val_fraction=0.1)
        rewrite(Path(name) / "data" / "corpus.json", lambda record: record.update(sources=[]))
        run = create_run(name, [f"{name}/data"], RECIPE, prompt="10 green")
        train_run(run, until=SAVED_STEP)
        (run.folder / "report.html").unlink()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(run.folder, target, ignore=shutil.ignore_patterns(".lock"))
    return target


if __name__ == "__main__":
    print(write_fixture())
