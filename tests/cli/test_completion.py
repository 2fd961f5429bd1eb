"""The completion scripts know every command and every option that its help lists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from normscope.cli import COMMANDS
from normscope.cli.completion import bash_script, command_options, fish_script, zsh_script
from tests.cli.running import refused, typed


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("draw", "lab")])
def test_every_option_of_the_help_is_known(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {"xray": ["xray", "xray diff"]}.get(command, [command])
    shown = {
        option
        for line in lines
        for option in re.findall(r"(?m)^[│ ] (?:-\w(?: N)?, )?(--\w[\w-]*)", _help(line, capsys))
    }
    assert shown
    assert shown == {option.name for option in command_options(command)}


def _help(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    _, out, _ = typed(f"{line} --help", capsys)
    return re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_each_shell_gets_a_script_with_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in (("bash", bash_script()), ("zsh", zsh_script()), ("fish", fish_script())):
        code, out, errors = typed(f"completion {shell}", capsys)
        assert (code, out, errors) == (0, script + "\n", "")
        assert all(re.search(rf"\b{command}\b", script) for command in COMMANDS)
    assert "unexpected" in refused(["completion", "bash", "more"], capsys)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("normscope sam", "sample"),
        ("normscope sample --top", "--top-k --top-p"),
        ("normscope sample x --weights i", "int8"),
        ("normscope draw sc", "scope"),
        ("normscope explain rm", "rmsnorm"),
        ("normscope help la", "lab"),
    ],
)
def test_bash_completes(line: str, wanted: str, tmp_path: Path) -> None:
    script = f"""{bash_script()}
COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _normscope; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (wanted, "")
