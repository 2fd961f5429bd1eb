"""Arguments of the wrong kind, to every function that users call from Python: an error of normscope's, with words."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope.data.corpus import open_corpus
from normscope.data.prepare import prepare
from normscope.data.tokenizers import CharacterTokenizer
from normscope.errors import NormscopeError
from normscope.runs.report.page import write_report
from normscope.runs.run import Run
from normscope.runtime.devices import resolve_device
from normscope.training.create_run import create_run
from normscope.training.doctor import measure_cost
from normscope.training.loop import train_run
from normscope.training.nan_guard import replay
from normscope.training.recipes import recipe
from normscope.training.verify_resume import verify_resume
from tests.support import Refusal, every_refusal

LETTERS = CharacterTokenizer.of(["hello world"])
LONG, NUL = "x" * 5000, "a\0b"
any_: Any = normscope  # what is called wrongly on purpose


def model(vocab_size: int = LETTERS.vocab_size) -> Any:
    return normscope.GPT(normscope.llama(vocab_size=vocab_size, context=32, depth=1, width=16, heads=2))


def write(*arguments: Any, **settings: Any) -> Any:
    tokens = {"max_new_tokens": 2, **settings}
    return any_.generate_text(*(arguments or (model(), LETTERS, "he")), **tokens)


def paths(name: str, read: Any) -> list[Refusal]:
    wrong = ((5, r"must be a path \(str or Path\), but got 5"), (LONG, "too long"), (NUL, "cannot contain NUL"))
    return [(f"{name}-{i}", NormscopeError, words, partial(read, value)) for i, (value, words) in enumerate(wrong)]


def devices(name: str, make: Any) -> list[Refusal]:
    wrong = ("banana", [1], "cuda:99")
    words = "device=.*(cannot be used|name)"
    return [(f"{name}-{value}", NormscopeError, words, partial(make, value)) for value in wrong]


WRITING: list[Refusal] = [
    ("stop", NormscopeError, "stop must be a list of strings, but got 5", lambda: write(stop=5)),
    ("stop-none", NormscopeError, "stop must be a list of strings", lambda: write(stop=None)),
    ("prompt", NormscopeError, "prompts must be strings, but got 5", lambda: write(model(), LETTERS, 5)),
    ("prompts", NormscopeError, "a prompt must be a str", lambda: write(model(), LETTERS, [5])),
    ("samples", NormscopeError, "samples='x' must be", lambda: write(samples="x")),
    ("many", NormscopeError, "exceeds the limit of 1,000,000 sequences", lambda: write(samples=10**12)),
    ("seed", NormscopeError, "seed='x' must be", lambda: write(seed="x")),
    ("stream", NormscopeError, "stream must be callable", lambda: write(stream=5)),
    (
        "no-model",
        NormscopeError,
        "model must be a GPT, but got Linear",
        lambda: write(torch.nn.Linear(2, 2), LETTERS, "he"),
    ),
    ("no-tokenizer", NormscopeError, "tokenizer must be a Tokenizer", lambda: write(model(), "x", "he")),
    ("larger-tokenizer", NormscopeError, "but the model has vocab_size=3", lambda: write(model(3), LETTERS, "he")),
    (
        "smaller-tokenizer",
        NormscopeError,
        "a difference too large for padding",
        lambda: write(model(65), LETTERS, "he"),
    ),
    ("stop-tensor", NormscopeError, "stop must be a list of strings", lambda: write(stop=torch.tensor(1.0))),
    ("meta", NormscopeError, "the meta device", lambda: write(model().to("meta"), LETTERS, "he")),
    (
        "tokens",
        NormscopeError,
        "prompts must be token id lists",
        lambda: any_.generate_tokens(model(), 5, max_new_tokens=2),
    ),
    (
        "float-tokens",
        NormscopeError,
        "a tensor of torch.bfloat16",
        lambda: any_.generate_tokens(model(), [torch.ones(1, dtype=torch.bfloat16)], max_new_tokens=2),
    ),
]


class Shapeless:
    """As a nested tensor, which has no shape to be asked for."""

    @property
    def shape(self) -> Any:
        raise RuntimeError


ODD_TENSORS = {
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.ones(2, device="meta"),
}
TENSORS: list[Refusal] = [
    *(
        (
            f"example-{name}",
            NormscopeError,
            "expected a dense tensor of real numbers",
            partial(any_.explain, "rmsnorm", value),
        )
        for name, value in ODD_TENSORS.items()
    ),
    (
        "meta-tokens",
        NormscopeError,
        "a tensor that cannot be converted to numpy",
        lambda: any_.generate_tokens(model(), [torch.ones(2, dtype=torch.long, device="meta")], max_new_tokens=2),
    ),
    ("shape", NormscopeError, "a shape must be", lambda: any_.Scope.parse("a [b]").bind(Shapeless())),
    (
        "axes",
        NormscopeError,
        "axes must be a string or a mapping of shapes to strings, but got 5",
        lambda: any_.draw_model(torch.nn.Linear(2, 2), torch.ones(2, 2), axes=5),
    ),
    ("norm-array", NormscopeError, "there is no norm array", lambda: any_.llama(norm=np.ones(2))),
    ("positions-array", NormscopeError, "positions=array", lambda: any_.llama(positions=np.ones(2))),
    ("statistic-array", NormscopeError, "statistic=array", lambda: any_.Norm("a [b]", statistic=np.ones(2))),
    ("long-norm", NormscopeError, r"there is no norm 'x{79}\.\.\.;", lambda: any_.llama(norm=LONG)),
]
TRAINING: list[Refusal] = [
    ("run", NormscopeError, "train_run expects a Run, but got 'x'", lambda: train_run("x")),  # type: ignore[arg-type]
    ("proof", NormscopeError, "expects a Run, but got 'x'", lambda: verify_resume("x")),  # type: ignore[arg-type]
    ("recipe", NormscopeError, "expects a Recipe", lambda: create_run("r", [], "dial")),  # type: ignore[arg-type]
    ("model", NormscopeError, "model=5 must be", lambda: create_run("r", [], recipe("dial"), model=5)),  # type: ignore[arg-type]
    (
        "setting",
        NormscopeError,
        "the training has no setting 'x'",
        lambda: create_run("r", [], recipe("dial"), train={"x": 1}),
    ),
    ("text", NormscopeError, "prompt=5 must", lambda: create_run("r", [], recipe("dial"), prompt=5)),  # type: ignore[arg-type]
    ("sources", NormscopeError, "sources must be paths", lambda: create_run("r", 5, recipe("dial"))),  # type: ignore[arg-type]
    ("measure", NormscopeError, "expects a GPTConfig", lambda: measure_cost("x", "y")),  # type: ignore[arg-type]
    ("muon", NormscopeError, "Muon takes matrices", lambda: any_.Muon(5, lr=0.1)),
    ("muon-tensor", NormscopeError, "Muon takes matrices", lambda: any_.Muon(torch.ones(2, 2), lr=0.1)),
    ("muon-text", NormscopeError, "Muon takes matrices", lambda: any_.Muon("x", lr=0.1)),
    ("muon-nothing", NormscopeError, "Muon takes matrices", lambda: any_.Muon([], lr=0.1)),
]


@every_refusal(
    *WRITING,
    *TENSORS,
    *TRAINING,
    *paths("load", any_.load),
    *paths("load_tokenizer", any_.load_tokenizer),
    *paths("open", Run.open),
    *paths("start", lambda path: create_run(path, [], recipe("dial"))),
    *paths("source", lambda path: create_run("r", [path], recipe("dial"))),
    *paths("prepare", lambda path: prepare(["text.txt"], path)),
    *paths("corpus", open_corpus),
    *paths("report", write_report),
    *paths("replay", replay),
    *devices("resolve", resolve_device),
    *devices("linear", lambda device: any_.Linear(2, 2, device=device)),
    *devices("embedding", lambda device: any_.Embedding(2, 2, device=device)),
    *devices("layer-norm", lambda device: any_.LayerNorm(2, device=device)),
    *devices("batch-norm", lambda device: any_.BatchNorm(2, device=device)),
    *devices("norm", lambda device: any_.Norm("[a]", device=device)),
)
def test_it_is_refused_with_words(
    error: type[NormscopeError], words: str, mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        mistake()
    assert not any(tmp_path.iterdir())


def test_a_vocabulary_that_is_rounded_up_is_welcome() -> None:
    assert write(model(64), LETTERS, "he")
    assert write(model().train(), LETTERS, "he")
