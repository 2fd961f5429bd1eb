"""The transformer block: attention, MLP, norms and a wiring; and the config that says which."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from normscope.blocks.attention import Attention, check_heads
from normscope.blocks.cache import LayerCache
from normscope.blocks.causality import refuse_future_leak
from normscope.blocks.checks import check_dropout, check_positive
from normscope.blocks.initialisation import named_initialisation
from normscope.blocks.mlp import MLP, named_activation
from normscope.blocks.norm.spec import TEXT_NORMS, NormSpec
from normscope.blocks.residual import Branch, named_wiring
from normscope.blocks.rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """What a block is made of, checked when it is made.

    Args:
        width: the size of the residual stream, d.
        heads, kv_heads, head_dim, qk_norm, window, causal: see `Attention`.
        hidden, activation: see `MLP`.
        norm: the norm of every place in the wiring; None for no norms.
        wiring: how the branches join the stream: pre, post, sandwich, parallel, single, none.
        bias: whether the projections have one.
        dropout: the share of each branch that is dropped in training.
        init: how the weights start.
        depth: how many such blocks the model has, which some initialisations depend on.
        allow_future_leak: let a norm of a causal model share statistics along time, to study what that does.
    """

    width: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    activation: str = "relu2"
    norm: NormSpec | None = TEXT_NORMS["rms"]
    wiring: str = "pre"
    qk_norm: NormSpec | None = None
    window: int | None = None
    causal: bool = True
    bias: bool = False
    dropout: float = 0.0
    init: str = "glorot-truncated"
    depth: int = 1
    allow_future_leak: bool = False

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads, self.kv_heads, self.head_dim)
        check_positive(depth=self.depth)
        for name in ("hidden", "window"):
            if getattr(self, name) is not None:
                check_positive(**{name: getattr(self, name)})
        named_activation(self.activation)
        named_wiring(self.wiring)
        named_initialisation(self.init)
        check_dropout(self.dropout)
        allowed = not self.causal or self.allow_future_leak
        refuse_future_leak("norm", self.norm, rank=3, allowed=allowed)
        refuse_future_leak("qk_norm", self.qk_norm, rank=4, allowed=allowed)


class Block(nn.Module):
    r"""A transformer block: attention, where tokens look at each other, and an MLP, where each thinks by itself.

    Formula:
        pre        x = x + A(N1 x);  x = x + M(N2 x)
        post       x = N1(x + A(x));  x = N2(x + M(x))
        and four more: see `normscope.blocks.residual`. Dropout falls on A and M before they join.

    Scope:
        The norms', by default `... [d]`: each token by itself.

    Shapes:
        x: (b, s, width). y: the same, so blocks can be stacked. mask: (b, s), True where a token is real.

    Args:
        config: what the block is made of.
        rotary: the rotary positions of its attention, which all the blocks of a model share.

    Example:
        >>> import torch
        >>> block = Block(BlockConfig(width=32, heads=4, wiring="post", dropout=0.1, causal=False))
        >>> block(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])

    Papers:
        Vaswani et al. 2017, "Attention Is All You Need"; Xiong et al. 2020, "On Layer Normalization in the
        Transformer Architecture".
    """

    def __init__(self, config: BlockConfig, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.wiring = named_wiring(config.wiring)
        self.attention = Attention(
            config.width,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            causal=config.causal,
            rotary=rotary,
            qk_norm=config.qk_norm,
            window=config.window,
            bias=config.bias,
            dropout=config.dropout,
            init=config.init,
            role=self.wiring.role("attention"),
            depth=config.depth,
            allow_future_leak=config.allow_future_leak,
        )
        self.mlp = MLP(
            config.width,
            config.hidden,
            config.activation,
            bias=config.bias,
            dropout=config.dropout,
            init=config.init,
            role=self.wiring.role("mlp"),
            depth=config.depth,
        )
        self.norms = nn.ModuleList(build_norm(config.norm, config.width) for _ in range(self.wiring.norms))

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None) -> Tensor:
        attention = partial(self.attention, mask=mask, cache=cache)
        norms: list[Branch] = [partial(norm, mask=mask) for norm in self.norms]
        return self.wiring.join(x, attention, self.mlp, norms)

    def extra_repr(self) -> str:
        return f"wiring={self.wiring.name!r}"


class NoNorm(nn.Module):
    """The absence of a norm, with a norm's arguments."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


def build_norm(spec: NormSpec | None, width: int) -> nn.Module:
    """The norm of a residual stream of this width."""
    return NoNorm() if spec is None else spec.build((None, None, width))
