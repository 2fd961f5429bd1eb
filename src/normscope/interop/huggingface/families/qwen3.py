"""Qwen3: QK-norm with a gain for each feature of a head."""

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.families.llama import LAYERS
from normscope.interop.huggingface.families.qwen2 import WINDOW
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import choice, norm, same
from normscope.interop.huggingface.weight_table import WeightTable

FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fixed={"positions": "rotary"},
    settings=(
        *like.SIZES, same("head_dim", "head_dim", 128), like.ACTIVATION, like.UNTIED, rotary(), WINDOW,
        norm("rms_norm_eps", 1e-6, like.RMS, qk_norm=like.RMS),
        choice("bias", "attention_bias", {False: False, True: "attention"}, False),
    ),
    weight_table=WeightTable({**LAYERS, **like.QK_NORMS}, prefix="model.", ignored=like.IGNORED),
)  # fmt: skip
