"""Guess why an exported model differs: which mistake in our model gives the logits of the target?

Each suspect changes a copy of the model as an export that is wrong in this way would. If the copy's logits are those of
the target, the suspect is the cause.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from normscope.blocks.activations import ACTIVATIONS, get_activation
from normscope.blocks.attention import Attention
from normscope.blocks.linear import Linear
from normscope.blocks.mlp import MLP
from normscope.blocks.norm.base import Norm
from normscope.exporting.proof.proof import worst_position
from normscope.exporting.proof.runtime import Logits
from normscope.models.gpt import GPT

Change = Callable[[GPT], None]


def find_cause(model: GPT, got: Logits, tokens: Sequence[int], tolerance: float) -> str | None:
    """Return the mistake that explains the logits of the target; None if no suspect does.

    Args:
        model: the model.
        got: the logits of the target for `tokens`.
        tokens: the input.
        tolerance: largest relative difference.
    """
    for name, change in suspects(model):
        wrong = copy.deepcopy(model)
        with torch.inference_mode():
            change(wrong)
            logits = wrong(torch.tensor([list(tokens)]))[0].float().numpy()
        if worst_position(logits, got)[1] <= tolerance:
            return name
    return None


def suspects(model: GPT) -> Iterator[tuple[str, Change]]:
    """Yield each mistake that is possible with this model, and what does it to a copy."""
    config = model.config
    if config.positions == "rotary":
        yield "the rotation has the opposite sign, or the halves of q and k are swapped", _each(Attention, _negate_angle)
        for word, inverse in (("forgotten", False), ("done twice", True)):
            yield f"the permutation of q and k rows is {word}", _each(Attention, _permute("qk", inverse))
        for part in "qk":
            for inverse in (False, True):
                yield f"the rows of {part} are in the wrong order", _each(Attention, _permute(part, inverse))
            yield f"the halves of {part} are swapped", _each(Attention, _swap_halves(part))
        for base in (10_000.0, 100_000.0, 500_000.0, 1_000_000.0):
            if base != config.rotary_base:
                yield f"the rotary base is {base:g} instead of {config.rotary_base:g}", _each(Attention, _rebase(base))
    if config.positions == "learned":
        for shift in (1, -1):
            yield f"positions are off by {-shift:+d}", _shift_positions(shift)
    for activation in ACTIVATIONS.values():
        if activation.name != config.activation and activation.gated == get_activation(config.activation).gated:
            yield f"the activation is {activation.name} instead of {config.activation}", _activate(activation.name)
    for eps in (1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23):
        yield f"the eps of the norms is {eps:g}", _each(Norm, _set_eps(eps))
    if model.head is not None:
        yield "the head is tied to the embedding, but the model has one of its own", _tie_head
    for first, second in (("q", "k"), ("k", "v"), ("q", "v")):
        yield f"{first} and {second} are swapped", _each(Attention, _swap_layers(first, second))
    yield "gate and up are swapped", _each(MLP, _swap_layers("gate", "up"))
    yield "attention.out is transposed", _each(Attention, _transpose)
    if config.logit_cap is not None:
        yield "the logit cap is missing", lambda wrong: _replace_config(wrong, logit_cap=None)
    if config.qk_norm is not None:
        yield "the norm of q and k is missing", _each(Attention, _no_qk_norm)
    if config.window is not None:
        yield "the sliding window is missing", _each(Attention, lambda layer: setattr(layer, "window", None))


def _each(kind: type[nn.Module], change: Callable[..., None]) -> Change:
    def run(model: GPT) -> None:
        for module in model.modules():
            if isinstance(module, kind):
                change(module)

    return run


def _negate_angle(layer: Attention) -> None:
    assert layer.rotary is not None
    layer.rotary.sin = -layer.rotary.sin


def _rebase(base: float) -> Callable[[Attention], None]:
    def change(layer: Attention) -> None:
        assert layer.rotary is not None
        layer.rotary.base = base
        layer.rotary.cos, layer.rotary.sin = torch.empty_like(layer.rotary.cos), torch.empty_like(layer.rotary.sin)
        layer.rotary.reset_parameters()

    return change


def _permute(parts: str, inverse: bool) -> Callable[[Attention], None]:
    """Reorder rows between halves (a1 a2 b1 b2) and neighbors (a1 b1 a2 b2), as rotary embeddings are implemented."""

    def change(layer: Attention) -> None:
        order = torch.arange(layer.head_dim).view(2, -1).t().flatten()
        _reorder(layer, parts, order.argsort() if inverse else order)

    return change


def _swap_halves(parts: str) -> Callable[[Attention], None]:
    return lambda layer: _reorder(layer, parts, torch.arange(layer.head_dim).roll(layer.head_dim // 2))


def _reorder(layer: Attention, parts: str, order: torch.Tensor) -> None:
    for part in parts:
        for parameter in getattr(layer, part).parameters():
            parameter.copy_(parameter.unflatten(0, (-1, layer.head_dim))[:, order].flatten(0, 1))


def _shift_positions(shift: int) -> Change:
    def change(model: GPT) -> None:
        assert model.position is not None
        model.position.weight.copy_(model.position.weight.roll(shift, 0))

    return change


def _activate(name: str) -> Change:
    return _each(MLP, lambda layer: setattr(layer, "activation", get_activation(name)))


def _set_eps(eps: float) -> Callable[[Norm], None]:
    return lambda norm: setattr(norm, "eps", eps)


def _tie_head(model: GPT) -> None:
    assert model.head is not None
    model.head.weight.copy_(model.embedding.weight)


def _swap_layers(first: str, second: str) -> Callable[[nn.Module], None]:
    def change(layer: nn.Module) -> None:
        one, other = getattr(layer, first), getattr(layer, second)
        if one is not None and other is not None and one.weight.shape == other.weight.shape:
            setattr(layer, first, other)
            setattr(layer, second, one)

    return change


def _transpose(layer: Attention) -> None:
    weight: Linear = layer.out
    if weight.weight.shape[0] == weight.weight.shape[1]:
        weight.weight.copy_(weight.weight.t().clone())


def _no_qk_norm(layer: Attention) -> None:
    layer.q_norm = layer.k_norm = None


def _replace_config(model: GPT, **changes: object) -> None:
    model.config = dataclasses.replace(model.config, **changes)  # type: ignore[arg-type]
