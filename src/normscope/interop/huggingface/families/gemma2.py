"""Gemma 2: soft caps, and a sliding window in every other layer."""

from normscope.interop.huggingface.families import _gemma_like as gemma
from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import window_by_layer
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import capped, norm
from normscope.interop.huggingface.weight_table import WeightTable

FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    fixed=gemma.FIXED,
    settings=(
        *gemma.SETTINGS, rotary(), norm("rms_norm_eps", 1e-6, like.RMS),
        window_by_layer(lambda settings, depth: ("SL" * depth)[:depth]),
        capped("logit_cap", "final_logit_softcapping", 30.0),
        capped("attention_cap", "attn_logit_softcapping", 50.0),
    ),
    weight_table=WeightTable(gemma.LAYERS, prefix="model.", ignored=like.IGNORED),
    harmless=gemma.HARMLESS,
)  # fmt: skip
