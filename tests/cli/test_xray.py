"""`normscope xray`: of runs, presets, Hugging Face folders, functions and files; and what a user can get wrong."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from normscope.diagnostics.record_json import load_record
from tests.cli.running import SMALL, entered, refused, write_text
from tests.pairs import chiefly

MINE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def good():
    wanted = torch.arange(16) % 3
    return net(), torch.randn(16, 4), lambda output: nn.functional.cross_entropy(output, wanted)

def plain():
    return net(), torch.ones(2, 4)

def two():
    return nn.Bilinear(2, 3, 4), (torch.ones(5, 2), torch.ones(5, 3))

def named():
    return nn.Linear(2, 2), {"input": torch.ones(5, 2)}

def infinite():
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = 1e30
    return model, torch.full((2, 4), 1e30)

def lazy():
    return nn.Sequential(nn.LazyLinear(8), torch.jit.script(nn.ReLU()), nn.LazyLinear(2)), torch.ones(4, 5)

def alone():
    return net()

def number():
    return 3

def three_models():
    return net(), net()

def no_loss():
    return net(), torch.ones(2, 4), "mse"

def large_loss():
    return net(), torch.ones(2, 4), lambda output: output

def outer():
    return inner(7)

def inner(x):
    raise ValueError("not today")

def wrong_shape():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 8)), torch.ones(2, 4)

def frozen():
    return net().requires_grad_(False), torch.ones(2, 4)

value = 3
"""


@pytest.fixture
def mine(in_folder: Path) -> Path:
    (in_folder / "mine.py").write_text(MINE)
    (in_folder / "broken.py").write_text("import nothing_of_this_name\n")
    return in_folder


def seen(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    command = arguments if arguments[0] == "diff" else ["xray", *arguments]
    found, out, errors = entered(command, capsys)
    assert (found, errors) == (code, "")
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("wrote "))
    return out


