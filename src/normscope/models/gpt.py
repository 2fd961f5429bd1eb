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
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.block import Block, final_norm
from normscope.blocks.cache import KVCache, Positions, StartPosition, max_start, position_ids
from normscope.blocks.checks import check_mask, check_same_device, check_tokens, unknown_token
from normscope.blocks.documents import Documents
from normscope.blocks.fused_norms import has_hooks
from normscope.blocks.initialization import Role
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mix import Mix, interpolate
from normscope.blocks.norm.norm_spec import as_norm, build_norm
from normscope.blocks.rotary import rotary_for_layers
from normscope.blocks.smear import Smear
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_positive_int
from normscope.errors import CacheError, ConfigError, ShapeError
from normscope.models.gpt_config import GPTConfig as GPTConfig
from normscope.ops import half_weights
from normscope.ops.cross_entropy import IGNORE_INDEX, cap_logits, cross_entropy
from normscope.ops.linear_cross_entropy import is_worthwhile, linear_cross_entropy
from normscope.render.formatting import format_bytes
from normscope.runtime.memory import available_memory


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
        positions: Tensor | None = None,
        last_only: bool = False,
        capped: bool = True,
    ) -> Tensor:
        """Return the logits of the next token at each position.

        Args:
            tokens: token ids (b, s); with a cache, the new tokens only.
            mask: (b, s), True at real tokens. Padding is excluded from statistics and never attended to.
            cache: KV cache of the earlier tokens; the keys and values of `tokens` are appended.
            positions: (b, s), the position of each token in its document, if rows hold several: 0, 1, 2, 0, 1, ... A
                token attends only to its own document. Without mask and cache.
            last_only: return the logits of the last position only, (b, 1, vocab_size), also if it is padding. Saves
                most of the memory of a long prompt.
            capped: apply the config's logit cap. The loss applies it itself.
        """
        if is_fx_proxy(tokens):
            options = {"positions": positions, "last_only": last_only, "capped": capped}
            return self._fx_call(tokens, mask=mask, cache=cache, **options)
        stream = self._last_stream(tokens, mask, cache, positions)
        return self.to_logits(stream, mask=mask, last_only=last_only, capped=capped)

    def residual_streams(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        run_block: RunBlock | None = None,
    ) -> Iterator[ResidualStream]:
        """Yield the residual stream after the embedding and after each block.

        Args:
            tokens, mask, cache, positions: as in `forward`.
            run_block: called instead of each block.
        """
        documents = None if positions is None else self._documents(positions, tokens, mask, cache)
        x = self.embed(tokens, mask=mask, cache=cache, positions=positions)
        embedding, middle = x if self.config.embedding_mix else None, None
        yield ResidualStream(x, middle)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            if embedding is not None:
                x = self.embedding_mixes[i](x, embedding)
            values = self.value_embeddings[str(i)](tokens).to(x.dtype) if i in self.config.value_layers else None
            if run_block is None:
                layer_cache = None if cache is None else cache.layers[i]
                x = block(x, mask=mask, cache=layer_cache, values=values, documents=documents)
            else:
                x = run_block(block, x, values)
            if self.backout is not None and i == len(self.blocks) // 2:
                middle = x
            yield ResidualStream(x, middle)

    def _last_stream(
        self, tokens: Tensor, mask: Tensor | None, cache: KVCache | None, positions: Tensor | None
    ) -> ResidualStream:
        for stream in self.residual_streams(tokens, mask=mask, cache=cache, positions=positions):
            last = stream
        return last

    def embed(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the residual stream before the first block, (b, s, width); arguments as in `forward`."""
        start = self._check(tokens, mask, cache)
        x = self._embed(tokens, start if positions is None else positions, mask)
        if self.smear is None:
            return x
        before = torch.zeros_like(x[:, :1])
        if cache is not None:
            cache.keep(tokens)
            before = self._last_embedding(cache)
        previous = torch.cat((before, x[:, :-1]), dim=1)
        if mask is not None:
            previous = previous.where(F.pad(mask[:, :-1], (1, 0))[..., None], 0.0)
        if positions is not None:
            previous = previous.masked_fill((positions == 0)[..., None], 0.0)
        smeared: Tensor = self.smear(x, previous)
        return smeared

    def _last_embedding(self, cache: KVCache) -> Tensor:
        """Return the embedding of the last cached token of each row, (b, 1, width); zeros for an empty row."""
        tokens = cache.last_token()
        lengths = torch.tensor(cache.lengths, device=tokens.device)[:, None]
        x = self._embed(tokens, (lengths - 1).clamp(min=0), None, again=True)
        return x.masked_fill((lengths == 0)[..., None], 0.0)

    def _embed(self, tokens: Tensor, start: Positions, mask: Tensor | None, *, again: bool = False) -> Tensor:
        """Return the embedding of each token by itself.

        `again`: these tokens have been embedded before, so hooks are not called: an x-ray would see them twice.
        """

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
            y: Tensor = module.forward(*args, **kwargs) if again else module(*args, **kwargs)
            return y

        x = call(self.embedding, tokens)  # b s d
        stored, x = x.dtype, x.to(self._activation_dtype)
        if self.config.embedding_scale != 1:
            # Rounded to the dtype of the weights, as Gemma's is.
            x = x * torch.full((), self.config.embedding_scale, dtype=stored, device=x.device)
        if self.position is not None:
            places = start if isinstance(start, Tensor) else position_ids(start, tokens.shape[1], tokens.device)
            x = x + call(self.position, places)
        return call(self.embedding_norm, call(self.dropout, x), mask=mask)

    def to_logits(
        self, stream: ResidualStream, *, mask: Tensor | None = None, last_only: bool = False, capped: bool = True
    ) -> Tensor:
        """Apply the final norm and the head to the residual stream; arguments as in `forward`."""
        x = self.head_input(stream, mask)  # of all tokens, because the norm may share statistics along s
        x = x[:, -1:] if last_only else x
        logits: Tensor = self._tied_head(x) if self.head is None else self.head(x)
        return cap_logits(logits, self.config.logit_cap) if capped else logits

    def head_input(self, stream: ResidualStream, mask: Tensor | None = None) -> Tensor:
        """Return what the head reads: the residual stream after the final norm."""
        x = stream.x
        if self.backout is not None and stream.middle is not None:
            x = self.backout(x, stream.middle)
        normed: Tensor = self.final_norm(x, mask=mask)
        return normed

    def _tied_head(self, x: Tensor) -> Tensor:
        weight = self.embedding.weight
        if x.dtype == torch.float32 and half_weights.is_stored_in_half(weight):
            return half_weights.linear(x, weight)
        return F.linear(x, weight)

    @property
    def _activation_dtype(self) -> torch.dtype:
        """The dtype of the residual stream and of the KV cache."""
        weight = self.embedding.weight
        return torch.float32 if half_weights.is_stored_in_half(weight) else weight.dtype

    def loss(
        self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the mean cross-entropy in nats per token; padding and targets of -1 are ignored.

        `positions` are those of `forward`, if rows hold several documents.
        """
        self._check(tokens, mask, None)
        check_tokens(targets, "the loss", rank=2)
        if targets.shape != tokens.shape:
            raise ShapeError(f"targets have shape {tuple(targets.shape)}, but tokens {tuple(tokens.shape)}")
        check_same_device("the tensor of targets", targets.device, tokens.device)
        if mask is not None:
            targets = targets.masked_fill(~mask, IGNORE_INDEX)
        cap, labels = self.config.logit_cap, targets.flatten().long()
        try:
            if self._computes_loss_in_chunks(tokens):
                x = self.head_input(self._last_stream(tokens, mask, None, positions), mask)
                return linear_cross_entropy(x.flatten(0, 1), self._head_weight, labels, cap)
            options = {} if positions is None else {"positions": positions}
            logits = self(tokens, mask=mask, **options, **({} if cap is None else {"capped": False}))
            return cross_entropy(logits.flatten(0, 1), labels, cap)
        except IndexError:
            raise unknown_token(targets, self.config.vocab_size, "the loss", ignored=IGNORE_INDEX) from None

    @property
    def _head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def _computes_loss_in_chunks(self, tokens: Tensor) -> bool:
        """Whether the loss need not have all logits in memory: they are many, and nobody else sees them."""
        is_plain = self.head is None or (type(self.head) is Linear and not has_hooks(self.head))
        is_plain = is_plain and self._head_weight.dtype == self._activation_dtype  # not stored in half precision
        return is_plain and not has_hooks(self) and is_worthwhile(tokens[..., None], self._head_weight)

    def new_cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """Return an empty KV cache for `batch` sequences of up to `capacity` tokens (default: the context)."""
        capacity = self.config.context if capacity is None else capacity
        check_positive_int(batch=batch, capacity=capacity)
        if capacity > self.config.context:
            raise CacheError(f"capacity={capacity} exceeds the model's context of {self.config.context} tokens")
        weight, dtype = self.embedding.weight, self._activation_dtype
        needed = 2 * self.config.depth * batch * self.kv_heads * capacity * self.head_dim * dtype.itemsize
        is_large = weight.device.type == "cpu" and needed > 2**28
        free = available_memory() if is_large else None
        if free is not None and needed > free:
            raise CacheError(
                f"a cache for batch={batch} sequences of capacity={capacity} tokens takes {format_bytes(needed)}, but "
                f"{format_bytes(free)} are free\nfix: use fewer sequences, or a smaller capacity"
            )
        sizes = self.config.depth, batch, self.kv_heads, capacity, self.head_dim
        return KVCache(*sizes, weight.new_empty(0, dtype=dtype), keeps_tokens=self.config.smear)

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

    def _documents(self, positions: Tensor, tokens: Tensor, mask: Tensor | None, cache: KVCache | None) -> Documents:
        """Check that rows may hold several documents, and find them."""
        if mask is not None or cache is not None:
            raise ConfigError("positions of documents cannot be combined with a mask or a cache\nfix: pass only one")
        if across := [*self._norms_across_tokens, *self._stateful_norms]:
            raise ConfigError(
                f"the norm {across[0]!r} shares statistics between tokens, so documents in one row would leak into "
                f"each other\nfix: use a norm over the width, such as rms"
            )
        return Documents.at(positions, tokens.shape)

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
