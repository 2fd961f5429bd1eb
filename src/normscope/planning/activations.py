"""Bytes that a forward pass keeps for the backward pass, counted on fake tensors: the model runs without numbers."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from normscope.models.gpt import GPTConfig
from normscope.ops.cross_entropy import cross_entropy
from normscope.ops.kernel_mode import use_kernels
from normscope.ops.linear_cross_entropy import is_worthwhile
from normscope.planning.gpus import MatmulDtype
from normscope.runs.initial_weights import empty_model, set_trainable
from normscope.training.config import FINETUNING, TrainConfig

Kernels = Literal["fused", "torch"]
"""The kernels of a CPU, or PyTorch's own operators, which GPUs use."""


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass keeps for the backward pass, besides the parameters.

    Args:
        copies: Those that do not depend on the windows: with bfloat16 a copy of each weight in that dtype, and the
            gradient of the head if the logits are computed in chunks.
        activations: All others.
    """

    copies: int
    activations: int


def kept_bytes(
    config: GPTConfig, train: TrainConfig, windows: int, dtype: MatmulDtype, kernels: Kernels = "torch"
) -> Kept:
    """Bytes that the forward pass of `windows` full windows keeps.

    >>> from normscope.models.presets import gpt2
    >>> config, train = gpt2(depth=2, width=64, heads=2, context=32, vocab_size=100), TrainConfig(steps=1, batch=1)
    >>> one, two = (kept_bytes(config, train, windows, "bfloat16") for windows in (1, 2))
    >>> two.activations == 2 * one.activations, two.copies == one.copies >= 2 * 2 * 12 * 64**2
    (True, True)
    """
    only = {name: getattr(train, name) for name in FINETUNING}  # other settings change nothing: it is counted once
    plain = TrainConfig(steps=1, batch=1, **only)
    rows, vocabulary = torch.empty(windows, config.context, 1), torch.empty(config.vocab_size, 1)
    in_chunks = is_worthwhile(rows, vocabulary)
    other = 1 if windows > 1 else 2
    total, of_other = (_total(config, plain, count, dtype, kernels, in_chunks) for count in (windows, other))
    copies = max(0, total - windows * (total - of_other) // (windows - other))
    return Kept(copies, total - copies)


@lru_cache(maxsize=256)
def _total(
    config: GPTConfig, train: TrainConfig, windows: int, dtype: MatmulDtype, kernels: Kernels, in_chunks: bool
) -> int:
    """Bytes that a forward pass keeps if the logits are computed in chunks, or if they are not."""
    is_half = dtype == "bfloat16"
    autocast: AbstractContextManager[object] = torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext()
    choice: AbstractContextManager[object] = use_kernels("torch") if kernels == "torch" else nullcontext()
    model = empty_model(config)
    set_trainable(model, train)
    with FakeTensorMode(allow_non_fake_inputs=True), choice:
        model.to_empty(device="cpu").train()
        kept = _KeptBytes([*model.parameters(), *model.buffers()])
        tokens = torch.zeros(windows, config.context, dtype=torch.long)
        with autocast, torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
            *_, stream = model.residual_streams(tokens)
            if in_chunks:  # `linear_cross_entropy` keeps gradients, and looks at values, which fake tensors do not have
                kept.note(torch.empty_like(model.head_input(stream)))
                weight = model.embedding.weight if model.head is None else model.head.weight
                if weight.requires_grad:
                    kept.note(torch.empty_like(weight))
            else:
                logits = model.to_logits(stream, capped=False).flatten(0, 1)
                cross_entropy(logits, tokens.flatten(), config.logit_cap)
                if kernels == "fused" and config.logit_cap is not None:  # which the operator for fake tensors drops
                    kept.note(torch.empty(logits.shape))
    return kept.total


class _KeptBytes:
    """Adds up the sizes of storages, each once and without those that exist anyway."""

    def __init__(self, existing: list[Tensor]) -> None:
        self._existing = {tensor.untyped_storage()._cdata for tensor in existing}
        self._tensors: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets their address

    def note(self, tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage()._cdata
        if address not in self._existing:
            self._tensors[address] = tensor
        return tensor

    @property
    def total(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())
