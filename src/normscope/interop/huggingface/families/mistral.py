"""Mistral: Llama with a sliding window."""

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.families.llama import LAYERS
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import window_everywhere
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import norm
from normscope.interop.huggingface.weight_table import WeightTable

FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    fixed={"positions": "rotary"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.UNTIED, norm("rms_norm_eps", 1e-6, like.RMS), rotary(),
        window_everywhere(4096),
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
)  # fmt: skip
