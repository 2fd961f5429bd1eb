"""Phi-3: Llama with fused projections and a sliding window."""

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.layer_settings import window_everywhere
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import norm
from normscope.interop.huggingface.weight_table import Source, WeightTable

_QKV = Source("model.layers.{i}.self_attn.qkv_proj", fused="rows")
_GATE_UP = Source("model.layers.{i}.mlp.gate_up_proj", fused="rows")
LAYERS = {
    **like.OUTSIDE, **like.ATTENTION, **like.MLP, **like.norms(*like.BEFORE_BRANCHES),
    **{f"blocks.{{i}}.attention.{name}": _QKV for name in "qkv"},
    **{f"blocks.{{i}}.mlp.{name}": _GATE_UP for name in ("gate", "up")},
}  # fmt: skip

FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    fixed={"positions": "rotary"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.UNTIED, norm("rms_norm_eps", 1e-5, like.RMS),
        rotary(partial=True, kinds=("default", "longrope")), window_everywhere(None),
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
    harmless=frozenset({"resid_pdrop", "embd_pdrop"}),
)  # fmt: skip
