"""LoRA: train a product of two thin matrices beside each frozen linear layer."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.checks import check_dropout
from normscope.blocks.linear import Linear
from normscope.blocks.torch_tools import is_fx_proxy
from normscope.checks import check_positive_int, check_positive_number
from normscope.errors import ConfigError, WeightsError

DEFAULT_TARGETS = ("*.attention.*", "*.mlp.*")
"""All linear layers of attention and MLP."""
ADAPTER_PARAMETERS = ("lora_a", "lora_b")


class LoRALinear(Linear):
    r"""A linear layer whose weight is frozen, plus a trainable product of rank r.

    Formula:
        y = x W^T + bias + (alpha / r) dropout(x) A^T B^T

    Scope:
        None: each position separately.

    Shapes:
        x: (..., in_features). y: (..., out_features). lora_a: (r, in_features). lora_b: (out_features, r).

    A is random and B zero, so a new adapter changes nothing. W and bias get no gradient, and the backward pass needs no
    product for them.

    Args:
        base: the layer to adapt; it shares its weight and bias.
        rank: r.
        alpha: numerator of the scale; None for r, a scale of 1.
        dropout: dropout probability of the adapter's input.

    Example:
        >>> import torch
        >>> base = Linear(4, 3)
        >>> layer, x = LoRALinear(base, rank=2), torch.randn(5, 4)
        >>> torch.equal(layer(x), base(x)), [name for name, p in layer.named_parameters() if p.requires_grad]
        (True, ['lora_a', 'lora_b'])

    Paper:
        Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
    """

    def __init__(self, base: Linear, rank: int, alpha: float | None = None, dropout: float = 0.0) -> None:
        check_lora(rank, alpha, dropout)
        # Not Linear.__init__, which would allocate and initialize a weight only to drop it.
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.init, self.role, self.depth = base.init, base.role, base.depth
        self.weight, self.bias = base.weight, base.bias
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.requires_grad_(False)
        self.rank, self.alpha = int(rank), float(rank if alpha is None else alpha)
        self.lora_dropout = nn.Dropout(check_dropout(dropout))
        # In float32 even beside a frozen weight of lower precision: updates of adapters are small.
        dtype, device = torch.promote_types(base.weight.dtype, torch.float32), base.weight.device
        self.lora_a = nn.Parameter(torch.empty(self.rank, self.in_features, dtype=dtype, device=device))
        self.lora_b = nn.Parameter(torch.empty(self.out_features, self.rank, dtype=dtype, device=device))
        self.reset_adapter()
        self.train(base.training)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @torch.no_grad()
    def reset_adapter(self) -> None:
        """Draw A from U(-1/sqrt(d_in), 1/sqrt(d_in)) and set B to zero."""
        if not self.lora_a.is_meta:
            bound = self.in_features**-0.5
            self.lora_a.uniform_(-bound, bound)
            self.lora_b.zero_()

    def forward(self, input: Tensor) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input)
        y = super().forward(input)
        low = F.linear(self.lora_dropout(input), self.lora_a.to(input.dtype))
        # One pass over y for product, scale and sum. y is not saved for the backward pass of the frozen product.
        flat = torch.addmm(
            y.reshape(-1, self.out_features),
            low.reshape(-1, self.rank),
            self.lora_b.to(low.dtype).t(),
            alpha=self.scale,
        )
        return flat.view(y.shape)

    @torch.no_grad()
    def merged(self) -> Linear:
        """Return a plain layer with the weight W + scale B A, computed in float64 and rounded once."""
        product = self.lora_b.double() @ self.lora_a.double() * self.scale
        layer = Linear.__new__(Linear)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features = self.in_features, self.out_features
        layer.init, layer.role, layer.depth = self.init, self.role, self.depth
        layer.weight = nn.Parameter((self.weight.double() + product).to(self.weight.dtype))
        layer.bias = None if self.bias is None else nn.Parameter(self.bias.detach())
        layer.train(self.training)
        return layer

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha:g}"


def check_lora(rank: int, alpha: float | None, dropout: float) -> None:
    check_positive_int(rank=rank)
    if alpha is not None:
        check_positive_number(alpha=alpha)
    check_dropout(dropout)


def add_lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Iterable[str] = DEFAULT_TARGETS,
) -> list[str]:
    """Replace linear layers by `LoRALinear`, freeze all other parameters, and return the names of the layers.

    Args:
        model: the model, changed in place.
        rank, alpha, dropout: see `LoRALinear`.
        targets: patterns of layer names, such as "*.attention.q"; the default is all of attention and MLP.

    >>> from normscope.models.gpt import GPT
    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=1, width=64, heads=4))
    >>> add_lora(model, rank=2, targets=["*.q", "*.v"])
    ['blocks.0.attention.q', 'blocks.0.attention.v']
    """
    check_lora(rank, alpha, dropout)
    patterns, layers = tuple(targets), linear_layers(model)
    matches = {pattern: {name for name in layers if fnmatch.fnmatchcase(name, pattern)} for pattern in patterns}
    for pattern, matched in matches.items():
        if not matched:
            shown = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            raise ConfigError(
                f"the LoRA target {pattern!r} matches no linear layer\nfix: use a pattern such as '*.q'; the layers "
                f"are {shown}"
            )
    chosen = [name for name in layers if any(name in matched for matched in matches.values())]
    if not chosen:
        raise ConfigError("no LoRA targets given\nfix: --lora-targets '*.q,*.v', or leave it out for all layers")
    model.requires_grad_(False)
    for name in chosen:
        replace_module(model, name, LoRALinear(layers[name], rank, alpha, dropout))
    return chosen


def linear_layers(model: nn.Module) -> dict[str, Linear]:
    """The linear layers that can be adapted, by name."""
    return {name: module for name, module in model.named_modules() if type(module) is Linear}


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The adapted layers, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def merge_lora(model: nn.Module) -> None:
    """Replace every `LoRALinear` by a plain layer with the merged weight, in place."""
    for name, layer in lora_layers(model).items():
        replace_module(model, name, layer.merged())


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def is_adapter(parameter_name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return parameter_name.rpartition(".")[2] in ADAPTER_PARAMETERS


def freeze(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Freeze the parameters whose names match a pattern; return their names.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    >>> freeze(model, ["0.*"])
    ['0.weight', '0.bias']
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise ConfigError(
                f"the pattern {pattern!r} matches no trainable parameter\n"
                f"fix: use a pattern such as 'blocks.0.*'; the first parameters are {', '.join(names[:3])}"
            )
        found += matched
    if len(set(found)) == len(names):
        raise ConfigError("every parameter would be frozen\nfix: freeze fewer, so that there is something to train")
    for name in found:
        model.get_parameter(name).requires_grad_(False)
    return [name for name in names if name in found]


def load_trained(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the parameters and buffers that training changes (see `trained_tensors`) into a model."""
    wanted = trained_tensors(model)
    if wanted.keys() != tensors.keys():
        other = sorted(wanted.keys() ^ tensors.keys())
        raise WeightsError(f"the trained weights do not fit the model: {', '.join(other[:4])}")
    model.load_state_dict(dict(tensors), strict=False)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The entries of the state_dict that training changes: everything but frozen parameters."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    state: dict[str, Any] = model.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in frozen}
