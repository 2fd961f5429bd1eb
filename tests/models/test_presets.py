"""The presets match their docstrings, and have the parameter counts of the originals."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mlp import MLP
from normscope.blocks.norm.base import Norm
from normscope.blocks.norm.norm_spec import NoNorm, NormSpec
from normscope.blocks.rotary import Rotary
from normscope.errors import ConfigError, FutureLeakError, NormscopeError
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import PRESETS, gpt2, llama, nanochat, preset
from normscope.ops.norm.statistic import RMS, STANDARDIZE
from tests.models.tiny import CONTEXT, VOCABULARY, every_preset, tiny
from tests.support import every_refusal, random_tokens, scramble


def parameters(config: GPTConfig) -> int:
    with torch.device("meta"):
        return GPT(config).parameter_count()


def nanogpt_count(v: int, t: int, d: int, layers: int, bias: bool) -> int:
    """nanoGPT's modules: wte (tied to the head), wpe, then ln, attention, ln, mlp for each layer, and ln."""
    norm = d + bias * d
    attention = d * 3 * d + bias * 3 * d + d * d + bias * d
    mlp = d * 4 * d + bias * 4 * d + 4 * d * d + bias * d
    return v * d + t * d + layers * (norm + attention + norm + mlp) + norm


def test_gpt2_has_124_million_parameters() -> None:
    assert parameters(gpt2()) == nanogpt_count(50304, 1024, 768, 12, bias=True) == 124_475_904
    assert parameters(gpt2(vocab_size=50257)) == 124_439_808  # the original's vocabulary, without padding rows
    assert parameters(gpt2(bias=False)) == nanogpt_count(50304, 1024, 768, 12, bias=False)
    assert parameters(gpt2(depth=48, width=1600, heads=25, vocab_size=50257)) == 1_557_611_200  # GPT-2 XL


def test_nanochat_has_only_matrices() -> None:
    assert parameters(nanochat()) == 2 * 65536 * 768 + 12 * 12 * 768**2


def test_llama_counts() -> None:
    d, hidden, kv = 768, 2048, 4 * 64
    layer = d * d + 2 * d * kv + d * d + 3 * d * hidden + 2 * d
    assert parameters(llama()) == 2 * 32000 * d + 12 * layer + d


def test_gpt2_features() -> None:
    model = GPT(tiny("gpt2"))
    assert model.position is not None
    assert not [m for m in model.modules() if isinstance(m, Rotary)]
    assert model.head is None
    assert {m.activation.name for m in model.modules() if isinstance(m, MLP)} == {"gelu"}
    norms = [m for m in model.modules() if isinstance(m, Norm)]
    assert len(norms) == 2 * 2 + 1
    assert all(norm.statistic == STANDARDIZE and norm.bias is not None for norm in norms)
    assert all(layer.bias is not None for layer in model.modules() if isinstance(layer, Linear))


def test_gpt2s_tied_head_is_the_embedding() -> None:
    model, tokens = GPT(tiny("gpt2")), random_tokens(VOCABULARY, 2, 5)
    scramble(model)
    hidden: list[torch.Tensor] = []
    model.final_norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    logits = model(tokens)
    torch.testing.assert_close(logits, hidden[0] @ model.embedding.weight.T)
    assert sum("weight" in name and tuple(p.shape) == (VOCABULARY, 16) for name, p in model.named_parameters()) == 1


@pytest.mark.parametrize("norms", [{}, {"norm": "layer"}, {"norm": "group", "qk_norm": "layer"}], ids=str)
def test_bias_false_removes_every_bias(norms: dict[str, str]) -> None:
    names = [name for name, _ in GPT(tiny("gpt2", bias=False, **norms)).named_parameters()]
    assert [name for name in names if "norm" in name]
    assert not [name for name in names if "bias" in name]
    assert [name for name, _ in GPT(tiny("gpt2")).named_parameters() if "norm" in name and "bias" in name]


