"""Configuration of a GPT."""

from dataclasses import dataclass
from typing import Literal, get_args

from normscope.blocks.attention import Attention
from normscope.blocks.block import BlockConfig, check_pattern
from normscope.blocks.rotary import Frequencies, check_rotary
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.blocks.smear import Smear
from normscope.checks import check_config, check_flags, check_positive_int, check_positive_number, short_repr
from normscope.errors import ConfigError
from normscope.models.size import MAX_BLOCKS, check_model_size, count_block_parameters, count_norm_parameters

Positions = Literal["learned", "rotary", "none"]


@dataclass(frozen=True, kw_only=True)
class GPTConfig(BlockConfig):
    """Configuration of a `GPT`.

    Args:
        vocab_size: number of tokens in the vocabulary.
        context: maximum sequence length.
        positions: position embedding: "learned", "rotary" or "none".
        rotary_base: base of the rotary frequencies.
        rotary_dim, rotary_scaling: see `Rotary`.
        rotary_pattern: which layers have rotary embeddings: "R" (rotary) or "N" (none), one letter for each layer and
            repeated from the start.
        local_rotary_base: base in the layers with a window, whose frequencies are not scaled; None to treat all layers
            alike.
        embedding_scale: factor of the token embedding.
        embedding_norm: whether to apply a norm after the embedding.
        smear: whether to add a gated fraction of the previous token's embedding to each token's; see `Smear`.
        embedding_mix: whether each block starts from a learned mix of the stream and the embedding, a x + b x0.
        value_embeddings: whether every second block, the last included, adds a gated embedding of each token to its
            values; see `Attention`.
        backout: whether a learned fraction of the stream after the middle block is subtracted before the final norm.
        tied_head: whether the output head shares the weights of the embedding.
        logit_cap: soft cap of the logits, cap * tanh(logits / cap); None for no cap.

    The other fields are those of `BlockConfig`.
    """

    vocab_size: int
    context: int
    positions: Positions = "rotary"
    rotary_base: float = 10000.0
    rotary_dim: int | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_pattern: str = "R"
    local_rotary_base: float | None = None
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    smear: bool = False
    embedding_mix: bool = False
    value_embeddings: bool = False
    backout: bool = False
    tied_head: bool = False
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_int(vocab_size=self.vocab_size, context=self.context)
        names = ("embedding_norm", "smear", "embedding_mix", "value_embeddings", "backout", "tied_head")
        check_flags(**{name: getattr(self, name) for name in names})
        if not isinstance(self.positions, str) or self.positions not in get_args(Positions):
            raise ConfigError(f"positions={short_repr(self.positions)}: choose one of {', '.join(get_args(Positions))}")
        check_pattern("rotary_pattern", self.rotary_pattern, "RN")
        if self.positions == "rotary":
            check_rotary(self.head_sizes[2], self.context, self.rotary_base, self.rotary_dim)
        if self.rotary_scaling is not None:
            check_config(self.rotary_scaling, RotaryScaling, "rotary_scaling")
        check_positive_number(embedding_scale=self.embedding_scale)
        for name in ("logit_cap", "local_rotary_base"):
            if getattr(self, name) is not None:
                check_positive_number(**{name: getattr(self, name)})
        if not self.causal:
            raise ConfigError("a GPT predicts the next token, so it is causal; for causal=False use an Encoder")

    def parameter_count(self) -> int:
        """Return the number of parameters, without building the model; tied weights count once.

        >>> GPTConfig(vocab_size=10, context=8, width=4, heads=2, norm=None).parameter_count()
        272
        """
        tables = self.vocab_size * (1 if self.tied_head else 2) + (self.context if self.positions == "learned" else 0)
        own_norm = count_norm_parameters(self.norm, (self.width,)) if self.embedding_norm else 0
        smear = min(Smear.gate_features, self.width) + 1 if self.smear else 0
        scales = 2 * self.depth * self.embedding_mix + self.backout
        _, kv_heads, head_dim = self.head_sizes
        gate = min(Attention.gate_features, self.width)
        values = kv_heads * (self.vocab_size * head_dim + gate) * len(self.value_layers)
        return count_block_parameters(self) + tables * self.width + own_norm + smear + scales + values

    @property
    def value_layers(self) -> range:
        """The blocks with value embeddings: every second one, the last included."""
        return range((self.depth - 1) % 2, self.depth, 2) if self.value_embeddings else range(0)

    def buffer_count(self) -> int:
        """Return the number of elements of the rotary tables."""
        return len({*self.rotary_of_layers(min(self.depth, MAX_BLOCKS))} - {None}) * self.context * self.head_sizes[2]

    def rotary_of_layers(self, layers: int | None = None) -> list[Frequencies | None]:
        """The frequencies of the rotary embedding of the first layers (default: all); None for layers without."""
        return [self._rotary_of(layer) for layer in range(self.depth if layers is None else layers)]

    def _rotary_of(self, layer: int) -> Frequencies | None:
        if self.positions != "rotary" or self.rotary_pattern[layer % len(self.rotary_pattern)] == "N":
            return None
        if self.local_rotary_base is not None and self.window_of(layer) is not None:
            return Frequencies(self.local_rotary_base)
        return Frequencies(self.rotary_base, self.rotary_scaling)

    def check_size(self) -> None:
        """Raise an error if the model is too large to be built."""
        check_model_size(self.parameter_count(), depth=self.depth, buffers=self.buffer_count())
