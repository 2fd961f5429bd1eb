"""nanochat of November 2025, as transformers has it: its rotation has the opposite sign."""

from collections.abc import Mapping
from typing import Any

from normscope.blocks.norm import NormSpec
from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import Setting, Settings, capped, value
from normscope.interop.huggingface.weight_table import Source, WeightTable
from normscope.models.gpt import GPTConfig

_FLOAT32_EPS = 2.0**-23


def _read_norms(settings: Settings) -> dict[str, Any]:
    eps = value(settings, "rms_norm_eps", 1e-6)
    norm = NormSpec("... [d]", statistic="rms", affine=None, eps=None if eps == _FLOAT32_EPS else eps)
    return {"norm": norm, "qk_norm": norm}


def _write_norms(config: GPTConfig) -> dict[str, Any]:
    eps = config.norm.eps if isinstance(config.norm, NormSpec) else None
    return {"rms_norm_eps": _FLOAT32_EPS if eps is None else eps}


_LAYERS: Mapping[str, str | Source] = {
    **like.OUTSIDE,
    **{own: Source(str(theirs), turns_back=own.endswith((".q", ".k"))) for own, theirs in like.ATTENTION.items()},
    "blocks.{i}.mlp.up": "model.layers.{i}.mlp.fc1",
    "blocks.{i}.mlp.down": "model.layers.{i}.mlp.fc2",
}

FAMILY = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    fixed={"positions": "rotary", "embedding_norm": True, "activation": "relu2", "init": "nanochat"},
    settings=(
        *like.SIZES, like.UNTIED, rotary(), capped("logit_cap", "final_logit_softcapping", 15.0),
        Setting(("rms_norm_eps",), _read_norms, _write_norms),
    ),
    weight_table=WeightTable(_LAYERS, prefix="model.", ignored=like.IGNORED),
    required={"hidden_act": "relu2", "attention_bias": False},
)  # fmt: skip