def test_a_norm_spec_keeps_its_bias() -> None:
    assert gpt2(bias=False, norm=NormSpec("... [d]")).norm == NormSpec("... [d]", bias=True)
    assert gpt2(bias=False, norm=None).norm is None


def test_nanochat_features() -> None:
    model = GPT(tiny("nanochat"))
    assert model.position is None
    assert sum(isinstance(m, Rotary) for m in model.modules()) == model.config.depth
    assert isinstance(model.embedding_norm, Norm)
    norms = [m for m in model.modules() if isinstance(m, Norm)]
    assert len(norms) == 1 + 2 * (2 + 2) + 1  # the embedding's, two a block and q's and k's, the last
    assert all(norm.statistic == RMS and not list(norm.parameters()) for norm in norms)
    assert model.config.activation == "relu2"
    assert not [name for name, _ in model.named_parameters() if "bias" in name or "norm" in name]
    assert model.head is not None
    assert not model.head.weight.any()
    assert all(not block.get_submodule("attention.out").get_parameter("weight").any() for block in model.blocks)


def test_nanochats_initial_loss_is_log_vocab_size() -> None:
    model, tokens = GPT(tiny("nanochat")), random_tokens(VOCABULARY, 3, CONTEXT)
    assert not model(tokens).any()
    assert model.loss(tokens, tokens.roll(-1, 1)).item() == pytest.approx(math.log(VOCABULARY), rel=1e-7)


@every_preset
@pytest.mark.parametrize(("width", "vocabulary"), [(16, VOCABULARY), (256, 500)])
@pytest.mark.parametrize("init", [None, "nanochat"])
def test_a_tied_models_initial_loss_is_near_log_vocab_size(
    name: str, width: int, vocabulary: int, init: str | None
) -> None:
    chosen = {} if init is None else {"init": init}
    config = tiny(name, tied_head=True, width=width, vocab_size=vocabulary, context=32, **chosen)
    tokens = random_tokens(vocabulary, 4, 33)
    loss = GPT(config).loss(tokens[:, :-1], tokens[:, 1:]).item()
    assert abs(loss - math.log(vocabulary)) < 1.0


@pytest.mark.parametrize("cap", [15.0, 0.5])
def test_the_logit_cap_bounds_the_logits(cap: float) -> None:
    tokens = random_tokens(VOCABULARY, 3, CONTEXT)
    capped, free = GPT(tiny("nanochat", logit_cap=cap)), GPT(tiny("nanochat", logit_cap=None))
    scramble(capped, scale=3.0)
    scramble(free, scale=3.0)
    logits = free(tokens)
    assert logits.abs().max() > 20
    assert capped(tokens).abs().max() <= cap
    torch.testing.assert_close(capped(tokens), cap * torch.tanh(logits / cap))


def test_llama_features() -> None:
    model = GPT(tiny("llama", heads=8, width=32))
    assert model.position is None
    assert model.kv_heads == 2
    assert model.head is not None
    assert model.config.activation == "swiglu"
    norms = [m for m in model.modules() if isinstance(m, Norm)]
    assert all(norm.statistic == RMS and norm.weight is not None and norm.bias is None for norm in norms)
    assert isinstance(model.embedding_norm, NoNorm)


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (2, 1), (4, 1), (6, 2), (8, 2), (12, 4), (32, 8), (7, 1)])
def test_llamas_kv_heads_divide_its_heads(heads: int, shared: int) -> None:
    assert llama(heads=heads, width=heads * 4).kv_heads == shared


def test_initial_weights_match_the_preset() -> None:
    """By role, in a whole model: within five standard errors, of ten thousand draws or more."""
    model = GPT(gpt2(vocab_size=256, context=128, width=128, depth=8, heads=4))
    for name, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            residual = name.endswith(("attention.out", "mlp.down"))
            std = 0.02 / 4 if residual else 0.02
            tolerance = 5 / math.sqrt(2 * module.weight.numel())
            assert module.weight.std().item() == pytest.approx(std, rel=tolerance), name
            assert isinstance(module, Embedding) or not module.bias.any(), name


