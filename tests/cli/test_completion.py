"""The completion scripts know every command and every option that its help lists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from normscope.cli import COMMANDS
from normscope.cli.completion import Shell, completion_script
from tests.cli.running import refused, typed

SUBCOMMANDS = {
    "draw": ("draw scope", "draw block", "draw model", "draw gallery"),
    "lab": ("lab list", "lab run", "lab report"),
}


@pytest.fixture(scope="module")
def scripts() -> dict[Shell, str]:
    shells: tuple[Shell, ...] = ("bash", "zsh", "fish")
    return {shell: completion_script(shell) for shell in shells}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_the_help_is_known(
    command: str, scripts: dict[Shell, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for line in SUBCOMMANDS.get(command, (command,)):
        shown = re.findall(r"(?m)^[│ ] (?:-\w(?: \w+)?, )?(--\w[\w-]*)", _help(line, capsys))
        assert shown
        for script in scripts.values():
            assert all(option in script for option in shown if option != "--help")


def _help(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    _, out, _ = typed(f"{line} --help", capsys)
    return re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_each_shell_gets_a_script_with_every_command(
    scripts: dict[Shell, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for shell, script in scripts.items():
        code, out, errors = typed(f"completion {shell}", capsys)
        assert (code, out, errors) == (0, script + "\n", "")
        assert all(re.search(rf"\b{command}\b", script) for command in COMMANDS)
    assert "unexpected" in refused(["completion", "bash", "more"], capsys)


def test_values_are_offered_in_a_fixed_order_and_without_the_default_none(scripts: dict[Shell, str]) -> None:
    """tyro lists them in the order of a set, which differs between runs."""
    for script in scripts.values():
        values = [re.findall(r"'(.*?)'", found) for found in re.findall(r"'choices': \[(.*?)\]", script)]
        assert ["auto", "bfloat16", "float32"] in values
        assert all(found == sorted(found) and "None" not in found for found in values)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("normscope sam", "sample"),
        ("normscope sample --top", "--top-k --top-p"),
        ("normscope sample x --weights i", "int8"),
        ("normscope train my.txt --on-nan r", "rollback"),
        ("normscope draw sc", "scope"),
        ("normscope draw scope --sh", "--shape"),
        ("normscope impo", "import"),
        ("normscope xray gpt2 --forw", "--forward-only"),
        ("normscope diff a b --tol", "--tolerance"),
        ("normscope explain rm", "rmsnorm"),
        ("normscope explain rmsnorm --ep", "--eps"),
        ("normscope help la", "lab"),
        ("normscope completion z", "zsh"),
    ],
)
def test_bash_completes(line: str, wanted: str, tmp_path: Path, scripts: dict[Shell, str]) -> None:
    script = f"""{scripts["bash"]}
COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _tyro_normscope; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (wanted, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_file_names_too(scripts: dict[Shell, str]) -> None:
    script = f"{scripts['bash']}\ncomplete -p normscope"
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "complete -o default -F _tyro_normscope normscope"
