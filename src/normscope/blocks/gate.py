"""Gate: numbers from 0 to a maximum that depend on the first few features of each token."""

from torch import Tensor, nn

from normscope.blocks.linear import Linear
from normscope.checks import check_positive_int, check_positive_number

INITIAL_RANGE = 0.02
"""Gates start slightly above half of their maximum: with weights from 0 to this number."""


class Gate(Linear):
    r"""Numbers from 0 to a maximum that depend on the first few features of each token.

    A few features are enough for an on/off decision, and cheap.

    Formula:
        y = maximum sigmoid(x[:features] @ weight.T)

    Scope:
        None: each token separately.

    Shapes:
        x: (..., width). y: (..., gates). weight: (gates, features).

    Args:
        width: width of x.
        gates: number of gates.
        features: how many features of x they read; all if x has fewer.
        maximum: upper limit of y.

    Example:
        >>> import torch
        >>> gate = Gate(width=32, gates=2, features=12, maximum=3.0)
        >>> gate(torch.zeros(5, 32))[0].tolist()
        [1.5, 1.5]

    Paper:
        Hochreiter and Schmidhuber 1997, "Long Short-Term Memory".
    """

    def __init__(self, width: int, gates: int, features: int, maximum: float = 1.0) -> None:
        check_positive_int(width=width, features=features)
        check_positive_number(maximum=maximum)
        super().__init__(min(width, features), gates, bias=False)
        self.width, self.maximum = width, maximum

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, 0.0, INITIAL_RANGE)

    def forward(self, input: Tensor) -> Tensor:
        return self.maximum * super().forward(input[..., : self.in_features]).sigmoid()

    def extra_repr(self) -> str:
        return f"gates={self.out_features}, features={self.in_features}, maximum={self.maximum:g}"