@every_preset
def test_every_field_can_be_overridden(name: str) -> None:
    values = {**{f.name: getattr(llama(), f.name) for f in dataclasses.fields(GPTConfig)}, "width": 48, "vocab_size": 5}
    config = preset(name, **values)
    assert {f.name: getattr(config, f.name) for f in dataclasses.fields(config)} == values


@every_preset
def test_norms_can_be_given_by_name(name: str) -> None:
    assert preset(name, norm="none").norm is None
    norm = preset(name, norm="group", qk_norm="rms").norm
    assert isinstance(norm, NormSpec)
    assert norm.scope == "b s (g [d])"
    with pytest.raises(FutureLeakError, match="allow_future_leak=True"):
        preset(name, norm="batch")
    assert preset(name, norm="batch", allow_future_leak=True).norm is not None


def test_configs_are_hashable_values() -> None:
    assert gpt2(depth=4) == gpt2(depth=4)
    assert gpt2() != gpt2(depth=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpt2().depth = 3  # type: ignore[misc]


def setting(**overrides: Any) -> Callable[[], GPTConfig]:
    return lambda: tiny("nanochat", **overrides)


@every_refusal(
    ("misspelt", ConfigError, "no setting 'dept'; did you mean 'depth'", lambda: gpt2(dept=3)),
    ("unknown", ConfigError, "no setting 'zzz'; the settings are: ", lambda: gpt2(zzz=3)),
    (
        "preset",
        ConfigError,
        "unknown preset 'gpt3'; choose one of gpt2, nanochat, nanochat-2026-07, llama",
        lambda: preset("gpt3"),
    ),
    ("preset-list", ConfigError, "unknown preset", lambda: preset([])),  # type: ignore[arg-type]
    ("norm", ConfigError, "no norm 'batchnorm'; give one of layer", setting(norm="batchnorm")),
    ("norm-number", ConfigError, "there is no norm 3; give one of layer", setting(norm=3)),
    ("tied", ConfigError, "tied_head='x' must be True or False", setting(tied_head="x")),
    ("embedding-norm", ConfigError, "embedding_norm=1 must be True or False", setting(embedding_norm=1)),
    ("bias", ConfigError, "bias='no' must be True, False, qkv, attention or mlp", lambda: gpt2(bias="no")),
    ("heads", ConfigError, "heads='four' must be", lambda: llama(heads="four")),
    ("vocabulary", ConfigError, "vocab_size=0 must be", setting(vocab_size=0)),
    ("context", ConfigError, "context=0 must be", setting(context=0)),
    ("depth", ConfigError, "depth=0 must be", setting(depth=0)),
    ("positions", ConfigError, "positions='alibi': choose one of learned, rotary, none", setting(positions="alibi")),
    ("positions-list", ConfigError, "positions=", setting(positions=["rotary"])),
    ("cap", ConfigError, "logit_cap=0 must be", setting(logit_cap=0)),
    ("cap-inf", ConfigError, "logit_cap=inf must be", setting(logit_cap=math.inf)),
    ("cap-text", ConfigError, "logit_cap='15' must be", setting(logit_cap="15")),
    ("base", ConfigError, "rotary_base=0 must be", setting(rotary_base=0)),
    ("odd-head", ConfigError, "head_dim=3 must be even", setting(width=12)),
    ("both-ways", ConfigError, "it is causal; for causal=False use an Encoder", setting(causal=False)),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_modules_match_the_preset() -> None:
    assert set(PRESETS) == {"gpt2", "nanochat", "nanochat-2026-07", "llama"}
    assert all(isinstance(GPT(tiny(name)), nn.Module) for name in PRESETS)
