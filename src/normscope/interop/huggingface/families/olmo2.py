"""OLMo 2: norms on the outputs of the branches, and QK-norm over all heads together."""

from dataclasses import replace

from normscope.interop.huggingface.families import _llama_like as like
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import choice, norm
from normscope.interop.huggingface.weight_table import WeightTable

LAYERS = {
    **like.OUTSIDE, **like.ATTENTION, **like.MLP, **like.QK_NORMS,
    **like.norms("post_attention_layernorm", "post_feedforward_layernorm"),
}  # fmt: skip

FAMILY = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    fixed={"positions": "rotary", "wiring": "branch"},
    settings=(
        *like.SIZES, like.HEAD_DIM, like.ACTIVATION, like.UNTIED, rotary(),
        norm("rms_norm_eps", 1e-5, like.RMS, qk_norm=replace(like.RMS, scope="b s [h e]", affine="(h e)")),
        choice("bias", "attention_bias", {False: False, True: "attention"}, False),
    ),
    weight_table=WeightTable(LAYERS, prefix="model.", ignored=like.IGNORED),
)  # fmt: skip
