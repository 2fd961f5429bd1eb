"""Llama 1 to 3, without scaled rotary embeddings."""

from normscope.interop.family import Family, choice, norm, rotary_base, setting
from normscope.models.presets import llama

FAMILY = Family(
    model_type="llama",
    preset=llama,
    config={
        "vocab_size": setting("vocab_size"),
        "context": setting("max_position_embeddings"),
        "width": setting("hidden_size"),
        "depth": setting("num_hidden_layers"),
        "heads": setting("num_attention_heads"),
        "kv_heads": setting("num_key_value_heads", "num_attention_heads"),
        "head_dim": setting("head_dim", default=None),
        "hidden": setting("intermediate_size"),
        "activation": choice("hidden_act", {"silu": "swiglu"}, "silu"),
        "norm": norm("rms_norm_eps", 1e-6, statistic="rms", bias=False),
        "rotary_base": rotary_base,
        "tied_head": setting("tie_word_embeddings", default=False),
        "dropout": setting("attention_dropout", default=0.0),  # applied to all branches here
    },
    unsupported={"attention_bias": True, "mlp_bias": True},
    tensors={"embedding.weight": "model.embed_tokens.weight"},
    norms={
        "final_norm": "model.norm",
        "blocks.{i}.norms.0": "model.layers.{i}.input_layernorm",
        "blocks.{i}.norms.1": "model.layers.{i}.post_attention_layernorm",
    },
    linears={
        "blocks.{i}.attention.q": "model.layers.{i}.self_attn.q_proj",
        "blocks.{i}.attention.k": "model.layers.{i}.self_attn.k_proj",
        "blocks.{i}.attention.v": "model.layers.{i}.self_attn.v_proj",
        "blocks.{i}.attention.out": "model.layers.{i}.self_attn.o_proj",
        "blocks.{i}.mlp.gate": "model.layers.{i}.mlp.gate_proj",
        "blocks.{i}.mlp.up": "model.layers.{i}.mlp.up_proj",
        "blocks.{i}.mlp.down": "model.layers.{i}.mlp.down_proj",
    },
    ignored=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)
