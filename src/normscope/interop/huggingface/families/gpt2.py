"""GPT-2."""

from normscope.blocks.norm import NormSpec
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.settings import choice, norm, same
from normscope.interop.huggingface.weight_table import Source, WeightTable

_ACTIVATIONS = {
    "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh", "gelu": "gelu",
    "relu": "relu", "silu": "silu",
}  # fmt: skip

FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    fixed={"positions": "learned", "bias": True, "init": "gpt2"},
    settings=(
        same("vocab_size", "vocab_size"),
        same("context", "n_positions"),
        same("width", "n_embd"),
        same("depth", "n_layer"),
        same("heads", "n_head"),
        same("hidden", "n_inner", None),
        choice("activation", "activation_function", _ACTIVATIONS, "gelu_new"),
        norm("layer_norm_epsilon", 1e-5, NormSpec("... [d]")),
        same("tied_head", "tie_word_embeddings", True),
        same("dropout", "resid_pdrop", 0.1),  # one rate; GPT-2 has three
    ),
    weight_table=WeightTable(
        {
            "embedding": "transformer.wte",
            "position": "transformer.wpe",
            "final_norm": "transformer.ln_f",
            "head": "lm_head",
            "blocks.{i}.norms.0": "transformer.h.{i}.ln_1",
            "blocks.{i}.norms.1": "transformer.h.{i}.ln_2",
            **{
                f"blocks.{{i}}.attention.{name}": Source("transformer.h.{i}.attn.c_attn", fused="rows")
                for name in "qkv"
            },
            "blocks.{i}.attention.out": "transformer.h.{i}.attn.c_proj",
            "blocks.{i}.mlp.up": "transformer.h.{i}.mlp.c_fc",
            "blocks.{i}.mlp.down": "transformer.h.{i}.mlp.c_proj",
        },
        transposes=True,
        prefix="transformer.",
        ignored=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",  # causal masks
    ),
    required={"scale_attn_weights": True},
    harmless=frozenset(
        {"embd_pdrop", "attn_pdrop", "n_ctx", "summary_type", "summary_use_proj", "summary_activation",
         "summary_proj_to_labels", "summary_first_dropout"}
    ),
)  # fmt: skip
