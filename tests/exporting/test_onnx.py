"""The ONNX graph computes what the model does, for every field of a config: whole texts, batches, and from its cache.

A field that is added to GPTConfig fails here until it has a case below.
"""

import copy
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.comparing.runtimes import RuntimeRefusalError
from normscope.comparing.runtimes.onnx_runtime import OnnxRuntime
from normscope.data.tokenizers import ByteTokenizer
from normscope.errors import ConfigError
from normscope.exporting.export import FORMATS, ExportError, export_source
from normscope.exporting.model_source import ModelSource
from normscope.exporting.onnx import layers, model_graph
from normscope.exporting.onnx.write import check_onnx, write_onnx
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import nanochat_2026_07
from tests.exporting.models import small_source
from tests.support import randn, random_tokens

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TOLERANCE, TIMES_TORCH = 1e-4, 20
"""Largest error of a logit, in standard deviations of the logits, or in errors of torch if the model magnifies them."""
SIZES: dict[str, Any] = {"vocab_size": 23, "context": 16, "width": 16, "heads": 4}
RMS = NormSpec("... [d]", statistic="rms", bias=False)
LLAMA3 = RotaryScaling(kind="llama3", factor=8.0, original_context=8)

# Fields that depend on each other are set together. Each axis has one name.
AXES: dict[str, list[dict[str, Any]]] = {
    "sizes": [{"depth": 1}, {"depth": 2, "width": 24}, {"depth": 3, "vocab_size": 9}, {"depth": 4, "context": 40}],
    "heads": [{}, {"kv_heads": 2}, {"kv_heads": 1, "head_dim": 8}, {"heads": 2, "head_dim": 6}],
    "mlp": [{"activation": name} for name in ACTIVATIONS] + [{"activation": "swiglu", "hidden": 5}],
    "wiring": [{"wiring": name} for name in WIRINGS],
    "bias": [{"bias": value} for value in (False, True, "qkv", "attention", "mlp")],
    "norm": [
        {"norm": norm}
        for norm in (
            *("layer", "rms", "rms-plain", "group", "power", None),
            NormSpec("... [d]", eps=0.1),
            NormSpec("b s (g [d])", statistic="rms", affine="g", sizes={"g": 2}),  # gains shared by features
            NormSpec("b s ([g] d)", affine="(g d)", sizes={"g": 4}),  # statistics of features that are not neighbors
        )
    ]
    + [
        {"norm": norm, "allow_future_leak": True}  # in training only
        for norm in ("batch", NormSpec("[b s] d", state="power", statistic="rms", warmup=3))
    ],
    "qk_norm": [
        {"qk_norm": norm}
        for norm in (
            *(None, "rms", "layer", "rms-plain"),
            dataclasses.replace(RMS, scope="b s [h e]", affine="(h e)"),  # OLMo 2
            NormSpec("b s [h] e", affine="e"),
            NormSpec("[b s] h e", state="power", statistic="rms", affine="(h e)"),
        )
    ],
    "window": [
        {},
        {"window": 1},
        {"window": 3},
        {"window": 3, "window_pattern": "SSSL"},
        {"window": 2, "window_pattern": "LS", "local_rotary_base": 70.0},
    ],
    "scores": [{}, {"attention_scale": 0.7}, {"attention_cap": 2.0}, {"attention_scale": 1.3, "attention_cap": 0.5}],
    "positions": [
        {"positions": "learned"},
        {"positions": "none"},
        {"rotary_base": 100.0},
        {"rotary_dim": 2},
        {"rotary_scaling": LLAMA3, "rotary_pattern": "RRN"},
        {"rotary_scaling": RotaryScaling(kind="linear", factor=4.0), "rotary_pattern": "N"},
    ],
    "embedding": [{}, {"embedding_scale": 3.3}, {"embedding_norm": True}],
    "nanochat": [
        *({}, {"smear": True}, {"embedding_mix": True}, {"value_embeddings": True}, {"backout": True}),
        {"smear": True, "embedding_mix": True, "value_embeddings": True, "backout": True},
    ],
    "head": [{}, {"tied_head": True}, {"logit_cap": 1.5}],
    "training": [{}, {"dropout": 0.5, "init": "gpt2"}],  # no effect
}
ONLY_TRUE = {"causal"}
ROWS, SEED = 16, 1300
"""Configs of the default suite: with this seed, smear meets learned positions, and a scale and a norm of embeddings."""


