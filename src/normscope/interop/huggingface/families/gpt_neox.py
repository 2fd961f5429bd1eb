"""GPT-NeoX and Pythia: two parallel branches, rotary embeddings of a part of each head."""

from normscope.blocks.norm import NormSpec
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.rotary_settings import rotary
from normscope.interop.huggingface.settings import choice, norm, same
from normscope.interop.huggingface.weight_table import Source, WeightTable

_QKV = Source("gpt_neox.layers.{i}.attention.query_key_value", fused="heads")
LAYERS: dict[str, str | Source] = {
    "embedding": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "blocks.{i}.norms.0": "gpt_neox.layers.{i}.input_layernorm",
    "blocks.{i}.norms.1": "gpt_neox.layers.{i}.post_attention_layernorm",
    **{f"blocks.{{i}}.attention.{name}": _QKV for name in "qkv"},
    "blocks.{i}.attention.out": "gpt_neox.layers.{i}.attention.dense",
    "blocks.{i}.mlp.up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
    "blocks.{i}.mlp.down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
}
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu-tanh", "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "silu": "silu", "relu": "relu",
}  # fmt: skip

FAMILY = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    fixed={},
    settings=(
        same("vocab_size", "vocab_size"),
        same("context", "max_position_embeddings"),
        same("width", "hidden_size"),
        same("depth", "num_hidden_layers"),
        same("heads", "num_attention_heads"),
        same("hidden", "intermediate_size"),
        choice("activation", "hidden_act", _ACTIVATIONS, "gelu"),
        norm("layer_norm_eps", 1e-5, NormSpec("... [d]")),
        choice("wiring", "use_parallel_residual", {True: "parallel-2", False: "pre"}, True),
        choice("bias", "attention_bias", {True: True, False: "mlp"}, True),
        rotary(base_name="rotary_emb_base", part_name="rotary_pct", part=0.25, partial=True),
        same("tied_head", "tie_word_embeddings", False),
        same("dropout", "hidden_dropout", 0.0),
    ),
    weight_table=WeightTable(
        LAYERS, prefix="gpt_neox.", ignored=r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
    ),
    harmless=frozenset({"attention_dropout", "classifier_dropout", "is_decoder"}),
)
