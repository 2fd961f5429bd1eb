"""What a run imports before its first step, which delays every run."""

import json
import sys
from pathlib import Path

from tests.training.forked import finish, start_forked

HEAVY = ("torch._dynamo", "torch._inductor", "tensorboard", "wandb", "transformers", "pyarrow", "matplotlib")


def train_and_list_imports(folder: str) -> None:
    from normscope.cli import main
    from tests.training.warm_run import IMPORTED

    before = set(sys.modules)
    options = ["--steps", "2", "--depth", "1", "--context", "16", "--quiet"]
    assert main(["train", f"{folder}/my.txt", *options, "--out", f"{folder}/run"]) == 0
    new = set(sys.modules) - before
    Path(folder, "imports.json").write_text(json.dumps(sorted(IMPORTED | new)))


def test_a_run_imports_neither_the_compiler_nor_optional_packages(tmp_path: Path) -> None:
    """In a fork of a process that has trained a run and done nothing else, so what it had imported counts too."""
    (tmp_path / "my.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 200)
    finish(start_forked(train_and_list_imports, str(tmp_path)))
    imported = json.loads((tmp_path / "imports.json").read_text())
    assert "normscope.training.loop" in imported
    assert [name for name in HEAVY if name in imported] == []