def files(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_run_is_only_read(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(trained_run)
    out = seen([str(trained_run), "--batches", "2", "--step", "--tree"], capsys)
    assert "X-ray of GPT" in out
    assert "2 batches, 2 backward passes" in out.replace("\n", " ")
    assert "blocks.0 + attention" in out
    assert files(trained_run) == before


def test_a_checkpoint_may_be_chosen(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in ("2", "last"):
        seen([str(trained_run), "--checkpoint", step, "--json", str(tmp_path / f"{step}.json")], capsys)
    records = [load_record(tmp_path / name) for name in ("2.json", "last.json")]
    assert [record.label.rpartition(" ")[2] for record in records] == ["2", "4"]
    errors = refused(["xray", str(trained_run), "--checkpoint", "3"], capsys)
    assert "fix: choose one of best, last, 2, 4" in errors


def test_a_preset_is_as_train_begins_with_it(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(["llama", "--depth", "1", "--width", "32", "--heads", "2", "--context", "16", "--json", "a.json"], capsys)
    record = load_record(in_folder / "a.json")
    assert record["blocks.0"].output_shapes == ((4, 16, 32),)
    assert record.losses[0].num_classes == 2048
    assert "blocks.1" not in [module.name for module in record.modules]
    seen(["nanochat", "--depth", "1", "--model", "activation=gelu", "vocab_size=99", "--json", "b.json"], capsys)
    assert "blocks.0.mlp.gelu()" in [module.name for module in load_record(in_folder / "b.json").modules]


def test_forward_only_has_no_gradients_and_a_step_has_updates(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["nanochat", "--depth", "1", "--json", "a.json"]
    seen([*small, "--forward-only"], capsys)
    record = load_record(in_folder / "a.json")
    assert record.backward_passes == 0
    assert record["blocks.0"].gradient is None
    entered(["xray", *small, "--step", "--batches", "2"], capsys)
    record = load_record(in_folder / "a.json")
    assert record["head"].parameters[0].update_ratio is not None
    assert len(record.steps) == 4  # two optimisers


@pytest.mark.parametrize("name", ["good", "plain", "two", "named"])
@pytest.mark.parametrize("place", ["mine.py", "mine"])
def test_a_function_of_the_users(mine: Path, name: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = seen([f"{place}:{name}", "--step"], capsys)
    assert f"{place}:{name}: 1 batch, 1 backward pass, 1 step" in out


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_lazy_and_scripted_parts(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "scripted" in seen(["mine.py:lazy"], capsys)


def test_an_x_ray_that_cannot_begin_says_why(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no room for hooks")

    monkeypatch.setattr("normscope.tracing.tracer.Tracer.watch_modules", fail)
    with pytest.raises(RuntimeError, match="no room for hooks"):
        entered(["xray", "mine.py:good"], capsys)


def test_an_error_is_an_exit_code(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ERROR" in seen(["mine.py:infinite"], capsys, code=1)
    assert "ERROR" not in seen(["mine.py:good"], capsys)


def test_it_is_saved_and_shown_again(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = seen(["mine.py:good", "--json", "a.json", "--html", "a.html"], capsys)
    assert first.endswith("wrote a.json\nwrote a.html\n")
    again = seen(["a.json"], capsys)
    assert first.startswith(again)
    assert (mine / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((mine / "a.json").read_text())["format"] == "normscope x-ray"


def test_a_folder_of_xrays_is_a_series(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mine / "xray").mkdir()
    for step in (0, 10):
        seen(["mine.py:good", "--json", f"xray/step-{step:06d}.json"], capsys)
    seen(["xray", "--html", "a.html"], capsys)
    assert "last of 2 x-rays" in (mine / "a.html").read_text()


def test_a_hugging_face_gpt(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(tiny).save_pretrained(in_folder / "tiny")  # type: ignore[no-untyped-call]
    capsys.readouterr()
    out = seen(["tiny"], capsys)
    assert "X-ray of GPT\n" in out  # normscope's own


def test_another_hugging_face_model_is_read_by_transformers(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(tiny).save_pretrained(in_folder / "bert")  # type: ignore[no-untyped-call]
    code, out, errors = entered(["xray", "bert"], capsys)
    assert code in (0, 1)
    assert "Traceback" not in errors
    assert "X-ray of BertModel" in out
    assert "--cached needs a GPT of normscope, but got bert" in refused(["xray", "bert", "--cached"], capsys)


def test_a_thing_is_like_itself_in_another_form(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in (["--cached"], ["--dtype", "bfloat16"]):
        out = seen(["diff", str(trained_run), *form], capsys)
        assert "No differences" in out


def test_a_function_makes_the_same_each_time(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though its batch is random: the seed is given before it is called."""
    assert "No differences" in seen(["diff", "mine.py:good", "mine.py:good"], capsys)
    assert "No differences" in seen(["diff", "mine.py:good", "--dtype", "bfloat16"], capsys)


def test_two_files_are_compared(trained_run: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in ("2", "4"):
        seen([str(trained_run), "--checkpoint", step, "--json", f"{step}.json"], capsys)
    out = seen(["diff", "2.json", "4.json"], capsys, code=1)
    assert "forward: first differs in embedding" in out
    assert "its weights differ" in out
    assert "No differences" in seen(["diff", "2.json", "4.json", "--tolerance", "1000"], capsys)
    assert "No differences" in seen(["diff", str(trained_run), "4.json"], capsys)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nanocat", "no such model: 'nanocat' does not exist (nothing is downloaded)\nfix: did you mean 'nanochat'?"),
        (
            "somewhere/else",
            "does not exist (nothing is downloaded)\nfix: use a preset (gpt2, nanochat, nanochat-2026-07, llama), a",
        ),
        (".", ". is not a model: it is a folder with "),
        ("nothing.json", "nothing.json does not exist"),
        ("mine.py", "mine.py is a script"),
        ("mine.py:away", "mine.py has no function 'away'\nfix: use one of: net, good"),
        ("mine.py:value", "mine.py has no function 'value'"),
        ("gone.py:make", "no such file: gone.py"),
        ("gone.away:make", "no module named 'gone.away'"),
        ("..:make", "invalid module name '..'"),
        ("broken:make", "importing broken raised ModuleNotFoundError: No module named 'nothing_of"),
        ("mine.py:alone", "returned a model without a batch\nfix: return model, batch"),
        ("mine.py:number", "returned int, not a model and a batch"),
        ("mine.py:three_models", "must return a batch second, but got Sequential"),
        ("mine.py:no_loss", "must return a loss third, but got str"),
        ("mine.py:large_loss", "the loss of mine.py:large_loss returned a tensor of (2, 3)"),
        ("mine.py:wrong_shape", "its module '1' raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("mine.py:frozen", "no parameter of mine.py:frozen requires a gradient\nfix: --forward-only"),
        ("mine.py:good --cached", "--cached needs a GPT of normscope, but got"),
        ("mine.py:good --depth 3", "--depth applies only to presets, not to mine.py:good"),
        ("nanochat --cached --step", "a cached pass is one batch without backward pass"),
        ("nanochat --step --forward-only", "an optimizer step needs gradients"),
        ("nanochat --batches 0", "--batches 0 must be a positive integer"),
        ("nanochat --seed -1", "--seed -1 must be an integer"),
        ("nanochat --heads 5", "heads"),
        ("diff nanochat", "nothing to compare nanochat with\nfix: add a second target"),
        ("diff nothing.json other.json", "nothing.json does not exist"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(mine: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = line.split() if line.startswith("diff ") else ["xray", *line.split()]
    assert words in refused(command, capsys)


def test_the_users_own_error_is_shown_where_it_was(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = refused(["xray", "mine.py:outer"], capsys)
    assert errors.startswith("error: mine.py:outer raised ValueError: not today\n")
    assert "in outer\n    return inner(7)\n" in errors
    assert 'in inner\n    raise ValueError("not today")' in errors
    assert errors.count("\n") == 5


def test_what_was_taken_cannot_be_taken_otherwise(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(["mine.py:good", "--json", "a.json"], capsys)
    for option in (["--step"], ["--depth", "2"], ["--width", "8"], ["--dtype", "bfloat16"]):
        assert f"{option[0]} has no effect on the saved x-ray" in refused(["xray", "a.json", *option], capsys)
    assert "--cached has no effect on the saved x-ray" in refused(["diff", "a.json", "--cached"], capsys)


def test_the_help_says_what_a_target_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = entered(["xray", "--help"], capsys)
    assert code == 0
    for words in (
        "runs/stories",
        "nanochat, gpt2, llama",
        "package.module:function",
        "exit code 1",
        "normscope diff A B",
    ):
        assert words in out
    assert "--tolerance" in entered(["diff", "--help"], capsys)[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own compiler still uses it
@pytest.mark.parametrize("backend", chiefly(["aot_eager"], ["inductor"]))
def test_a_compiled_model_is_like_itself(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """By default without inductor, which is slow to make C++ of the graph."""
    compile_with, asked = torch.compile, []

    def compiling(function: Any) -> Any:
        asked.append(function)
        return compile_with(function, backend=backend)

    monkeypatch.setattr(torch, "compile", compiling)
    out = seen(["diff", "mine.py:plain", "--compile"], capsys)
    assert len(asked) == 1
    assert "mine.py:plain vs mine.py:plain, compiled" in out
    assert "No differences" in out


def test_a_made_up_loss_is_told_and_norms_do_not_flatten_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean square behind a LayerNorm is nearly constant: hardly a gradient would come back."""
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16)), torch.randn(4, 8)\n"
    )
    path = tmp_path / "look.json"
    _, out, _ = entered(["xray", f"{tmp_path / 'mine.py'}:make", "--json", str(path)], capsys)
    assert "no loss given" in " ".join(out.split())
    record = load_record(path)
    first, last = record["0"].gradient, record["1"].gradient
    assert first is not None
    assert last is not None
    assert first.rms > 0.1 * last.rms


def test_an_xray_of_a_run_knows_how_many_steps_it_has_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path)
    entered(["train", str(text), *SMALL, "3"], capsys)
    entered(["xray", "runs/milk", "--json", "look.json"], capsys)
    assert load_record(tmp_path / "look.json").steps_before == 3


SCRIPT = """
import sys
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(100):
    print("step", i, sys.argv[1:])
    if i == 30:
        raise ValueError("bad batch")
    sgd.zero_grad()
    nn.functional.cross_entropy(net(torch.randn(16, 4)), torch.arange(16) % 3).backward()
    sgd.step()
"""


def test_a_training_script(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "train.py").write_text(SCRIPT)
    command = ["--steps", "4", "--json", "a.json", "--script", "train.py", "--steps", "7", "--html"]
    out = seen(command, capsys)
    assert out.startswith("step 0 ['--steps', '7', '--html']\n")
    assert out.index("step 4") < out.index("X-ray of Sequential\ntrain.py: 4 batches, 4 backward passes")
    assert "Modules" not in out
    assert load_record(in_folder / "a.json").batches == 4
    assert "Modules" in seen(["--tree", "--script=train.py"], capsys)
    (in_folder / "moves.py").write_text(f"import os\nos.makedirs('sub')\nos.chdir('sub')\n{SCRIPT}")
    assert "wrote a.html" in seen(["--html", "a.html", "--script", "moves.py"], capsys)
    assert (in_folder / "a.html").exists()


def test_the_error_of_a_script_follows_its_findings(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "train.py").write_text(SCRIPT)
    code, out, errors = entered(["xray", "--steps", "50", "--script", "train.py"], capsys)
    assert code == 1
    assert "30 steps of SGD" in out
    assert errors.startswith('Traceback (most recent call last):\n  File "train.py", line 11')
    assert errors.endswith("ValueError: bad batch\n")
    (in_folder / "exits.py").write_text(SCRIPT.replace("raise ValueError", "sys.exit"))
    code, _, errors = entered(["xray", "--steps", "50", "--script", "exits.py"], capsys)
    assert (code, errors) == (1, "exits.py ended with exit code bad batch\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "required: TARGET"),
        ("gpt2 --steps 3", "--steps has no effect without --script"),
        ("gpt2 --script train.py", "two targets"),
        ("--depth 3 --script train.py", "--depth has no effect on a script"),
        ("--batches 3 --script train.py", "--batches has no effect on a script"),
        ("--script", "--script"),
        ("--script none.py", "none.py does not exist"),
        ("--html none/x.html --script train.py", "none does not exist\nfix: create it first"),
        ("--steps 0 --script train.py", "--steps 0 must be a positive integer"),
    ],
)
def test_what_is_wrong_with_a_script_is_said(
    in_folder: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "train.py").write_text(SCRIPT)
    assert words in refused(["xray", *line.split()], capsys)
