"""GPT-2."""

from normscope.interop.family import Family, Slice, choice, norm, setting
from normscope.models.presets import gpt2

_GELU_TANH = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
_ACTIVATIONS = {**_GELU_TANH, "gelu": "gelu", "relu": "relu", "silu": "silu"}

FAMILY = Family(
    model_type="gpt2",
    preset=gpt2,
    config={
        "vocab_size": setting("vocab_size"),
        "context": setting("n_positions"),
        "width": setting("n_embd"),
        "depth": setting("n_layer"),
        "heads": setting("n_head"),
        "hidden": setting("n_inner", default=None),
        "activation": choice("activation_function", _ACTIVATIONS, "gelu_new"),
        "norm": norm("layer_norm_epsilon", 1e-5),
        "tied_head": setting("tie_word_embeddings", default=True),
        "dropout": setting("resid_pdrop", default=0.1),  # one rate; GPT-2 has three
    },
    unsupported={
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "add_cross_attention": True,
    },
    tensors={"embedding.weight": "wte.weight", "position.weight": "wpe.weight"},
    norms={"final_norm": "ln_f", "blocks.{i}.norms.0": "h.{i}.ln_1", "blocks.{i}.norms.1": "h.{i}.ln_2"},
    linears={
        **{f"blocks.{{i}}.attention.{name}": Slice("h.{i}.attn.c_attn", index, 3) for index, name in enumerate("qkv")},
        "blocks.{i}.attention.out": "h.{i}.attn.c_proj",
        "blocks.{i}.mlp.up": "h.{i}.mlp.c_fc",
        "blocks.{i}.mlp.down": "h.{i}.mlp.c_proj",
    },
    parameters=("weight", "bias"),
    is_transposed=True,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(bias|masked_bias)",  # causal masks
)
