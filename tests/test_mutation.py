"""The files and tests that `tests/mutation.py` names exist."""

import pytest

from tests.mutation import CORE, PACKAGE, ROOT


@pytest.mark.parametrize("name", CORE)
def test_mutated_files_and_their_tests_exist(name: str) -> None:
    assert (PACKAGE / f"{name}.py").is_file()
    for test in CORE[name]:
        path = ROOT / "tests" / test
        assert path.is_dir() or path.with_suffix(".py").is_file()
