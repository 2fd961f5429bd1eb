"""A folder in bfloat16 is loaded, imported and exported within its own size and a fifth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normscope.data.tokenizers import ByteTokenizer
from normscope.exporting.safetensors_folder import write_shards
from normscope.interop.huggingface.families import families
from normscope.models.gpt import GPT
from normscope.models.presets import llama

MEASURE = """
import re, sys
from pathlib import Path
import normscope
from normscope.runs.import_model import import_model

def kilobytes(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+)", file.read())[1])

def run(folder):
    imported = folder / "run"
    yield "load", lambda: normscope.load(folder)
    yield "import", lambda: import_model(folder, imported)
    yield "open", lambda: normscope.load(imported)
    for to in ("hf", "safetensors"):
        yield to, lambda: normscope.export(imported, to, out=folder / to, proof="skip")

large, small = map(Path, sys.argv[1:])
for _, act in run(small):  # what is imported on the first use does not count
    act()
for name, act in run(large):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = kilobytes("VmRSS")
    kept = act()
    print(name, 1024 * (kilobytes("VmHWM") - before))
    if name == "load":
        assert str(kept[0].embedding.weight.dtype) == "torch.bfloat16"
    del kept
"""


def save_llama(folder: Path, **sizes: int) -> int:
    """Save a model with weights of one in bfloat16, in several files; return the bytes of its weights."""
    folder.mkdir()
    config, family = llama(**sizes), families()["llama"]
    with torch.device("meta"):
        names = GPT(config).state_dict()
    ones = {name: torch.ones(weight.shape, dtype=torch.bfloat16) for name, weight in names.items()}
    write_shards(folder, family.to_theirs(config, ones), max_bytes=5 * 10**7)
    (folder / "config.json").write_text(json.dumps(family.write_config(config)), encoding="utf-8")
    (folder / "tokenizer.json").write_text(ByteTokenizer().to_json(), encoding="utf-8")
    return sum(weight.nbytes for weight in ones.values())


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(
            {"vocab_size": 131072, "width": 256, "hidden": 1024, "depth": 8, "heads": 4, "tied_head": True},
            id="80MB, most of it in a tied embedding",
        ),
        pytest.param(
            {"vocab_size": 151936, "width": 1536, "hidden": 8960, "depth": 28, "heads": 12, "context": 32768},
            id="3GB",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_peak_memory(sizes: dict[str, int], tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    size = save_llama(large, **sizes)
    save_llama(small, vocab_size=300, width=16, depth=1, heads=2)
    assert len(list(large.glob("*.safetensors"))) > 1
    command = [sys.executable, "-c", MEASURE, str(large), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    peaks = {name: int(peak) / size for name, peak in map(str.split, done.stdout.splitlines())}
    assert list(peaks) == ["load", "import", "open", "hf", "safetensors"]
    assert max(peaks.values()) < 1.2, peaks
    assert peaks["load"] > 0.5, peaks  # mapped pages count, unless the system takes them back before the peak
