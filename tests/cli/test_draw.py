"""`normscope draw`: what is printed, what is written, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from normscope.blocks.activations import ACTIVATIONS
from normscope.cli import main
from normscope.drawing.scopes.draw_scope import draw_scope, draw_svg
from normscope.drawing.scopes.gallery import gallery_svg

GROUPS = "n (g [c]) [h w]"


@pytest.mark.parametrize(
    "arguments",
    [
        [GROUPS, "--shape", "2,4,3,3", "g=2"],
        [GROUPS, "g=2", "--shape", "2x4x3x3"],
        ["--shape", "2, 4, 3, 3", GROUPS, "g=2", "n=2"],
        [GROUPS, "g=2", "--shape", "(2, 4, 3, 3)"],
        [GROUPS, "g=2", "--shape", "[2, 4, 3, 3,]"],
        [GROUPS, "g=2", "--shape", "torch.Size([2, 4, 3, 3])"],
    ],
)
def test_scope_is_drawn(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "scope", *arguments]) == 0
    assert capsys.readouterr().out == draw_scope(GROUPS, (2, 4, 3, 3), g=2) + "\n"


def test_scope_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scope.svg"
    assert main(["draw", "scope", "n [c]", "--shape", "2,3", "--svg", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == draw_svg("n [c]", (2, 3))
    assert capsys.readouterr().out == f"wrote {path}\n"


def test_gallery_is_written(tmp_path: Path) -> None:
    path = tmp_path / "scopes.svg"
    assert main(["draw", "gallery", "--svg", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == gallery_svg()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["n [c", "--shape", "2,3"],
            "error: unclosed '['\n    n [c\n      ^\nfix: add the matching ']'\n",
        ),
        (
            ["n [c]", "--shape", "2,x"],
            "error: invalid shape '2,x': expected comma-separated integers\nfix: --shape 2,4,3,3\n",
        ),
        (
            ["n [c]", "--shape", "(2,3"],
            "error: invalid shape '(2,3': expected comma-separated integers\nfix: --shape 2,4,3,3\n",
        ),
        (
            ["n [c] d", "--shape", "2", "3", "4"],
            "error: unexpected argument '3' and '4': a shape contains no spaces\nfix: --shape 2,3,4\n",
        ),
        (
            ["n [c]", "c", "--shape", "2,3"],
            "error: expected AXIS=SIZE with an integer size, but got 'c'\nfix: c=2\n",
        ),
        (
            ["n [c]", "c=3", "c=4", "--shape", "2,3"],
            "error: duplicate size for axis 'c'\nfix: give it once\n",
        ),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "scope", *arguments]) == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["scop", "n [c]", "--shape", "2,3"], "did you mean 'scope'?"),
        (["galery"], "did you mean 'gallery'?"),
        (["picture"], "use one of: scope, block, model, gallery"),
        (["n [c]", "--shape", "2,3"], "normscope draw scope 'n [c]' --shape 2,3"),
    ],
)
def test_unknown_drawing(arguments: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", *arguments]) == 2
    assert capsys.readouterr().err == f"error: unrecognized subcommand {arguments[0]!r}\nfix: {fix}\n"


def test_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no" / "a.svg"
    assert main(["draw", "gallery", "--svg", str(path)]) == 2
    expected = f"error: cannot write {path}: the folder {path.parent} does not exist\nfix: create it first\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    "arguments", [["--preset", "llama", "--wiring", "post", "--model", "kv_heads=2", "depth=9"], []]
)
def test_block_is_drawn(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from normscope.inspection.draw import draw_block

    assert main(["draw", "block", "--shape", "2,8,48", *arguments]) == 0
    settings = {"wiring": "post", "kv_heads": 2} if arguments else {}
    drawn = draw_block("llama" if arguments else "nanochat", (2, 8, 48), settings)
    assert capsys.readouterr().out == drawn.text + "\n"


def test_block_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "block.svg"
    assert main(["draw", "block", "--shape", "2,8,48", "--svg", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("<svg ")
    assert capsys.readouterr().out == f"wrote {path}\n"


@pytest.mark.parametrize("name", ["gpt2", "nanochat", "llama", "encoder", "vit"])
def test_model_is_drawn(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "model", "--preset", name, "--model", "depth=3"]) == 0
    out = capsys.readouterr().out
    assert "× 3  blocks · Block" in out
    assert max(map(len, out.splitlines())) <= 80


def test_model_of_a_run_is_drawn(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["draw", "model", str(trained_run)]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(f"{trained_run} · GPT · ")  # a long path is wrapped
    assert "× 2  blocks · Block" in out
    assert "8×16×16" in out


def test_model_of_a_checkpoint_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typing import Any

    import transformers

    library: Any = transformers
    config = library.GPT2Config(vocab_size=30, n_layer=2, n_embd=16, n_head=4, n_positions=8)
    library.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["draw", "model", str(tmp_path), "--shape", "3,5", "--expand"]) == 0
    out = capsys.readouterr().out
    assert "× 2  blocks · Block" in out
    assert "b s h e 3×5×4×4" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["block", "--shape", "8,1024"],
            "the input shape of a block is batch,length,width, but got 2 sizes: 8,1024\nfix: --shape 8,1024,768",
        ),
        (
            ["block", "--shape", "8,16,770"],
            "width=770 is not divisible by heads=6\nfix: --model heads=5",
        ),
        (["block", "--shape", "8,0,768"], "a shape of 8,0,768 has a size of zero\nfix: use positive sizes"),
        (["block", "--preset", "nanochatt"], "unknown preset 'nanochatt'\nfix: did you mean 'nanochat'?"),
        (["model", "--preset", "gtp2"], "unknown preset 'gtp2'\nfix: did you mean 'gpt2'?"),
        (["block", "--wiring", "sandwhich"], "unknown wiring 'sandwhich'\nfix: did you mean 'sandwich'?"),
        (
            ["block", "--wiring", "xyz"],
            "unknown wiring 'xyz'\nfix: use one of: pre, post, sandwich, parallel, parallel-2, branch, single, none",
        ),
        (
            ["model", "--preset", "gpt2", "--shape", "8,16,768"],
            "this model expects batch and up to 1024 tokens, but got the shape 8,16,768\nfix: --shape 8,1024",
        ),
        (
            ["model", "--preset", "gpt2", "--shape", "2,2000"],
            "this model expects batch and up to 1024 tokens, but got the shape 2,2000\n"
            "fix: --shape 2,2000 --model context=2000, or --shape 8,1024",
        ),
        (
            ["model", "--preset", "vit", "--shape", "8,3,64,64"],
            "this model expects (batch, 3, 224, 224), but got the shape 8,3,64,64\nfix: --shape 8,3,224,224",
        ),
        (
            ["block", "--model", "activation=swigloo"],
            f"unknown activation 'swigloo'; choose one of {', '.join(ACTIVATIONS)}\n"
            "fix: change the sizes, or the settings after --model",
        ),
    ],
)
def test_blocks_that_cannot_be(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["draw", "model", "--wiring", "pre", "--model", "wiring=post"], "wiring"),
        (["xray", "gpt2", "--width", "16", "--model", "width=32"], "width"),
    ],
)
def test_a_setting_given_twice_is_refused(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert f"{name} is given twice: as --{name} and in --model\nfix: give it once" in capsys.readouterr().err


def test_a_folder_that_holds_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "model", str(tmp_path)]) == 2
    assert (
        "is not a model: it is an empty folder\nlooked for: run: a folder with config.json" in capsys.readouterr().err
    )
    assert main(["draw", "model", str(tmp_path), "--preset", "nanochat"]) == 2
    assert f"{tmp_path} cannot be used with --preset nanochat\nfix: remove one of them" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{")
    assert main(["draw", "model", str(tmp_path)]) == 2
    assert "config.json is not JSON: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/one", "no such model: 'runs/one' does not exist (nothing is downloaded)\nfix: use a preset ("),
        ("gtp2", "no such model: 'gtp2' does not exist (nothing is downloaded)\nfix: did you mean 'gpt2'?"),
        ("a.txt", "a.txt is not a model: it is a file that starts with b'text'\nlooked for: run: a folder"),
    ],
)
def test_a_folder_that_is_not_there(
    name: str, message: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "a.txt").write_text("text")
    assert main(["draw", "model", name]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_block_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no" / "block.svg"
    assert main(["draw", "block", "--shape", "2,8,48", "--svg", str(path)]) == 2
    assert "fix: create it first" in capsys.readouterr().err


def test_drawing_needs_no_torch() -> None:
    code = (
        "import sys; from normscope.cli import main\n"
        "main(['draw', 'scope', '... [d]', '--shape', '2,3'])\n"
        "print(sorted(sys.modules.keys() & {'torch', 'numpy', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("[]\n"), done.stderr
