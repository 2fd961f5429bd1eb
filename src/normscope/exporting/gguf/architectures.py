"""The architectures of llama.cpp that our models have: metadata, and the names of their tensors.

A name in GGUF gives the tensors of ours that it consists of: several are stacked along their rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normscope.blocks.norm.norm_spec import as_norm
from normscope.exporting.requirements import Requirements, anything, check_representable, is_norm, is_one_of
from normscope.models.gpt import GPTConfig

FLOAT32_EPS = 2.0**-23


@dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp.

    Args:
        name: its name in GGUF files.
        requirements: the configs that it can represent.
        metadata: (config) -> metadata, by the key without the name of the architecture.
        tensors: GGUF name -> our names. `{i}` is the index of a block; `.weight` and `.bias` are appended.
        interleaved: names of ours whose rows llama.cpp's rotary embedding expects as neighbors, not as halves.
    """

    name: str
    requirements: Requirements
    metadata: Callable[[GPTConfig], dict[str, Any]]
    tensors: Mapping[str, tuple[str, ...]]
    interleaved: tuple[str, ...] = ()

    def named_tensors(self, config: GPTConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each possible GGUF name, with our names; the model may lack some, such as biases."""
        for theirs, ours in self.tensors.items():
            for i in range(config.depth if "{i}" in theirs else 1):
                for part in ("weight", "bias"):
                    yield f"{theirs}.{part}".format(i=i), tuple(f"{name}.{part}".format(i=i) for name in ours)

    def arrange(self, name: str, tensor: Tensor, config: GPTConfig) -> Tensor:
        """Return a tensor of ours, such as "blocks.0.attention.q.weight", in the order of rows of llama.cpp."""
        if not any(name.endswith(f"{one}.{part}") for one in self.interleaved for part in ("weight", "bias")):
            return tensor
        head_dim = config.head_sizes[2]
        neighbors: Tensor = tensor.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2)
        return neighbors.reshape(tensor.shape)


def architecture_of(config: GPTConfig) -> Architecture:
    """Return the architecture that can represent a config; raise a ConfigError that names the fields otherwise."""
    found = check_representable(config, "llama.cpp", [one.requirements for one in ARCHITECTURES])
    return next(one for one in ARCHITECTURES if one.requirements is found)


def _sizes(config: GPTConfig) -> dict[str, Any]:
    heads, kv_heads, head_dim = config.head_sizes
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden_size,
        "block_count": config.depth,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }


def _eps(config: GPTConfig) -> float:
    norm = as_norm(config.norm)
    assert norm is not None
    return FLOAT32_EPS if norm.eps is None else norm.eps


def _gpt2_metadata(config: GPTConfig) -> dict[str, Any]:
    return {**_sizes(config), "attention.layer_norm_epsilon": _eps(config)}


def _rotary_metadata(config: GPTConfig) -> dict[str, Any]:
    return {
        **_sizes(config),
        "attention.layer_norm_rms_epsilon": _eps(config),
        "rope.dimension_count": config.head_sizes[2],
        "rope.freq_base": config.rotary_base,
    }


_GPT2 = Architecture(
    name="gpt2",
    requirements=Requirements(
        "gpt2",
        {
            "positions": is_one_of("learned"),
            "rotary_base": anything,
            "norm": is_norm("standardize", bias=True),
            # llama.cpp's GELU is a table of the tanh approximation in half precision, for either.
            "activation": is_one_of("gelu", "gelu-tanh"),
            "bias": is_one_of(True),
            "tied_head": anything,
            "wiring": is_one_of("pre"),
        },
    ),
    metadata=_gpt2_metadata,
    tensors={
        "token_embd": ("embedding",),
        "position_embd": ("position",),
        "blk.{i}.attn_norm": ("blocks.{i}.norms.0",),
        "blk.{i}.attn_qkv": ("blocks.{i}.attention.q", "blocks.{i}.attention.k", "blocks.{i}.attention.v"),
        "blk.{i}.attn_output": ("blocks.{i}.attention.out",),
        "blk.{i}.ffn_norm": ("blocks.{i}.norms.1",),
        "blk.{i}.ffn_up": ("blocks.{i}.mlp.up",),
        "blk.{i}.ffn_down": ("blocks.{i}.mlp.down",),
        "output_norm": ("final_norm",),
        "output": ("head",),
    },
)

_LLAMA = Architecture(
    name="llama",
    requirements=Requirements(
        "llama",
        {
            "positions": is_one_of("rotary"),
            "rotary_base": anything,
            "norm": is_norm("rms", bias=False),
            "activation": is_one_of("swiglu"),
            "kv_heads": anything,
            "head_dim": anything,
            "bias": is_one_of(False),
            "tied_head": anything,
            "wiring": is_one_of("pre"),
        },
    ),
    metadata=_rotary_metadata,
    tensors={
        "token_embd": ("embedding",),
        "blk.{i}.attn_norm": ("blocks.{i}.norms.0",),
        "blk.{i}.attn_q": ("blocks.{i}.attention.q",),
        "blk.{i}.attn_k": ("blocks.{i}.attention.k",),
        "blk.{i}.attn_v": ("blocks.{i}.attention.v",),
        "blk.{i}.attn_output": ("blocks.{i}.attention.out",),
        "blk.{i}.ffn_norm": ("blocks.{i}.norms.1",),
        "blk.{i}.ffn_gate": ("blocks.{i}.mlp.gate",),
        "blk.{i}.ffn_up": ("blocks.{i}.mlp.up",),
        "blk.{i}.ffn_down": ("blocks.{i}.mlp.down",),
        "output_norm": ("final_norm",),
        "output": ("head",),
    },
    interleaved=("attention.q", "attention.k"),
)

ARCHITECTURES = (_GPT2, _LLAMA)
