"""A folder in bfloat16 is loaded within its own size and a fifth: weights are copied one by one, in their dtype."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from normscope.interop.families import families
from normscope.models.gpt import GPT
from normscope.models.presets import llama

MEASURE = """
import re, sys
import torch
from normscope.interop.checkpoint import build_model
from normscope.interop.huggingface import read_huggingface

def kilobytes(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+)", file.read())[1])

build_model(read_huggingface(sys.argv[2]))  # what is imported on the first use does not count either
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = kilobytes("VmRSS")
model = build_model(read_huggingface(sys.argv[1]))
print(1024 * (kilobytes("VmHWM") - before))
assert model.embedding.weight.dtype == torch.bfloat16
"""


def save_llama(folder: Path, **sizes: int) -> int:
    """Save a model with weights of one in bfloat16; return the bytes of its weights."""
    folder.mkdir()
    config, family = llama(**sizes), families()["llama"]
    with torch.device("meta"):
        names = GPT(config).state_dict()
    ones = {name: torch.ones(weight.shape, dtype=torch.bfloat16) for name, weight in names.items()}
    theirs = {name: weight.contiguous() for name, weight in family.to_theirs(config, ones).items()}
    save_file(theirs, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(family.write_config(config)), encoding="utf-8")
    return sum(weight.nbytes for weight in theirs.values())


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"vocab_size": 8000, "width": 1024, "hidden": 4096, "depth": 4, "heads": 8}, id="150MB"),
        pytest.param(
            {"vocab_size": 151936, "width": 1536, "hidden": 8960, "depth": 28, "heads": 12, "context": 32768},
            id="3GB",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_peak_memory_of_loading(sizes: dict[str, int], tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    size = save_llama(large, **sizes)
    save_llama(small, vocab_size=9, width=16, depth=1, heads=2)
    command = [sys.executable, "-c", MEASURE, str(large), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert size < int(done.stdout) < 1.2 * size
