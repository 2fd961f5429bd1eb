"""Training that starts from the weights of another model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from normscope.blocks.linear import Linear
from normscope.data.tokenizers import CharacterTokenizer
from normscope.errors import CheckpointError, NormscopeError
from normscope.generate.text import generate_text
from normscope.inspection.xray import xray_target
from normscope.runs.initial_weights import FOLDER_NAME
from normscope.runs.run import Run
from normscope.training.config import TrainConfig
from normscope.training.doctor import doctor, measure_cost
from normscope.training.loop import train_run
from normscope.training.nan_guard import replay
from normscope.training.session import TrainingSession
from normscope.training.train import TrainingRun, _print_samples, open_run, train
from tests.training.small_run import TEXT, last_sums, new_run

LORA: dict[str, Any] = {"lora": 2, "lora_alpha": 4.0, "lora_dropout": 0.1}
CASES: dict[str, dict[str, Any]] = {"all": {}, "lora": LORA, "freeze": {"freeze": "embedding.*,blocks.0.*"}}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = new_run(tmp_path_factory.mktemp("source"), steps=30, eval_every=0, save_every=0)
    train_run(run)
    return run


def finetune(source: Run, out: Path, **settings: Any) -> TrainingRun:
    options = {
        "steps": 6,
        "eval_every": 3,
        "save_every": 2,
        "sample_every": 0,
        "lr": 0.01,
        "matrix_lr": 0.01,
        **settings,
    }
    return train([source.folder.parent / "text.txt"], init_from=source.folder, out=out, quiet=True, **options)


@pytest.mark.parametrize("case", CASES)
def test_it_resumes_exactly_without_its_source(source: Run, tmp_path: Path, case: str) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(source.folder.parent, copied)
    run = finetune(Run.open(copied / "run"), tmp_path / "tuned", **CASES[case])
    wanted = last_sums(run)
    again = Path(shutil.copytree(run.folder, tmp_path / "again"))
    shutil.rmtree(copied / "run")
    for begin in (4, 0):  # 0 is before the first checkpoint
        resumed = open_run(again)
        resumed.resume(from_step=begin, quiet=True)
        assert last_sums(resumed) == wanted


def test_the_first_step_starts_from_the_weights_of_the_source(source: Run, tmp_path: Path) -> None:
    run = finetune(source, tmp_path / "tuned", steps=1, lr=1e-9, matrix_lr=1e-9)
    before, after = source.load_model()[0], run.load_model("last")[0]
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(after(tokens), before(tokens))
    origin = run.config.origin
    assert origin is not None
    assert (origin.format, origin.path) == ("run", str(source.folder.resolve()))


def test_checkpoints_of_adapters_hold_only_adapters_and_load_merged(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finetune(source, tmp_path / "tuned", **LORA)
    _print_samples(run)
    assert "(or hf, onnx, safetensors, peft, for some models gguf, nanogpt)" in capsys.readouterr().out
    weights = run.checkpoints.open(6).tensors("model")
    assert {name.rpartition(".")[2] for name in weights} == {"lora_a", "lora_b"}
    merged, trained = run.load_model("last")[0], run.load_trained_model("last")[0]
    assert {type(m) for m in merged.modules() if isinstance(m, torch.nn.Linear)} == {Linear}
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(merged(tokens), trained(tokens))
    assert not torch.allclose(merged(tokens), source.load_model()[0](tokens))
    assert run.sample("9 bot", max_new_tokens=5, temperature=0.0).startswith("9 bot")


def test_frozen_parameters_stay_bit_for_bit(source: Run, tmp_path: Path) -> None:
    run = finetune(source, tmp_path / "tuned", **CASES["freeze"])
    before, after = source.load_model()[0].state_dict(), run.load_model("last")[0].state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any(name.startswith(("embedding.", "blocks.0.")) for name in changed)


def test_an_xray_and_a_nan_bundle_know_the_adapters(
    source: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finetune(source, tmp_path / "tuned", **LORA)
    names = {module.name for module in xray_target(str(run.folder)).record.modules}
    assert "blocks.0.attention.q" in names
    begin = TrainingSession.begin

    def break_a_weight(session: TrainingSession, *args: Any) -> None:
        begin(session, *args)
        session.model.get_parameter("blocks.1.mlp.up.lora_b").data[0, 0] = torch.inf

    monkeypatch.setattr(TrainingSession, "begin", break_a_weight)
    with pytest.raises(NormscopeError, match=r"blocks\.1\.mlp\.up\.lora_b: not finite before the batch"):
        finetune(source, tmp_path / "broken", **{**LORA, "lora_dropout": 0.0})
    (bundle,) = (tmp_path / "broken" / "nan").iterdir()
    origin, _ = replay(bundle)
    assert origin is not None
    assert origin.where == "blocks.1.mlp.up.lora_b"


def test_a_hugging_face_folder_with_learned_positions_gets_a_shorter_context(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = CharacterTokenizer.of([TEXT])
    size = tokenizer.vocab_size + 3  # padded
    config = GPT2Config(vocab_size=size, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    theirs.eval()  # type: ignore[no-untyped-call]
    theirs.save_pretrained(tmp_path / "hf")
    tokenizer.save(tmp_path / "hf" / "tokenizer.json")
    (tmp_path / "text.txt").write_text(TEXT)
    options: dict[str, Any] = {
        "steps": 1,
        "lr": 1e-9,
        "matrix_lr": 1e-9,
        "sample_every": 0,
        "context": 12,
        "quiet": True,
    }
    run = train(tmp_path / "text.txt", init_from=tmp_path / "hf", out=tmp_path / "run", **options)
    model, _ = run.load_model("last")
    tokens = torch.randint(size, (1, 12))
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)
    assert run.config.model.context == 12
    assert generate_text(model, run.tokenizer(), "1", max_new_tokens=3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"depth": 3}, "depth=3 contradicts --from"),
        ({"preset": "gpt2"}, "preset=gpt2 contradicts --from"),
        ({"tokenizer": "bytes"}, "tokenizer=bytes contradicts --from"),
        ({"recipe": "dial"}, "recipe=dial contradicts --from"),
        ({"width": 64}, "width=64 contradicts .*whose weights have width=16"),
        ({"context": 99}, "context=99 is longer"),
        ({"lora": 0}, "lora=0"),
        ({"lora_alpha": 2.0}, "settings of LoRA"),
        ({"lora": 2, "lora_targets": "*.query"}, "matches no linear layer"),
        ({"freeze": "nothing.*"}, "matches no trainable parameter"),
        ({"freeze": "*"}, "every parameter would be frozen"),
    ],
)
def test_settings_that_contradict_the_source_are_refused(
    source: Run, tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NormscopeError, match=problem):
        finetune(source, tmp_path / "tuned", **settings)
    assert not (tmp_path / "tuned").exists()


def test_lora_needs_a_source(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(NormscopeError, match="need the weights of a model"):
        train(tmp_path / "text.txt", out=tmp_path / "run", lora=4, quiet=True)


def test_a_changed_copy_of_the_initial_weights_is_noticed(source: Run, tmp_path: Path) -> None:
    run = finetune(source, tmp_path / "tuned", **LORA)
    path = run.folder / FOLDER_NAME / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        run.load_model()


def test_the_doctor_measures_finetuning(source: Run) -> None:
    whole = measure_cost(source.config.model, TrainConfig(steps=5, batch=2, optimizer="adamw"), seconds=0.01)
    report = doctor(init_from=source.folder, context=12, lora=2, batch=2, seconds=0.01)
    assert (report.preset, report.model.context, report.train.optimizer) == ("run", 12, "adamw")
    cost = report.cost
    assert cost.parameters == whole.parameters + cost.trained
    assert cost.checkpoint < whole.checkpoint / 3
    assert cost.memory_parts["optimizer"] == 2 * cost.memory_parts["gradients"] == 8 * cost.trained
    with pytest.raises(NormscopeError, match="depth=3 contradicts --from"):
        doctor(init_from=source.folder, depth=3)
