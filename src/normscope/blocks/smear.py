"""Smear: add a gated fraction of the previous token's embedding to each token."""

import torch
from torch import Tensor, nn

from normscope.blocks.checks import check_stream
from normscope.blocks.gate import Gate
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.errors import ShapeError


class Smear(BaseModule):
    r"""Add a gated fraction of the previous token's embedding to each token: what a bigram says, for almost nothing.

    Formula:
        y_s = x_s + a sigmoid(x_s[:24] @ w) x_{s-1}     a: one learned number, which starts at 0

    Scope:
        Each token and the one before.

    Shapes:
        x: (b, s, width). previous: same as x, the tokens before; zeros where there is none. y: same as x.

    Args:
        width: width of the embeddings.

    Example:
        >>> import torch
        >>> smear = Smear(32)
        >>> x = torch.randn(1, 3, 32)
        >>> torch.equal(smear(x, x.roll(1, dims=1)), x)  # it starts at the identity
        True

    Paper:
        Karpathy 2025, "nanochat: The best ChatGPT that $100 can buy".
    """

    gate_features = 24

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Gate(width, 1, self.gate_features)
        self.scale = nn.Parameter(torch.zeros(1))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.scale)

    def forward(self, x: Tensor, previous: Tensor) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, previous)
        check_stream(x, "smear")
        if x.shape != previous.shape:
            raise ShapeError(f"smear takes two tensors of equal shape, but got {x.shape} and {previous.shape}")
        return torch.addcmul(x, self.scale * self.gate(x), previous)
