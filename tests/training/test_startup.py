"""What a run imports before its first step, which delays every run."""

import subprocess
import sys
from pathlib import Path

_RUN = """
import sys
from normscope.cli import main
folder, *heavy = sys.argv[1:]
sys.argv = ["normscope", "train", f"{folder}/my.txt", "--steps", "2", "--depth", "1", "--out", f"{folder}/run"]
main()
print([name for name in heavy if name in sys.modules])
"""


def test_a_run_imports_neither_the_compiler_nor_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 200)
    heavy = ["torch._dynamo", "torch._inductor", "tensorboard", "wandb", "transformers", "pyarrow", "matplotlib"]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path), *heavy], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
