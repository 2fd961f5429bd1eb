"""What `normscope xray` is given: folders that are damaged, batches that do not fit, names that are nearly right."""

import json
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

import normscope
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.diagnostics.record_json import load_record
from tests.cli.running import entered, refused

THEIRS = """
import torch
from torch import nn

class Net(nn.Linear):
    pass

def with_labels():
    return Net(3, 2), (torch.ones(5, 3), torch.zeros(5).long())

def too_few():
    return nn.Bilinear(2, 3, 4), torch.ones(5, 2)

def other_names():
    return Net(3, 2), {"x": torch.ones(5, 3)}
"""


@pytest.fixture
def theirs(in_folder: Path) -> Path:
    (in_folder / "theirs.py").write_text(THEIRS)
    (in_folder / "many.py").write_text("\n".join(f"def make_{i:02d}(): ..." for i in range(40)))
    (in_folder / "notes.txt").write_text("a text")
    return in_folder


@pytest.fixture
def bert(in_folder: Path) -> Path:
    tiny = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(tiny).save_pretrained(in_folder / "bert")  # type: ignore[no-untyped-call]
    return in_folder / "bert"


def test_a_damaged_file_is_not_given_to_transformers(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(whole[:1000])
    capsys.readouterr()
    errors = refused(["xray", "bert"], capsys)
    assert errors.startswith("error: bert/model.safetensors is not a safetensors file: its header would have")
    assert "transformers cannot" not in errors
    assert "\nfix: download it again" in errors


def test_a_folder_without_weights(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bert / "model.safetensors").unlink()
    capsys.readouterr()
    errors = refused(["xray", "bert"], capsys)
    assert errors.startswith("error: bert has neither model.safetensors nor model.safetensors.index.json")
    assert errors.count("\n") == 2  # the error, the fix


def test_what_transformers_cannot_read_has_both_reasons(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "num_attention_heads": 3}))
    capsys.readouterr()
    errors = refused(["xray", "bert"], capsys)
    assert errors.startswith("error: unsupported model_type 'bert'")
    assert "transformers cannot load bert either: " in errors
    assert errors.count("\nfix: ") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("theirs.py:with_labels", "is a tuple of 2, and Net.forward(input"),
        ("theirs.py:with_labels", "\nfix: return model, inputs, lambda output: F.cross_entropy(output, labels)"),
        ("theirs.py:too_few", "is a tensor, and Bilinear.forward(input1"),
        ("theirs.py:too_few", "is missing a required argument: 'input2'\nfix: return a tensor for model(batch)"),
        ("theirs.py:other_names", "is a dict of 1, and Net.forward(input"),
        ("notes.txt", "notes.txt is not a model: it is a file that starts with b'a text'"),
        ("theirs.py:with_lables", "theirs.py has no function 'with_lables'\nfix: did you mean 'with_labels'?"),
        ("many.py:else", "make_10, make_11, and 28 more"),
        ("many.py:make_7", "did you mean 'make_"),
    ],
)
def test_what_is_wrong_is_said(theirs: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(["xray", line], capsys)


def test_a_class_is_no_function_to_name(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "use one of: with_labels, too_few, other_names" in refused(["xray", "theirs.py:zzz"], capsys)


def test_a_step_of_a_run_that_is_done(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After its last step the schedule is at nothing; the step is taken at the rate of the last one."""
    code, out, _ = entered(["xray", str(trained_run), "--step", "--json", str(tmp_path / "a.json")], capsys)
    assert code == 0
    assert "1 step of Muon (lr " in " ".join(out.split())
    assert " and AdamW (lr " in " ".join(out.split())
    record = load_record(tmp_path / "a.json")
    assert all(step.lr > 0 for step in record.steps)
    updates = [parameter.update_ratio for module in record.modules for parameter in module.parameters]
    assert any(update for update in updates)


def test_a_series_says_which_of_them_is_shown(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "xray").mkdir()
    for step in (0, 10, 20):
        entered(["xray", "nanochat", "--depth", "1", "--json", f"xray/step-{step:06d}.json"], capsys)
    assert "last of 3 x-rays in xray; use --html FILE" in entered(["xray", "xray"], capsys)[1]


def test_files_with_modules_of_the_same_name_are_different_models(tmp_path: Path) -> None:
    for folder, activation in (("old", "ReLU"), ("new", "Tanh")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(
            f"import torch\nfrom torch import nn\ndef build():\n    torch.manual_seed(0)\n"
            f"    return nn.Sequential(nn.Linear(4, 4), nn.{activation}())\n"
        )
        (tmp_path / folder / "model.py").write_text(
            "import torch\nfrom net import build\ndef f():\n    return build(), torch.ones(2, 4)\n"
        )
    old, new = (f"{tmp_path / folder / 'model.py'}:f" for folder in ("old", "new"))
    different, same = normscope.diff(old, new), normscope.diff(old, old)
    assert isinstance(different, RecordDiff)
    assert isinstance(same, RecordDiff)
    assert different.diverges
    assert not same.diverges