def config_of(choose: Callable[[str, int], int]) -> GPTConfig:
    """A config with one value of each axis; `choose` takes its name and its number of values."""
    settings = dict(SIZES)
    for name, values in AXES.items():
        settings |= values[choose(name, len(values))]
    return GPTConfig(**settings)


def random_model(config: GPTConfig) -> GPT:
    """A model in which every weight and every running statistic matters."""
    model = GPT(config).eval()
    with torch.no_grad():
        for i, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
            noise = randn(*tensor.shape, seed=i, dtype=torch.float32)
            if name.endswith(("running_square", "running_var")):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.is_floating_point() and not name.endswith((".cos", ".sin")):
                tensor.copy_(0.4 * noise + 1.0 * ("norm" in name and name.endswith("weight")))
    return model


def exported(model: GPT, folder: Path, **options: Any) -> OnnxRuntime:
    source = ModelSource(model, ByteTokenizer(), {"name": "small"})
    check_onnx(source)
    folder.mkdir(exist_ok=True)
    write_onnx(source, "float32", folder, **options)
    return OnnxRuntime(folder)


def check_equal(runtime: OnnxRuntime, model: GPT) -> None:
    """Compare three texts with a batch, its pieces from the cache, and a text of one token."""
    tokens = random_tokens(model.config.vocab_size, 3, 13)
    with torch.inference_mode():
        torch_logits, exact = model(tokens), copy.deepcopy(model).double()(tokens)
    limit = max(TOLERANCE * exact.std(), TIMES_TORCH * (torch_logits - exact).abs().max())
    for lengths in ([13], [1], [5, 4, 1, 1, 2], [1] * 13):
        past, found = runtime.empty_cache(3), []
        for piece in tokens[:, : sum(lengths)].split(lengths, dim=1):
            logits, *past = runtime.run(piece.tolist(), past)
            found.append(torch.tensor(logits))
        difference = torch.cat(found, 1) - exact[:, : sum(lengths)]
        assert difference.abs().max() <= limit, lengths


@pytest.mark.parametrize("row", range(ROWS))
def test_each_value_of_each_field_is_computed(row: int, tmp_path: Path) -> None:
    def choose(name: str, count: int) -> int:
        column = [i % count for i in range(ROWS)]
        random.Random(f"{name} {SEED}").shuffle(column)
        return column[row]

    model = random_model(config_of(choose))
    check_equal(exported(model, tmp_path), model)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(200))
def test_random_models_are_computed(seed: int, tmp_path: Path) -> None:
    model = random_model(config_of(lambda name, count: random.Random(f"{name} {seed}").randrange(count)))
    check_equal(exported(model, tmp_path), model)


