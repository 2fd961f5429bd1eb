"""Unsupported folders, settings and weights are refused by name."""

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from normscope.cli import main
from normscope.errors import ArgumentTypeError, ConfigError, FileError, NormscopeError, WeightsError
from normscope.interop.huggingface.read import gpt_from_huggingface, read_huggingface
from tests.interop.checkpoints import made
from tests.support import every_refusal


@cache
def parts(form: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    model = made(form)
    return model.config.to_dict(), model.state_dict()


def settings(form: str, **changes: Any) -> Callable[[], object]:
    """Read a model whose config.json says something else in places."""
    return lambda: gpt_from_huggingface({**parts(form)[0], **changes}, parts(form)[1])


def without(form: str, name: str) -> Callable[[], object]:
    def call() -> object:
        config, weights = parts(form)
        assert name in config or name in weights
        return gpt_from_huggingface(
            {key: value for key, value in config.items() if key != name},
            {key: value for key, value in weights.items() if key != name},
        )

    return call


def weight(form: str, name: str, value: Any) -> Callable[[], object]:
    def call() -> object:
        config, weights = parts(form)
        assert name in weights
        return gpt_from_huggingface(config, {**weights, name: value})

    return call


def besides(form: str, **more: Tensor) -> Callable[[], object]:
    """Read a model that has more weights than it should."""
    return lambda: gpt_from_huggingface(parts(form)[0], {**parts(form)[1], **more})


def of_shape(form: str, name: str, *shape: int) -> Callable[[], object]:
    return weight(form, name, torch.zeros(shape))


PART = {"partial_rotary_factor": 0.5}
LOOSE = torch.zeros(2, 48)
TABLE, LAST = "model.embed_tokens.weight", "model.norm.weight"
JOINED, JOINED_BIAS = "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias"


@every_refusal(
    (
        "kind",
        WeightsError,
        "model_type 'bert'\nfix: use one of gemma2, gemma3_text, gpt2",
        settings("gpt2", model_type="bert"),
    ),
    ("no-kind", WeightsError, "model_type None", without("gpt2", "model_type")),
    ("kind-list", WeightsError, "unsupported model_type", settings("gpt2", model_type=["gpt2"])),
    ("no-setting", WeightsError, "the gpt2 checkpoint has no 'n_embd'", without("gpt2", "n_embd")),
    ("no-setting-llama", WeightsError, "the llama checkpoint has no 'hidden_size'", without("llama", "hidden_size")),
    ("size", ConfigError, "width='big' must be", settings("llama", hidden_size="big")),
    (
        "attention-bias",
        WeightsError,
        "no 'model.layers.0.*q_proj.bias'",
        settings("llama", attention_bias=True),
    ),
    ("mlp-bias", WeightsError, "no 'model.layers.0.mlp.gate_proj.bias'", settings("llama", mlp_bias=True)),
    ("unscaled", WeightsError, "setting scale_attn_weights=False", settings("gpt2", scale_attn_weights=False)),
    ("by-layer", WeightsError, "inverse_layer_idx=True", settings("gpt2", scale_attn_by_inverse_layer_idx=True)),
    ("activation", WeightsError, "setting activation_function='tanh'", settings("gpt2", activation_function="tanh")),
    ("activation-llama", WeightsError, "hidden_act='gelu_10'", settings("llama", hidden_act="gelu_10")),
    (
        "rope",
        WeightsError,
        "rope_type=.dynamic.",
        settings("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
    ),
    (
        "rope-older",
        WeightsError,
        "unsupported setting rope_type='dynamic'",
        settings("llama", rope_parameters=None, rope_scaling={"type": "dynamic", "factor": 2.0}),
    ),
    (
        "rope-part",
        WeightsError,
        "partial_rotary_factor=0.5",
        settings("llama", rope_parameters=PART),
    ),
    ("rope-text", WeightsError, "must be a dict", settings("llama", rope_parameters="yarn")),
    ("missing", WeightsError, "has no 'transformer.wte.weight'", without("gpt2", "transformer.wte.weight")),
    ("missing-llama", WeightsError, "has no 'model.norm.weight'", without("llama", "model.norm.weight")),
    ("missing-head", WeightsError, "has no 'lm_head.weight'", without("llama", "lm_head.weight")),
    ("shape", WeightsError, r"embed_tokens.weight is float32 of \(7, 48\)", of_shape("llama", TABLE, 7, 48)),
    (
        "joined",
        WeightsError,
        r"c_attn.weight is .* of \(48, 141\), .* \(48, 144\)",
        of_shape("gpt2", JOINED, 48, 141),
    ),
    ("narrow", WeightsError, r"is float32 of \(48, 2\)", of_shape("gpt2", JOINED, 48, 2)),
    ("rank", WeightsError, r"float32 of \(48, 144, 1\)", of_shape("gpt2", JOINED, 48, 144, 1)),
    ("bias-rank", WeightsError, r"c_attn.bias is float32 of \(\)", of_shape("gpt2", JOINED_BIAS)),
    ("whole-numbers", WeightsError, "norm.weight is int8 of", weight("llama", LAST, torch.zeros(48, dtype=torch.int8))),
    ("not-a-tensor", WeightsError, "expected a dict of settings", weight("llama", LAST, [1.0])),
    ("shallower", WeightsError, "config.json \\(24\\): transformer.h.1.ln_1.weight", settings("gpt2", n_layer=1)),
    ("shallower-llama", WeightsError, "config.json \\(9\\): ", settings("llama", num_hidden_layers=2)),
    ("more", WeightsError, "config.json \\(1\\): score.weight", besides("gpt2", **{"score.weight": LOOSE})),
    ("another-head", WeightsError, "lm_head.weight", besides("gpt2", **{"lm_head.weight": torch.zeros(97, 48)})),
    ("vast", WeightsError, r"needs floating-point \(1000000000000, 48\)", settings("gpt2", vocab_size=10**12)),
    ("vaster", ConfigError, "must be at most 2\\^53", settings("llama", vocab_size=10**30)),
    ("vast-width", ConfigError, "must be at most 2\\^53", settings("llama", hidden_size=6 * 10**30)),
    (
        "activation-list",
        WeightsError,
        "unsupported setting activation_function",
        settings("gpt2", activation_function=["gelu"]),
    ),
    ("tie", ConfigError, "tied_head='x' must be", settings("gpt2", tie_word_embeddings="x")),
    ("dropout", ConfigError, "dropout=1.5 must be", settings("gpt2", resid_pdrop=1.5)),
    (
        "tables",
        WeightsError,
        r"max_position_embeddings=50000000 needs .* GB of rotary tables.*\nfix: set max",
        settings("llama", max_position_embeddings=50_000_000),
    ),
    ("deeper", WeightsError, "has no 'transformer.h.3.ln_1.weight'", settings("gpt2", n_layer=4)),
    ("not-settings", WeightsError, "expected a dict of settings", lambda: gpt_from_huggingface([], {})),  # type: ignore[arg-type]
    ("not-weights", WeightsError, "expected a dict of settings", lambda: gpt_from_huggingface({}, [])),  # type: ignore[arg-type]
    ("no-folder", ArgumentTypeError, "must be a path.* but got None", lambda: read_huggingface(None)),  # type: ignore[arg-type]
    ("number", ArgumentTypeError, "must be a path.* but got 3", lambda: read_huggingface(3)),  # type: ignore[arg-type]
)
def test_unsupported_checkpoints_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made("gpt2").save_pretrained(tmp_path)
    return tmp_path


def refused(folder: Path, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        read_huggingface(folder)
    assert str(folder) in str(caught.value)
    assert "\nfix: download it again" in str(caught.value)


def test_missing_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileError, match=r"has neither model\.safetensors nor"):
        read_huggingface(folder)
    (folder / "config.json").unlink()
    refused(folder, "config.json")


def test_a_context_out_of_proportion(tmp_path: Path) -> None:
    made("llama", max_position_embeddings=50_000_000).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=rf"{tmp_path} \(Hugging Face llama\): max_position_embeddings=50000000"):
        read_huggingface(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no such folder: .*nowhere .nothing is downloaded.\nfix: hf download"):
        read_huggingface(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder(folder: Path) -> None:
    with pytest.raises(FileError, match="no such folder"):
        read_huggingface(folder / "config.json")


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "model.safetensors (is not a safetensors file|has .* bytes of data)")


@pytest.mark.parametrize("text", ["", "{", '{"model_type": '])
def test_a_truncated_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    refused(folder, "config.json is not JSON")


def test_a_config_that_is_not_utf8(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "config.json is not UTF-8")


def test_a_config_that_is_not_an_object(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]", encoding="utf-8")
    refused(folder, "config.json is not valid: expected `object`, got `array`")


@pytest.mark.parametrize("index", [[], {}, {"weight_map": 3}, {"weight_map": {"a": 3}}], ids=str)
def test_a_broken_index(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    refused(folder, "index.json is not valid: ")


def test_an_index_that_names_a_missing_file(folder: Path) -> None:
    index = {"weight_map": {"wte.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    refused(folder, "00002-of-00002")


@pytest.mark.parametrize("absolute", [True, False])
def test_an_index_cannot_name_files_outside_the_folder(folder: Path, absolute: bool) -> None:
    elsewhere = folder.parent / "stolen.safetensors"
    save_file({"wte.weight": torch.zeros(2)}, elsewhere)
    index = {"weight_map": {"wte.weight": str(elsewhere) if absolute else "../stolen.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    refused(folder, "is not a safetensors file beside it")


class Payload:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.path, "code was run")


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin"])
def test_no_pickle_is_opened(kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, trace = tmp_path / "model", tmp_path / "trace"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "architectures": ["BertModel"]}))
    (folder / name).write_bytes(pickle.dumps(Payload(trace)))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    with pytest.raises(WeightsError, match=r"can run arbitrary code.*\nfix: if you trust it"):
        read_huggingface(folder)
    assert main(["xray", str(folder)]) == 2
    assert "can run arbitrary code" in capsys.readouterr().err
    (folder / "model.safetensors").write_bytes(b"")  # beside it, nothing else is opened either
    assert main(["xray", str(folder)]) == 2
    assert not trace.exists()


def test_no_code_in_the_folder_is_run(tmp_path: Path) -> None:
    folder, trace = tmp_path / "model", tmp_path / "trace"
    folder.mkdir()
    settings = {
        "model_type": "evil",
        "architectures": ["Evil"],
        "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Evil"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w')\n")
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    assert main(["xray", str(folder)]) == 2
    assert not trace.exists()
