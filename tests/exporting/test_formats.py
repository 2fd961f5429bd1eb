"""Every format is proved in its own runtime; what it cannot represent is refused before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.comparing.behavior import tolerance_for
from normscope.comparing.comparison import ModelDiff
from normscope.comparing.runtimes import RuntimeMissingError
from normscope.errors import ConfigError, FileError
from normscope.exporting import safetensors_folder
from normscope.exporting.export import FORMATS, MARKER, Exported, ExportError, export_source
from normscope.exporting.gguf.architectures import architecture_of
from normscope.exporting.model_source import ModelSource
from normscope.exporting.safetensors_folder import converted, write_shards
from normscope.inspection.diff import diff
from tests.exporting.models import small_source

NEEDS = {"gguf": "xllamacpp", "onnx": "onnxruntime", "hf": "transformers"}
FAST = [
    ("gguf", "llama", "characters", "f32"),
    ("onnx", "nanochat-2026-07", "bytes", "float32"),
    ("hf", "nanochat", "characters", "stored"),
    ("safetensors", "llama", "bpe", "bfloat16"),
    ("nanogpt", "gpt2", "characters", "float32"),
]
ALL = [
    (to, model, tokenizer, weights)
    for to, models in {
        "gguf": ("gpt2", "llama"),
        "onnx": ("gpt2", "llama", "nanochat", "nanochat-2026-07"),
        "hf": ("gpt2", "llama", "nanochat"),
    }.items()
    for model in models
    for tokenizer in ("characters", "bytes", "bpe")
    for weights in FORMATS[to].weights
]


def exported(source: ModelSource, to: str, folder: Path, weights: str) -> Exported:
    if to in NEEDS:
        pytest.importorskip(NEEDS[to])
    FORMATS[to].check(source)
    return export_source(source, to, folder / f"small{FORMATS[to].suffix}", weights, "require")


def check(to: str, model: str, tokenizer: str, weights: str, folder: Path) -> None:
    result = exported(small_source(model, tokenizer), to, folder, weights)
    assert result.proof is not None
    assert result.proof.succeeded
    assert result.proof.diff is not None
    behavior = result.proof.diff.behavior
    assert behavior is not None
    assert (len(behavior.distances), behavior.greedy_equal) == (64, 64)
    assert [one.name for one in folder.iterdir()] == [result.path.name]  # nothing temporary is left
    assert (folder / result.path.name / MARKER).is_file() == FORMATS[to].is_folder


@pytest.mark.parametrize(("to", "model", "tokenizer", "weights"), FAST)
def test_an_export_is_equal_in_its_own_runtime(
    to: str, model: str, tokenizer: str, weights: str, tmp_path: Path
) -> None:
    check(to, model, tokenizer, weights, tmp_path)


def test_a_page_is_equal_in_node_also_with_a_padded_vocabulary(tmp_path: Path) -> None:
    source = small_source("gpt2", "characters", vocab_size=64)
    try:
        FORMATS["html"].check(source)
        result = exported(source, "html", tmp_path, "int8")
    except (FileError, RuntimeMissingError) as error:
        pytest.skip(str(error))
    assert result.proof is not None
    assert result.proof.succeeded


@pytest.mark.exhaustive
@pytest.mark.parametrize(("to", "model", "tokenizer", "weights"), ALL)
def test_every_combination(to: str, model: str, tokenizer: str, weights: str, tmp_path: Path) -> None:
    check(to, model, tokenizer, weights, tmp_path)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3.1": ("llama", {"rotary_scaling": RotaryScaling(kind="llama3", factor=8.0, original_context=16)}),
    "linear": ("llama", {"rotary_scaling": RotaryScaling(kind="linear", factor=4.0), "rotary_base": 5e5}),
    "biases": ("llama", {"bias": True}),
    "tied": ("llama", {"tied_head": True, "head_dim": 12}),
    "phi3": ("llama", {"rotary_dim": 8}),
    "qwen2": ("qwen2", {"bias": "qkv"}),
    "qwen3": ("qwen3", {"qk_norm": "rms", "head_dim": 12}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_families_of_imported_models(to: str, name: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[name]
    source = small_source("llama", "bytes", **overrides)
    assert architecture_of(source.model.config) == family
    if (to, family) == ("hf", "qwen2"):  # transformers gives it Qwen's tokenizer class, whatever the folder says
        with pytest.raises(ExportError, match="tokenizer: decomposed accents differ"):
            exported(source, to, tmp_path, "stored")
        return
    proof = exported(source, to, tmp_path, "f32" if to == "gguf" else "stored").proof
    assert proof is not None
    assert proof.succeeded


@pytest.mark.parametrize(
    ("to", "model", "field"),
    [
        ("gguf", "nanochat", "embedding_norm=True"),
        ("gguf", "gpt2-window", "window=9"),
        ("gguf", "llama-yarn", "rotary_scaling="),
        ("hf", "llama-post", "wiring='post'"),
        ("nanogpt", "llama", "positions='rotary'"),
        ("onnx", "llama-batch", "norm="),
    ],
)
def test_what_a_format_cannot_represent_is_refused_by_the_name_of_the_field(to: str, model: str, field: str) -> None:
    preset, _, change = model.partition("-")
    overrides: dict[str, dict[str, Any]] = {
        "": {},
        "window": {"window": 9},
        "yarn": {"rotary_scaling": RotaryScaling(kind="yarn", factor=2.0)},
        "post": {"wiring": "post"},
        "batch": {"norm": "instance", "allow_future_leak": True},
    }
    with pytest.raises(ConfigError) as caught:
        FORMATS[to].check(small_source(preset, **overrides[change]))
    assert field in str(caught.value)
    assert "--preset " in str(caught.value) or "--model " in str(caught.value)


def test_nanogpt_refuses_a_tokenizer_that_sample_py_does_not_have() -> None:
    with pytest.raises(ConfigError, match="--tokenizer characters"):
        FORMATS["nanogpt"].check(small_source("gpt2", "bpe"))


def test_a_failed_proof_leaves_the_files_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small_source("llama")
    path = tmp_path / "small-safetensors"
    export_source(source, "safetensors", path, "stored", "require")
    before = (path / "model.safetensors").read_bytes()
    monkeypatch.setattr(safetensors_folder, "converted", lambda tensors, weights: converted(tensors, "float16"))
    with pytest.raises(ExportError, match=r"small-safetensors\.failed") as caught:
        export_source(source, "safetensors", path, "stored", "require")
    assert not caught.value.proof.succeeded
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small-safetensors", "small-safetensors.failed"]
    assert (path / "model.safetensors").read_bytes() == before
    assert "differs" in (tmp_path / "small-safetensors.failed" / MARKER).read_text()
    monkeypatch.undo()
    export_source(source, "safetensors", path, "stored", "require")
    assert [one.name for one in tmp_path.iterdir()] == ["small-safetensors"]
    mine = tmp_path / "small-safetensors.failed" / "notes.txt"
    mine.parent.mkdir()
    mine.touch()
    export_source(source, "safetensors", path, "stored", "skip")
    assert mine.exists()


def test_large_weights_are_written_in_several_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {f"t{i}": torch.full((8,), float(i)) for i in range(5)}
    write_shards(tmp_path, tensors, max_bytes=64)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 160
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_a_gguf_file_with_rounded_matrices_is_the_model_that_it_was_made_from(tmp_path: Path) -> None:
    """The vectors are float32, so all weights are when they are read: the matrices are float16 nonetheless."""
    pytest.importorskip("gguf")
    source = small_source("llama", depth=1)
    written = {}
    for weights in ("f32", "f16"):
        path = tmp_path / f"{weights}.gguf"
        written[weights] = export_source(source, "gguf", path, weights, "skip").path
    found = diff(written["f32"], written["f16"])
    assert isinstance(found, ModelDiff)
    assert not found.differs, str(found)
    assert found.runtime.behavior is not None
    assert found.runtime.behavior.distance > 0
    assert found.runtime.behavior.tolerance == tolerance_for("float16")
