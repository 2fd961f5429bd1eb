"""The transformer block (attention, MLP, norms and residual wiring) and its config."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from normscope.blocks.activations import get_activation
from normscope.blocks.attention import Attention, check_heads
from normscope.blocks.cache import LayerCache
from normscope.blocks.checks import check_dropout, check_mask, check_stream
from normscope.blocks.documents import Documents
from normscope.blocks.initialization import get_initialization
from normscope.blocks.mlp import MLP, default_hidden
from normscope.blocks.norm.norm_spec import NormSpec, as_norm, build_norm
from normscope.blocks.residual import MaskedNorm, get_wiring
from normscope.blocks.rotary import Rotary
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_config, check_flags, check_positive_int, check_positive_number, short_repr
from normscope.errors import ConfigError

Biases = bool | Literal["qkv", "attention", "mlp"]


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Configuration of a transformer block, validated on construction.

    Norms are given as a name, a scope or a `NormSpec`, and stored as a `NormSpec`:

    >>> BlockConfig(width=8, heads=2, norm="layer") == BlockConfig(width=8, heads=2, norm=NormSpec("... [d]"))
    True

    Args:
        width: width of the residual stream, d.
        heads, kv_heads, head_dim, qk_norm, window, causal, attention_scale, attention_cap: see `Attention`.
        window_pattern: which layers have the window: "S" (short, with the window) or "L" (long, without), one letter
            for each layer and repeated from the start. "SSSL" leaves every fourth layer without.
        hidden, activation: see `MLP`.
        norm: norm used throughout the wiring, for instance "rms" or "b s (g [d])"; None for no norms.
        wiring: residual wiring, by name; see `normscope.blocks.residual`.
        bias: which projections have a bias: True for all, False for none, "qkv" for those of queries, keys and values,
            "attention" or "mlp" for those of one branch.
        dropout: dropout probability of each branch.
        init: initialization of the weights, by name.
        depth: number of blocks of the model, on which some initializations depend.
        allow_future_leak: allow norms to share statistics along time in a causal model, for experiments.
    """

    width: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    activation: str = "relu2"
    norm: NormSpec | str | None = "rms"
    wiring: str = "pre"
    qk_norm: NormSpec | str | None = None
    window: int | None = None
    window_pattern: str = "S"
    attention_scale: float | None = None
    attention_cap: float | None = None
    causal: bool = True
    bias: Biases = False
    dropout: float = 0.0
    init: str = "glorot-truncated"
    depth: int = 1
    allow_future_leak: bool = False

    def __post_init__(self) -> None:
        heads, kv_heads, head_dim = self.head_sizes
        check_positive_int(depth=self.depth)
        check_flags(causal=self.causal, allow_future_leak=self.allow_future_leak)
        if not isinstance(self.bias, bool) and self.bias not in ("qkv", "attention", "mlp"):
            raise ConfigError(f"bias={short_repr(self.bias)} must be True, False, qkv, attention or mlp")
        for name in ("hidden", "window"):
            if getattr(self, name) is not None:
                check_positive_int(**{name: getattr(self, name)})
        for name in ("attention_scale", "attention_cap"):
            if getattr(self, name) is not None:
                check_positive_number(**{name: getattr(self, name)})
        check_pattern("window_pattern", self.window_pattern, "SL")
        if self.window is None and self.window_pattern != "S":
            raise ConfigError(f"window_pattern={self.window_pattern!r} requires a window\nfix: set window")
        get_activation(self.activation)
        get_wiring(self.wiring)
        get_initialization(self.init)
        check_dropout(self.dropout)
        self._check_norm("norm", (self.width,))
        self._check_norm("qk_norm", (heads, head_dim))
        self._check_norm("qk_norm", (kv_heads, head_dim))

    @property
    def head_sizes(self) -> tuple[int, int, int]:
        """(heads, kv_heads, head_dim), with defaults filled in."""
        return check_heads(self.width, self.heads, self.kv_heads, self.head_dim)

    @property
    def hidden_size(self) -> int:
        """The hidden size of the MLP, with the default filled in."""
        return default_hidden(self.width, self.activation) if self.hidden is None else self.hidden

    def window_of(self, layer: int) -> int | None:
        """The sliding window of a layer; None for no window."""
        return self.window if self.window_pattern[layer % len(self.window_pattern)] == "S" else None

    def _check_norm(self, name: str, sizes: tuple[int, ...]) -> None:
        """Convert the norm to a `NormSpec` and check that it fits inputs of shape (b, s, *sizes)."""
        norm = as_norm(getattr(self, name))
        object.__setattr__(self, name, norm)
        if norm is not None:
            if self.causal and not self.allow_future_leak:
                norm.check_no_future_leak(name, rank=2 + len(sizes))
            norm.build((None, None, *sizes), device="meta")


