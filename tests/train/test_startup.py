"""What a run loads before its first step: each second of it is a second of every run."""

import subprocess
import sys
from pathlib import Path

from tests.train.small_run import new_run

_RUN = """
import sys
from pathlib import Path
from normscope.train.loop import train
from normscope.train.run import Run
train(Run.open(Path(sys.argv[1])))
print([name for name in sys.argv[2:] if name in sys.modules])
"""


def test_a_run_loads_neither_the_compiler_nor_what_only_options_need(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=2, evaluate_every=0, save_every=0)
    heavy = ["torch._dynamo", "torch._inductor", "tensorboard", "wandb", "transformers", "pyarrow", "matplotlib"]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(run.folder), *heavy], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
