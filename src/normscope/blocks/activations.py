"""The activations of the MLP, by name.

To add one, add a line to `ACTIVATIONS`. A fused kernel is optional (`normscope.ops.activations`), and so is the fused
decoder (`normscope.generate.decoder_support`): other activations decode in torch. `export --to onnx` refuses those
that are not in `normscope.exporting.onnx.layers`, and `--to html` those that are not in
`normscope.exporting.html_support` and `web/src/model/operations.ts`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.checks import lookup
from normscope.ops.activations import activate


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU, max(x, 0)^2.

    So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling".

    >>> import torch
    >>> relu2(torch.tensor([-2.0, 0.0, 0.5, 3.0]))
    tensor([0.0000, 0.0000, 0.2500, 9.0000])
    """
    return activate("relu2", x)


def _geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return activate("gelu-tanh", gate) * up


@dataclass(frozen=True)
class Activation:
    """An activation function; if gated, also the function (gate, up) -> act(gate) * up."""

    name: str
    function: Callable[[Tensor], Tensor]
    gate: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def gated(self) -> bool:
        return self.gate is not None


ACTIVATIONS: Mapping[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("relu2", relu2),
        Activation("relu", F.relu),
        Activation("gelu", F.gelu),
        Activation("gelu-tanh", partial(activate, "gelu-tanh")),
        Activation("silu", partial(activate, "silu")),
        Activation("swiglu", partial(activate, "silu"), gate=partial(activate, "swiglu")),
        Activation("reglu", F.relu, gate=partial(activate, "reglu")),
        Activation("geglu", F.gelu, gate=partial(activate, "geglu")),
        Activation("geglu-tanh", partial(activate, "gelu-tanh"), gate=_geglu_tanh),
    )
}


def get_activation(name: str) -> Activation:
    return lookup("activation", name, ACTIVATIONS)
