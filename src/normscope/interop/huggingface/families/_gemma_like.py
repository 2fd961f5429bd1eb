"""What Gemma 2 and 3 have in common."""

from typing import Any

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.settings import Setting, Settings, choice, same, value
from normscope.interop.huggingface.weight_table import Source
from normscope.models.gpt import GPTConfig

LAYERS: dict[str, str | Source] = {
    **like.OUTSIDE, **like.ATTENTION, **like.MLP,
    **like.adding_one({"final_norm": "model.norm"}),
    **like.adding_one(like.norms(
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
    )),
}  # fmt: skip


def _read_scales(settings: Settings) -> dict[str, Any]:
    width, scalar = value(settings, "hidden_size"), value(settings, "query_pre_attn_scalar", 256)
    numbers = all(isinstance(each, int | float) and each > 0 for each in (width, scalar))
    return {"embedding_scale": width**0.5, "attention_scale": scalar**-0.5} if numbers else {"attention_scale": scalar}


def _write_scales(config: GPTConfig) -> dict[str, Any]:
    head_dim = config.head_sizes[2]
    return {"query_pre_attn_scalar": head_dim if config.attention_scale is None else round(config.attention_scale**-2)}


SETTINGS: tuple[Setting, ...] = (
    *like.SIZES,
    same("head_dim", "head_dim", 256),
    choice("activation", "hidden_activation", like.ACTIVATIONS, "gelu_pytorch_tanh"),
    same("tied_head", "tie_word_embeddings", True),
    choice("bias", "attention_bias", {False: False, True: "attention"}, False),
    Setting(("hidden_size", "query_pre_attn_scalar"), _read_scales, _write_scales),
)
FIXED = {"positions": "rotary", "wiring": "sandwich"}
HARMLESS = frozenset({"hidden_act", "sliding_window_size"})  # hidden_activation and sliding_window are read instead
