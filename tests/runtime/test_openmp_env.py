"""Environment variables that are set before torch is imported; the user's own are kept."""

import os
import subprocess
import sys

import pytest

from normscope.runtime.openmp import REPRODUCIBLE, set_env_defaults

MINE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "MKL_CBWR")
SHOW = "; ".join(f"print(os.environ.get('{name}'))" for name in MINE)


def in_a_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in MINE}
    return subprocess.run(
        [sys.executable, "-c", f"import os; {code}"],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def test_a_command_sets_defaults_before_importing_torch() -> None:
    code = "from normscope.cli import main; main(['--version']); import sys; assert 'torch' not in sys.modules; "
    assert in_a_new_process(f"{code}{SHOW}").stdout.split()[-4:] == ["None", "None", "None", REPRODUCIBLE]


@pytest.mark.parametrize(
    ("users", "wanted"),
    [
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active", "MKL_CBWR": REPRODUCIBLE}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "MKL_CBWR": REPRODUCIBLE}),
        ({"KMP_BLOCKTIME": "0"}, {"KMP_BLOCKTIME": "0", "MKL_CBWR": REPRODUCIBLE}),
        ({"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "COMPATIBLE"}),
    ],
)
def test_variables_of_the_user_are_kept(users: dict[str, str], wanted: dict[str, str]) -> None:
    set_env_defaults(users)
    assert users == wanted


def test_importing_the_package_sets_nothing() -> None:
    done = in_a_new_process(f"import normscope; normscope.Scope.parse('n [c]'); {SHOW}")
    assert done.stdout.split() == ["None"] * 4


def test_once_torch_is_loaded_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MINE:
        monkeypatch.delenv(name, raising=False)
    set_env_defaults()
    assert not any(name in os.environ for name in MINE)
