"""Finetuning on conversations: packed batches train, resume exactly, and `chat` speaks the template."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.data.conversations.template import DEFAULT_TEMPLATE
from normscope.data.packed_batches import PackedBatches
from normscope.errors import NormscopeError
from normscope.inspection.xray import xray_target
from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run
from normscope.runs.sample import chat
from normscope.training.create_run import create_run
from normscope.training.loop import train_run
from normscope.training.nan_guard import replay
from normscope.training.session import TrainingSession
from normscope.training.train import TrainingRun, open_run, train
from tests.training.small_run import RECIPE, TEXT, last_sums

WIDE = {"context": 64, "width": 32, "dropout": 0.0}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("source")
    (folder / "text.txt").write_text(TEXT[:3000])
    turns = [f"{number} and {number}?" for number in range(30)]
    lines = [
        {"messages": [{"role": "user", "content": turn}, {"role": "assistant", "content": "yes"}]} for turn in turns
    ]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = dataclasses.replace(RECIPE, tokenizer="bytes")
    settings = {"steps": 2, "eval_every": 0, "save_every": 0}
    run = create_run(folder / "run", [folder / "text.txt"], recipe, model=WIDE, train=settings)
    train_run(run)
    return run


def finetune(source: Run, out: Path, **settings: Any) -> TrainingRun:
    options = {
        "steps": 8,
        "eval_every": 4,
        "save_every": 3,
        "sample_every": 0,
        "lr": 0.02,
        "matrix_lr": 0.02,
        **settings,
    }
    return train(source.folder.parent / "chats.jsonl", init_from=source.folder, out=out, quiet=True, **options)


def test_it_resumes_exactly_and_chat_answers_in_turns(source: Run, tmp_path: Path) -> None:
    run = finetune(source, tmp_path / "tuned", steps=60, eval_every=30, save_every=30, micro_batch=1)
    wanted = last_sums(run)
    again = open_run(shutil.copytree(run.folder, tmp_path / "again"))
    again.resume(from_step=30, quiet=True)
    assert last_sums(again) == wanted
    assert next(iter(read_metrics(run.metrics)))["conversations"]  # so that the end of the training names `chat`
    assert run.tokenizer().chat_template == DEFAULT_TEMPLATE
    talk = chat(run.folder)
    talk.config = dataclasses.replace(talk.config, temperature=0.0, max_new_tokens=12)
    assert "".join(talk.send("7 and 7?")) == "yes"  # and then the end of the turn
    assert talk.messages[0].finish_reason == "stop_token"
    assert talk.template is not None
    list(talk.send("8 and 8?"))
    assert [turn["role"] for turn in talk._turns("x")] == ["user", "assistant", "user", "assistant", "user"]


def test_micro_batches_give_the_gradients_of_the_batch(source: Run, tmp_path: Path) -> None:
    whole = finetune(source, tmp_path / "whole", steps=1)
    parts = finetune(source, tmp_path / "parts", steps=1, micro_batch=1)
    one, other = (run.checkpoints.open(1).tensors("optimizer") for run in (whole, parts))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-7)


def test_xray_and_replay_know_the_documents(source: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finetune(source, tmp_path / "tuned", xray_every=4)
    assert xray_target(str(run.folder)).record.modules
    assert run.xray_snapshots.steps() == [0, 4, 8]
    batch = PackedBatches.batch
    seen: list[int] = []

    def broken(batches: PackedBatches, number: int) -> Any:
        seen.append(number)
        return batch(batches, number)

    monkeypatch.setattr(PackedBatches, "batch", broken)
    begin = TrainingSession.begin

    def break_a_weight(session: TrainingSession, *args: Any) -> None:
        begin(session, *args)
        session.model.get_parameter("blocks.1.mlp.up.weight").data[0, 0] = torch.nan

    monkeypatch.setattr(TrainingSession, "begin", break_a_weight)
    with pytest.raises(NormscopeError, match=r"blocks\.1\.mlp\.up\.weight: not finite"):
        finetune(source, tmp_path / "broken")
    (bundle,) = (tmp_path / "broken" / "nan").iterdir()
    assert replay(bundle)[0] is not None
    assert seen
