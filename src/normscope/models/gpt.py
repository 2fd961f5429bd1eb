"""GPT: a decoder-only transformer language model.

Options of the config, in which the presets differ:
- position embedding: learned, rotary or none
- norm: any scope; optionally after the embedding
- block: residual wiring, activation, grouped-query attention, QK-norm, sliding window
- layers: which have the sliding window, which have rotary embeddings
- embedding: read again by each block, as part of the stream or of the values; mixed with the previous token's
- output: tied or separate head, soft cap on the logits, the stream of the middle block subtracted
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.attention import Attention
from normscope.blocks.block import Block, BlockConfig, check_pattern, final_norm
from normscope.blocks.cache import KVCache, StartPosition, max_start, position_ids
from normscope.blocks.checks import check_mask, check_same_device, check_tokens, unknown_token
from normscope.blocks.initialization import Role
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mix import Mix, interpolate
from normscope.blocks.norm.norm_spec import as_norm, build_norm
from normscope.blocks.rotary import Frequencies, check_rotary, rotary_for_layers
from normscope.blocks.rotary_scaling import RotaryScaling
from normscope.blocks.smear import Smear
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_flags, check_positive_int, check_positive_number, short_repr
from normscope.errors import CacheError, ConfigError, ShapeError
from normscope.models.size import MAX_BLOCKS, check_model_size, count_block_parameters, count_norm_parameters
from normscope.ops.cross_entropy import IGNORE_INDEX, cap_logits, cross_entropy
from normscope.render.formatting import format_bytes
from normscope.runtime.memory import available_memory

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


class ResidualStream(NamedTuple):
    """The residual stream (b, s, width) at some point of a GPT."""

    x: Tensor
    middle: Tensor | None
    """The stream after the middle block, if the model subtracts it before the final norm."""


RunBlock = Callable[[Block, Tensor, Tensor | None], Tensor]
"""(block, x, value embeddings) -> x."""


class GPT(BaseModule):
    r"""A decoder-only transformer language model.

    Formula:
        x = embedding[tokens] (+ position);  x = block(x) for each block;  logits = norm(x) W_head^T
        with embedding_mix: x = block(a x + b x0), x0: the embedding
        with backout: logits = norm(x + b m) W_head^T, m: x after the middle block

    Scope:
        That of the norms, by default `... [d]`. A norm that shares statistics along s would leak the future: an error.

    Shapes:
        tokens: (b, s), integers. logits: (b, s, vocab_size).

    Generate text with `normscope.generate`: `generate_text(model, tokenizer, "Once upon a time")`.

    Example:
        >>> import torch
        >>> from normscope.models.presets import nanochat
        >>> model = GPT(nanochat(vocab_size=65, context=32, depth=2, width=64, heads=4))
        >>> tokens = torch.randint(65, (2, 16))
        >>> model(tokens).shape
        torch.Size([2, 16, 65])
        >>> bool((model.loss(tokens, tokens) - torch.tensor(65.0).log()).abs() < 1e-6)  # a zero head gives ln V
        True

    Papers:
        Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Touvron et al. 2023, "LLaMA: Open
        and Efficient Foundation Language Models"; Gemma Team 2024, "Gemma 2: Improving Open Language Models at a
        Practical Size" (the cap).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        check_config(config, GPTConfig, "a GPT", ", or with a preset such as gpt2()")
        config.check_size()
        self.config = config
        width = config.width
        _, self.kv_heads, self.head_dim = config.head_sizes
        role: Role = "tied" if config.tied_head else "embedding"
        self.embedding = Embedding(config.vocab_size, width, init=config.init, role=role)
        learned = config.positions == "learned"
        self.position = Embedding(config.context, width, init=config.init, role="position") if learned else None
        rotaries = rotary_for_layers(config.rotary_of_layers(), self.head_dim, config.context, config.rotary_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_norm = build_norm(as_norm(config.norm) if config.embedding_norm else None, (None, None, width))
        self.smear = Smear(width) if config.smear else None
        gated = config.value_layers
        self.value_embeddings = nn.ModuleDict(
            {
                str(i): Embedding(config.vocab_size, self.kv_heads * self.head_dim, init=config.init, role="value")
                for i in gated
            }
        )
        mixes = config.depth if config.embedding_mix else 0
        factors = zip(interpolate(1.15, 1.05, mixes), interpolate(0.2, 0.05, mixes), strict=True)
        self.embedding_mixes = nn.ModuleList(Mix(a, b) for a, b in factors)
        self.blocks = nn.ModuleList(
            Block(config, rotary, layer=i, value_gate=i in gated) for i, rotary in enumerate(rotaries)
        )
        self.backout = Mix(None, -0.2) if config.backout else None
        self.final_norm = final_norm(config)
        self.head = None if config.tied_head else Linear(width, config.vocab_size, False, init=config.init, role="head")
        # Norms that prevent caching; determined here, so that scopes are not parsed for every token.
        norms = [(as_norm(config.norm), 3), (as_norm(config.qk_norm), 4)]
        self._stateful_norms = [norm.scope for norm, _ in norms if norm and norm.state]
        self._norms_across_tokens = [
            norm.scope for norm, rank in norms if norm and not norm.state and norm.mixes_along(1, rank)
        ]

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        last_only: bool = False,
        capped: bool = True,
    ) -> Tensor:
        """Return the logits of the next token at each position.

        Args:
            tokens: token ids (b, s); with a cache, the new tokens only.
            mask: (b, s), True at real tokens. Padding is excluded from statistics and never attended to.
            cache: KV cache of the earlier tokens; the keys and values of `tokens` are appended.
            last_only: return the logits of the last position only, (b, 1, vocab_size), also if it is padding. Saves
                most of the memory of a long prompt.
            capped: apply the config's logit cap. The loss applies it itself.
        """
        if is_fx_proxy(tokens):
            return self._fx_call(tokens, mask=mask, cache=cache, last_only=last_only, capped=capped)
        for stream in self.residual_streams(tokens, mask=mask, cache=cache):
            last = stream
        return self.to_logits(*last, mask=mask, last_only=last_only, capped=capped)

    def residual_streams(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        run_block: RunBlock | None = None,
    ) -> Iterator[ResidualStream]:
        """Yield the residual stream after the embedding and after each block.

        Args:
            tokens, mask, cache: as in `forward`.
            run_block: called instead of each block.
        """
        x = self.embed(tokens, mask=mask, cache=cache)
        embedding, middle = x if self.config.embedding_mix else None, None
        yield ResidualStream(x, middle)
        for i, block in enumerate(self.blocks):
            if embedding is not None:
                x = self.embedding_mixes[i](x, embedding)
            values = self.value_embeddings[str(i)](tokens) if i in self.config.value_layers else None
            if run_block is None:
                x = block(x, mask=mask, cache=None if cache is None else cache.layers[i], values=values)
            else:
                x = run_block(block, x, values)
            if self.backout is not None and i == len(self.blocks) // 2:
                middle = x
            yield ResidualStream(x, middle)

    def embed(self, tokens: Tensor, *, mask: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """Return the residual stream before the first block, (b, s, width); arguments as in `forward`."""
        start = self._check(tokens, mask, cache)
        x = self._embed(tokens, start, mask)
        if self.smear is None:
            return x
        before = torch.zeros_like(x[:, :1])
        if cache is not None:
            cache.keep(tokens)
            before = self._last_embedding(cache)
        previous = torch.cat((before, x[:, :-1] if mask is None else x[:, :-1].where(mask[:, :-1, None], 0.0)), dim=1)
        smeared: Tensor = self.smear(x, previous)
        return smeared

    def _last_embedding(self, cache: KVCache) -> Tensor:
        """Return the embedding of the last cached token of each row, (b, 1, width); zeros for an empty row."""
        places = tuple(max(0, length - 1) for length in cache.lengths)
        x = self._embed(cache.last_token(), places, None)
        empty = torch.tensor([length == 0 for length in cache.lengths], device=x.device)
        return x.masked_fill(empty[:, None, None], 0.0)

    def _embed(self, tokens: Tensor, start: StartPosition, mask: Tensor | None) -> Tensor:
        """Return the embedding of each token by itself."""
        x = self.embedding(tokens)  # b s d
        if self.config.embedding_scale != 1:
            # Rounded to the dtype of the weights, as Gemma's is.
            x = x * torch.full((), self.config.embedding_scale, dtype=x.dtype, device=x.device)
        if self.position is not None:
            x = x + self.position(position_ids(start, tokens.shape[1], tokens.device))
        normed: Tensor = self.embedding_norm(self.dropout(x), mask=mask)
        return normed

    def to_logits(
        self,
        x: Tensor,
        middle: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        last_only: bool = False,
        capped: bool = True,
    ) -> Tensor:
        """Apply the final norm and the head to a `ResidualStream`; arguments as in `forward`."""
        if middle is not None and self.backout is not None:
            x = self.backout(x, middle)
        x = self.final_norm(x, mask=mask)  # on all tokens, because it may share statistics along s
        x = x[:, -1:] if last_only else x
        logits: Tensor = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return cap_logits(logits, self.config.logit_cap) if capped else logits

    def loss(self, tokens: Tensor, targets: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy in nats per token; padding and targets of -1 are ignored."""
        self._check(tokens, mask, None)
        check_tokens(targets, "the loss", rank=2)
        if targets.shape != tokens.shape:
            raise ShapeError(f"targets have shape {tuple(targets.shape)}, but tokens {tuple(tokens.shape)}")
        check_same_device("the tensor of targets", targets.device, tokens.device)
        if mask is not None:
            targets = targets.masked_fill(~mask, IGNORE_INDEX)
        cap = self.config.logit_cap
        logits = self(tokens, mask=mask) if cap is None else self(tokens, mask=mask, capped=False)
        try:
            return cross_entropy(logits.flatten(0, 1), targets.flatten().long(), cap)
        except IndexError:
            raise unknown_token(targets, self.config.vocab_size, "the loss", ignored=IGNORE_INDEX) from None

    def new_cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """Return an empty KV cache for `batch` sequences of up to `capacity` tokens (default: the context)."""
        capacity = self.config.context if capacity is None else capacity
        check_positive_int(batch=batch, capacity=capacity)
        if capacity > self.config.context:
            raise CacheError(f"capacity={capacity} exceeds the model's context of {self.config.context} tokens")
        weight = self.embedding.weight
        needed = 2 * self.config.depth * batch * self.kv_heads * capacity * self.head_dim * weight.element_size()
        is_large = weight.device.type == "cpu" and needed > 2**28
        free = available_memory() if is_large else None
        if free is not None and needed > free:
            raise CacheError(
                f"a cache for batch={batch} sequences of capacity={capacity} tokens takes {format_bytes(needed)}, but "
                f"{format_bytes(free)} are free\nfix: use fewer sequences, or a smaller capacity"
            )
        sizes = self.config.depth, batch, self.kv_heads, capacity, self.head_dim
        return KVCache(*sizes, weight.detach(), keeps_tokens=self.config.smear)

    @property
    def cacheable(self) -> bool:
        """Whether the model supports a KV cache in eval mode: no norm shares statistics between tokens."""
        return not self._norms_across_tokens

    def parameter_count(self) -> int:
        """Return the number of parameters; tied weights count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _check(self, tokens: Tensor, mask: Tensor | None, cache: KVCache | None) -> StartPosition:
        """Check the inputs; return the position of the first token."""
        check_tokens(tokens, "a GPT", rank=2)
        check_mask(mask, tokens, tokens.shape)
        start = 0 if cache is None else self._check_cache(cache)
        total = max_start(start) + tokens.shape[1]
        if total > self.config.context:
            raise ShapeError(
                f"{total} tokens exceed the model's context of {self.config.context}\n"
                f"fix: pass the last {self.config.context} tokens, or use a model with a longer context"
            )
        return start

    def _check_cache(self, cache: KVCache) -> StartPosition:
        """Check that the cache fits the model and that the norms can be cached; return the next position."""
        if not isinstance(cache, KVCache) or len(cache.layers) != self.config.depth:
            got = f"one of {len(cache.layers)}" if isinstance(cache, KVCache) else type(cache).__name__
            raise CacheError(f"the model needs a cache of {self.config.depth} layers, but got {got}; use new_cache()")
        if self._stateful_norms and self.training:
            raise CacheError(
                f"the norm {self._stateful_norms[0]!r} updates its statistics on every call in training, so tokens "
                f"that come one by one are normalized differently and cannot be cached\nfix: call eval() first"
            )
        if self._norms_across_tokens:
            raise CacheError(
                f"the norm {self._norms_across_tokens[0]!r} shares statistics between tokens, so a token's activations "
                f"depend on later tokens and cannot be cached\nfix: call the model on all tokens at once, or use a "
                f"norm with running statistics in eval mode"
            )
        return cache.start
