"""Adapters to peft and back: the real peft computes what we do, and we what it does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normscope.blocks.lora import add_lora, lora_layers
from normscope.errors import NormscopeError
from normscope.interop.checkpoint import build_model
from normscope.interop.huggingface.read import read_huggingface
from normscope.interop.peft import _by_pattern, add_peft, read_adapters, write_peft
from normscope.models.gpt import GPT
from normscope.runs.read_source import read_source

peft: Any = pytest.importorskip("peft")
transformers: Any = pytest.importorskip("transformers")

SIZES = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}
GPT2 = {**SIZES, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
LLAMA = {
    **SIZES,
    "max_position_embeddings": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}),
}
TOKENS = torch.arange(24).reshape(2, 12)


def make(name: str, folder: Path) -> Any:
    torch.manual_seed(0)
    config, kind, sizes = FAMILIES[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    model.save_pretrained(folder)
    return model


def adapted(folder: Path, **settings: Any) -> GPT:
    model = build_model(read_huggingface(folder))
    add_lora(model, **settings)
    for layer in lora_layers(model).values():
        nn.init.normal_(layer.lora_b, std=0.2)
    return model.eval()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("targets", [("*.attention.*", "*.mlp.*"), ("*.attention.k", "blocks.1.mlp.up")])
def test_peft_loads_what_we_write(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    theirs = make(name, tmp_path / "base")
    model = adapted(tmp_path / "base", rank=3, alpha=5.0, targets=targets)
    write_peft(model, tmp_path / "adapter", str(tmp_path / "base"))
    loaded = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    with torch.inference_mode():
        ours = model(TOKENS)
        torch.testing.assert_close(loaded(TOKENS).logits, ours, rtol=1e-4, atol=1e-5)
        plain = build_model(read_huggingface(tmp_path / "base"))
        assert (ours - plain(TOKENS)).abs().max() > 1e-3
        back = build_model(read_huggingface(tmp_path / "base"))
        assert set(add_peft(back, tmp_path / "adapter")) >= set(lora_layers(model))
        torch.testing.assert_close(back(TOKENS), ours, rtol=1e-4, atol=1e-5)
    ranks = {layer.rank for n, layer in lora_layers(back).items() if n in lora_layers(model)}
    assert ranks == {3}  # not those of the fused layers


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_we_load_what_peft_writes_and_merge_it_as_peft_does(name: str, tmp_path: Path) -> None:
    theirs = make(name, tmp_path / "base")
    targets = ["c_attn", "c_proj"] if name == "gpt2" else ["q_proj", "down_proj"]
    options = {"rank_pattern": {targets[0]: 2}, "alpha_pattern": {f".*.{targets[1]}": 3}, "use_rslora": True}
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, fan_in_fan_out=name == "gpt2", **options)
    tuned = peft.get_peft_model(theirs, config).eval()
    for parameter_name, parameter in tuned.named_parameters():
        if "lora_B" in parameter_name:
            nn.init.normal_(parameter, std=0.2)
    tuned.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        wanted = tuned(TOKENS).logits
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": "../base"})
    )
    merged = build_model(read_source(tmp_path / "adapter"))
    with torch.inference_mode():
        torch.testing.assert_close(merged(TOKENS), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"use_dora": True}, "unsupported setting use_dora=True"),
        ({"peft_type": "IA3"}, "unsupported setting peft_type='IA3'"),
        ({"modules_to_save": ["lm_head"]}, "unsupported setting modules_to_save"),
        ({"alora_invocation_tokens": [5, 6]}, "unsupported setting alora_invocation_tokens"),
        ({"use_bdlora": {"nblocks": 2}}, "unsupported setting use_bdlora"),
        ({"r": 5}, "has rank 2, but adapter_config.json says 5"),
        ({"lora_alpha": "x"}, "no valid lora_alpha"),
        ({"init_lora_weights": "pissa_niter_4"}, "unsupported setting init_lora_weights='pissa_niter_4'"),
        ({"init_lora_weights": "olora"}, "unsupported setting init_lora_weights='olora'"),
        ({"alpha_pattern": {"(a+)+b": 1}}, r"unsupported pattern '\(a\+\)\+b'"),
        ({"alpha_pattern": {"(?=q)": 1}}, "unsupported pattern"),
        ({"rank_pattern": {".*" * 9: 1}}, "unsupported pattern"),
        ({"rank_pattern": [1]}, "a pattern that is no object"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    make("llama", tmp_path / "base")
    model = adapted(tmp_path / "base", rank=2)
    write_peft(model, tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(NormscopeError, match=problem):
        read_adapters(tmp_path / "adapter", model.config)


def test_copies_of_base_weights_are_refused_with_the_option_that_leaves_them_out(tmp_path: Path) -> None:
    theirs = make("llama", tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"])
    tuned = peft.get_peft_model(theirs, config)
    with pytest.warns(UserWarning, match="save_embedding_layers"):
        tuned.save_pretrained(tmp_path / "auto")
    tuned.save_pretrained(tmp_path / "without", save_embedding_layers=False)
    base = build_model(read_huggingface(tmp_path / "base"))
    with pytest.raises(NormscopeError, match=r"lm_head\.base_layer\.weight\nfix: .*save_embedding_layers=False"):
        read_adapters(tmp_path / "auto", base.config)
    assert "head" in read_adapters(tmp_path / "without", base.config)


PATTERNS = [
    "q_proj", "q", r"layers\.0\.self_attn\.q_proj", r"[qv]_proj", "(k|q)_proj", "k_proj|q_proj", "v_proj", "lm_head",
    r"^model\.layers\.\d+\.self_attn\.q_proj", r".*\.q_proj$", "layers.1", "model.layers.[0-9]+.self_attn.v_proj",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_peft(pattern: str) -> None:
    """A pattern that is overlooked would give a layer another scale, without a message."""
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.12.self_attn.v_proj", "lm_head"):
        matches = peft.utils.other.get_pattern_key([pattern], name) == pattern
        assert _by_pattern({pattern: 1}, name, 0) == matches, name


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    make("llama", tmp_path / "base")
    make("gpt2", tmp_path / "other")
    write_peft(adapted(tmp_path / "base", rank=2), tmp_path / "adapter")
    other = build_model(read_huggingface(tmp_path / "other"))
    with pytest.raises(NormscopeError, match="unknown layers"):
        add_peft(other, tmp_path / "adapter")
    with pytest.raises(NormscopeError, match="is not a folder here"):
        read_source(tmp_path / "adapter")