def test_every_field_has_a_case() -> None:
    covered = {name for values in AXES.values() for settings in values for name in settings}
    assert covered | SIZES.keys() | ONLY_TRUE == {field.name for field in dataclasses.fields(GPTConfig)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_in_half_precision_are_written_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(GPTConfig(**SIZES, depth=2, embedding_scale=3.3, smear=True, tied_head=True)).to(dtype)
    model.final_norm.float()  # as in files with several dtypes
    rounded = torch.tensor(3.3, dtype=dtype).item()
    same = GPT(dataclasses.replace(model.config, embedding_scale=rounded)).eval()
    same.load_state_dict(model.state_dict())
    check_equal(exported(model, tmp_path / "m"), same)
    source = ModelSource(model, ByteTokenizer(), {"name": "small"})
    proof = export_source(source, "onnx", tmp_path / "small-onnx", "float32", "require").proof
    assert proof is not None
    assert proof.rounding == 0.0


def test_large_weights_are_in_a_file_beside_the_graph(tmp_path: Path) -> None:
    import onnx

    model = random_model(nanochat_2026_07(**{**SIZES, "depth": 2, "width": 64, "context": 40}))
    runtime = exported(model, tmp_path, max_bytes=1000)
    check_equal(runtime, model)
    graph, data = (tmp_path / name for name in ("model.onnx", "model.onnx.data"))
    assert sum(4 * one.numel() for one in model.parameters()) <= data.stat().st_size
    outside = [one for one in onnx.load(graph, load_external_data=False).graph.initializer if one.external_data]
    assert {one.name for one in outside} >= {"embedding.weight", "blocks.1.mlp.up.weight", "rotary.0.cos"}
    onnx.checker.check_model(graph, full_check=True)  # of a path: it reads the file beside it
    data.unlink()
    with pytest.raises(RuntimeRefusalError, match=r"model\.onnx\.data"):
        OnnxRuntime(tmp_path)


def test_the_graph_is_valid_and_its_sizes_vary(tmp_path: Path) -> None:
    import onnx

    exported(random_model(nanochat_2026_07(**SIZES, depth=1)), tmp_path)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    assert [one.name for one in tmp_path.glob("*.data")] == []
    graph = onnx.load(tmp_path / "model.onnx").graph
    shapes = {
        one.name: [size.dim_param or size.dim_value for size in one.type.tensor_type.shape.dim]
        for one in (*graph.input, *graph.output)
    }
    assert shapes == {
        "input_ids": ["batch", "length"],
        "past_key_values.0.key": ["batch", 4, "past", 4],
        "past_key_values.0.value": ["batch", 4, "past", 4],
        "past_input_ids": ["batch", "past"],
        "logits": ["batch", "length", 23],
        "present.0.key": ["batch", 4, "total", 4],
        "present.0.value": ["batch", 4, "total", 4],
        "present_input_ids": ["batch", "total"],
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "instance", "allow_future_leak": True}, r"norm='b \[s\] d': it shares statistics between tokens"),
        ({"qk_norm": "b [s] h e", "allow_future_leak": True}, r"qk_norm='b \[s\] h e': it shares statistics"),
        ({"norm": NormSpec("(a b) s [d]", sizes={"a": 2})}, r"norm='\(a b\) s \[d\]': it gives sizes to the batch"),
        ({"qk_norm": NormSpec("b s h [e]", affine="s", sizes={"s": 4})}, r"qk_norm=.*it gives sizes to the batch"),
    ],
)
def test_norms_that_a_graph_cannot_represent_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FORMATS["onnx"].check(small_source("llama", **settings))


def test_an_activation_without_a_formula_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(layers.GATES, "swiglu")
    with pytest.raises(ConfigError, match="activation='swiglu'"):
        FORMATS["onnx"].check(small_source("llama"))


def test_a_graph_of_another_tool_is_refused(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "model.onnx"
    exported(random_model(GPTConfig(**SIZES)), tmp_path)
    model = onnx.load(path)
    del model.metadata_props[:]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(RuntimeRefusalError, match=r"not an export of normscope .*context"):
        OnnxRuntime(tmp_path)
    path.write_bytes(b"\x08\x08" + bytes(100))
    with pytest.raises(RuntimeRefusalError, match="onnxruntime cannot load it"):
        OnnxRuntime(tmp_path)


def test_a_fault_that_only_the_cache_shows_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous token of the first new one is taken for missing, as if a text began there."""
    source = small_source("nanochat-2026-07", "bytes", depth=1)
    with torch.no_grad():
        source.model.get_parameter("smear.scale").fill_(0.01)  # too little to change the likeliest tokens
    right = model_graph._ModelGraph._smeared

    def forgetful(self: Any, known: Any) -> Any:
        after = known.slice(self.start, self.start + self.length, 1)
        before, self.start = self.start, self.start * 0
        found = right(self, after)
        self.start = before
        return found

    monkeypatch.setattr(model_graph._ModelGraph, "_smeared", forgetful)
    with pytest.raises(ExportError, match=r"logits with a cache differ by .* at position 8, but are equal without one"):
        export_source(source, "onnx", tmp_path / "small-onnx", "float32", "require")