def check_pattern(name: str, pattern: str, letters: str) -> None:
    """Check a pattern of one letter for each layer."""
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(letters):
        wanted = " and ".join(letters)
        raise ConfigError(f"{name}={short_repr(pattern)} must consist of the letters {wanted}, one for each layer")


_ATTENTION_FIELDS = ("kv_heads", "head_dim", "qk_norm", "attention_scale", "attention_cap", "causal")


class Block(BaseModule):
    r"""A transformer block: attention and an MLP, joined to the residual stream by a wiring.

    Formula:
        pre        x = x + A(N1 x);  x = x + M(N2 x)
        post       x = N1(x + A(x));  x = N2(x + M(x))
        A: attention, M: MLP, N: norm, with dropout on A and M. See `normscope.blocks.residual` for all wirings.

    Scope:
        That of the norms, by default `... [d]`: each token separately.

    Shapes:
        x: (b, s, width). y: same as x. mask: (b, s), True at real tokens. values: see `Attention`.

    Args:
        config: configuration of the block.
        rotary: rotary position embedding of the attention.
        layer: index of the block in its model, on which `window_pattern` depends.
        value_gate: whether the attention takes value embeddings.

    Example:
        >>> import torch
        >>> block = Block(BlockConfig(width=32, heads=4, wiring="post", dropout=0.1, causal=False))
        >>> block(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])

    Papers:
        Vaswani et al. 2017, "Attention Is All You Need"; Xiong et al. 2020, "On Layer Normalization in the
        Transformer Architecture".
    """

    def __init__(
        self, config: BlockConfig, rotary: Rotary | None = None, layer: int = 0, *, value_gate: bool = False
    ) -> None:
        super().__init__()
        check_config(config, BlockConfig, "a Block")
        self.wiring = get_wiring(config.wiring)
        own = {name: getattr(config, name) for name in _ATTENTION_FIELDS}
        shared = {name: getattr(config, name) for name in ("dropout", "init", "depth")}
        self.attention = Attention(
            config.width,
            config.heads,
            rotary=rotary,
            window=config.window_of(layer),
            value_gate=value_gate,
            bias="qkv" if config.bias == "qkv" else config.bias in (True, "attention"),
            role=self.wiring.role("attention"),
            allow_future_leak=config.allow_future_leak,
            **own,
            **shared,
        )
        mlp_bias = config.bias in (True, "mlp")
        role = self.wiring.role("mlp")
        self.mlp = MLP(config.width, config.hidden, config.activation, bias=mlp_bias, role=role, **shared)
        norm, shape = as_norm(config.norm), (None, None, config.width)
        self.norms = nn.ModuleList(build_norm(norm, shape) for _ in range(self.wiring.norms))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        values: Tensor | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, mask, cache, values, documents)
        check_stream(x, "a block")
        check_mask(mask, x, x.shape[:2])
        attention = partial(self.attention, mask=mask, cache=cache, values=values, documents=documents)
        return self.wiring.join(x, attention, self.mlp, [MaskedNorm(norm, mask) for norm in self.norms])

    def extra_repr(self) -> str:
        return f"wiring={self.wiring.name!r}"


def final_norm(config: BlockConfig) -> nn.Module:
    """Build the norm after the last block; the identity if the wiring ends with a norm."""
    ends_normalized = get_wiring(config.wiring).ends_normalized
    return build_norm(None if ends_normalized else as_norm(config.norm), (None, None, config.width))
