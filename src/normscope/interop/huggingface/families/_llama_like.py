"""What Llama and the families after it have in common."""

from collections.abc import Mapping

from normscope.blocks.norm import NormSpec
from normscope.interop.huggingface.settings import Setting, choice, same
from normscope.interop.huggingface.weight_table import Source

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu-tanh", "relu": "reglu"}

SIZES: tuple[Setting, ...] = (
    same("vocab_size", "vocab_size"),
    same("context", "max_position_embeddings"),
    same("width", "hidden_size"),
    same("depth", "num_hidden_layers"),
    same("heads", "num_attention_heads"),
    same("kv_heads", "num_key_value_heads", None),
    same("hidden", "intermediate_size"),
    same("dropout", "attention_dropout", 0.0),  # applied to all branches here
)
HEAD_DIM = same("head_dim", "head_dim", None)
ACTIVATION = choice("activation", "hidden_act", ACTIVATIONS, "silu")
UNTIED, TIED = (same("tied_head", "tie_word_embeddings", default) for default in (False, True))
RMS = NormSpec("... [d]", statistic="rms", bias=False)

OUTSIDE: Mapping[str, str | Source] = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
}
ATTENTION: Mapping[str, str | Source] = {
    f"blocks.{{i}}.attention.{own}": f"model.layers.{{i}}.self_attn.{theirs}_proj"
    for own, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))
}
QK_NORMS: Mapping[str, str | Source] = {
    f"blocks.{{i}}.attention.{name}": f"model.layers.{{i}}.self_attn.{name}" for name in ("q_norm", "k_norm")
}
MLP: Mapping[str, str | Source] = {
    f"blocks.{{i}}.mlp.{name}": f"model.layers.{{i}}.mlp.{name}_proj" for name in ("gate", "up", "down")
}
BEFORE_BRANCHES = ("input_layernorm", "post_attention_layernorm")
IGNORED = r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"


def norms(*names: str) -> dict[str, str | Source]:
    """The norms of a block, in the order of its wiring."""
    return {f"blocks.{{i}}.norms.{index}": f"model.layers.{{i}}.{name}" for index, name in enumerate(names)}


def adding_one(layers: Mapping[str, str | Source]) -> dict[str, str | Source]:
    """Norms whose gain is stored as its difference from one."""
    return {own: Source(str(theirs), adds_one=True) for own, theirs in layers.items()}
