"""`normscope draw`: what is printed, what is written, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from normscope.cli import main
from normscope.explain.scope_drawing import draw, draw_svg
from normscope.explain.scope_gallery import gallery_svg

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
    assert capsys.readouterr().out == draw(GROUPS, (2, 4, 3, 3), g=2) + "\n"


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
            "error: '[' is never closed\n    n [c\n      ^\nfix: add the ']' that belongs to it\n",
        ),
        (
            ["n [c]", "--shape", "2,x"],
            "error: a shape is whole numbers with commas between them, but got '2,x'\nfix: --shape 2,4,3,3\n",
        ),
        (
            ["n [c]", "--shape", "(2,3"],
            "error: a shape is whole numbers with commas between them, but got '(2,3'\nfix: --shape 2,4,3,3\n",
        ),
        (
            ["n [c] d", "--shape", "2", "3", "4"],
            "error: a shape is one word, but got '3' and '4' apart from it\nfix: --shape 2,3,4\n",
        ),
        (
            ["n [c]", "c", "--shape", "2,3"],
            "error: a size is the name of an axis, '=' and a whole number, but got 'c'\nfix: c=2\n",
        ),
        (
            ["n [c]", "c=3", "c=4", "--shape", "2,3"],
            "error: the size of axis 'c' is given twice\nfix: give it once\n",
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
        (["picture"], "use one of: scope, gallery"),
        (["n [c]", "--shape", "2,3"], "normscope draw scope 'n [c]' --shape 2,3"),
    ],
)
def test_unknown_drawing(arguments: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", *arguments]) == 2
    assert capsys.readouterr().err == f"error: there is no drawing {arguments[0]!r}\nfix: {fix}\n"


def test_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no" / "a.svg"
    assert main(["draw", "gallery", "--svg", str(path)]) == 2
    expected = f"error: cannot write {path}: there is no folder {path.parent}\nfix: make the folder first\n"
    assert capsys.readouterr().err == expected


def test_drawing_needs_no_torch() -> None:
    code = (
        "import sys; from normscope.cli import main\n"
        "main(['draw', 'scope', '... [d]', '--shape', '2,3'])\n"
        "print(sorted(sys.modules.keys() & {'torch', 'numpy', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("[]\n"), done.stderr
