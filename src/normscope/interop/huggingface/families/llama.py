"""Llama 1 to 3."""

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import biases, norm
from normscope.interop.huggingface.weight_table import WeightTable

LAYERS = {**like.OUTSIDE, **like.ATTENTION, **like.MLP, **like.norms(*like.BEFORE_BRANCHES)}

FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fixed={"positions": "rotary"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.UNTIED, norm("rms_norm_eps", 1e-6, like.RMS), rotary(),
        biases(),
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
)  # fmt: skip
