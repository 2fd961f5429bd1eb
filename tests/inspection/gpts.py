"""Small GPTs in float64, one for each option that attention maps and the residual lens have to respect."""

from typing import Any

from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.blocks.residual import WIRINGS
from normscope.models.gpt import GPT, GPTConfig
from tests.support import scramble

VOCABULARY, CONTEXT = 11, 12
FORMS: dict[str, dict[str, Any]] = {
    **{wiring: {"wiring": wiring} for wiring in WIRINGS},
    "grouped": {"kv_heads": 2},
    "one-kv-head": {"kv_heads": 1, "head_dim": 6},
    "qk-norm": {"qk_norm": TEXT_NORMS["rms-plain"]},
    "qk-layer-norm": {"qk_norm": "layer"},
    "window": {"window": 3},
    "window-pattern": {"window": 3, "window_pattern": "SSL", "local_rotary_base": 10.0},
    "attention-scale": {"attention_scale": 0.9, "bias": "qkv"},
    "attention-cap": {"attention_cap": 1.5, "kv_heads": 2},
    "rotary-pattern": {"rotary_pattern": "RNR", "rotary_dim": 2},
    "embedding-scale": {"embedding_scale": 4.0},
    "learned-positions": {"positions": "learned", "norm": "layer", "bias": True},
    "no-positions": {"positions": "none"},
    "tied-head": {"tied_head": True},
    "logit-cap": {"logit_cap": 2.0},
    "embedding-norm": {"embedding_norm": True},
    "dropout": {"dropout": 0.5},
    "all": {"kv_heads": 2, "qk_norm": "rms", "window": 4, "tied_head": True, "logit_cap": 3.0, "wiring": "sandwich"},
}


def made(form: str) -> GPT:
    """With weights large enough that attention is sharp in places."""
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "context": CONTEXT, "width": 16, "heads": 4, "depth": 3}
    model = GPT(GPTConfig(**{**sizes, **FORMS[form]})).double()
    scramble(model, scale=0.5)
    return model
