"""The MLP: two linear layers with an activation between them, or three with a gate."""

from contextlib import nullcontext

from torch import Tensor, nn

from normscope.blocks.activations import get_activation
from normscope.blocks.checks import check_dropout
from normscope.blocks.initialization import Initialization, Role
from normscope.blocks.linear import Linear
from normscope.blocks.lora import LoRALinear
from normscope.blocks.recompute import recompute
from normscope.blocks.torch_tools import BaseModule
from normscope.checks import check_flags, check_positive_int


def default_hidden(width: int, activation: str) -> int:
    """Return the default hidden size: 4 x width, or 8/3 x width for a gated MLP, which has a third matrix.

    >>> default_hidden(768, "relu2"), default_hidden(768, "swiglu")
    (3072, 2048)
    """
    check_positive_int(width=width)
    if not get_activation(activation).gated:
        return 4 * width
    return -(-8 * width // 3 // 8) * 8  # rounded up to a multiple of 8


class MLP(BaseModule):
    r"""The feed-forward layer of a transformer block.

    Formula:
        y = act(x W_up) W_down                      ReLU^2: act(h) = max(h, 0)^2
        y = (act(x W_gate) * (x W_up)) W_down       gated: SwiGLU, ReGLU, GEGLU

    Scope:
        None: each position separately.

    Shapes:
        x: (..., width). y: same as x. Hidden activations: (..., hidden).

    Args:
        width: width of the residual stream.
        hidden: hidden size; None for 4 x width, or 8/3 x width if gated.
        activation: a name in `normscope.blocks.activations.ACTIVATIONS`; those with a gate give a gated MLP.
        bias: whether the projections have a bias.
        dropout: dropout probability of the output.
        init: initialization of the weights.
        role: initialization role of the output projection; see `normscope.blocks.initialization`.
        depth: number of blocks of the model, on which some initializations depend.

    Example:
        >>> import torch
        >>> mlp = MLP(4)
        >>> mlp(torch.randn(1, 2, 4)).shape, mlp.up.out_features
        (torch.Size([1, 2, 4]), 16)

    Papers:
        So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling" (ReLU^2); Shazeer 2020,
        "GLU Variants Improve Transformer".
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        activation: str = "relu2",
        *,
        bias: bool = False,
        dropout: float = 0.0,
        init: str | Initialization = "glorot-truncated",
        role: Role = "residual",
        depth: int = 1,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        hidden = default_hidden(width, activation) if hidden is None else hidden
        check_positive_int(width=width, hidden=hidden)
        check_flags(bias=bias)
        self.up = Linear(width, hidden, bias, init=init, role="hidden")
        self.gate = Linear(width, hidden, bias, init=init, role="hidden") if self.activation.gated else None
        self.down = Linear(hidden, width, bias, init=init, role=role, depth=depth)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # ... d -> ... hidden
        gate = None if self.gate is None else self.gate(x)
        hidden = self._activate(up, gate)
        # A frozen layer needs its input for its adapter only; the largest activation is cheap to compute again.
        is_adapted = isinstance(self.down, LoRALinear)
        with recompute(hidden, self._activate, up, gate) if is_adapted else nullcontext():
            out: Tensor = self.dropout(self.down(hidden))  # ... hidden -> ... d
        return out

    def _activate(self, up: Tensor, gate: Tensor | None) -> Tensor:
        act = self.activation
        return act.function(up) if gate is None or act.gate is None else act.gate(gate, up)

    def extra_repr(self) -> str:
        return f"activation={self.activation.name}"
