"""Which models the fused decoder supports: unmodified GPTs of the presets' architectures, without hooks.

The kernel takes the structure of all blocks from the first one, all sizes from the config, and raw addresses. So
everything it relies on is checked here, against a new GPT of the same config; a model that fails a check runs in torch.
"""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from normscope.blocks.attention import Attention
from normscope.blocks.block import Block
from normscope.blocks.checks import autocasts
from normscope.blocks.fused_norms import has_hooks, is_stateless_norm
from normscope.blocks.linear import Embedding
from normscope.blocks.mlp import MLP
from normscope.blocks.norm import Norm
from normscope.blocks.norm.norm_spec import NoNorm
from normscope.blocks.rotary import Rotary
from normscope.errors import ShapeError
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.kernel_mode import select_backend
from normscope.ops.norm.statistic import Statistic

KERNEL_ACTIVATIONS = {
    "relu2": 0, "relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4, "reglu": 1, "geglu": 2,
    "geglu-tanh": 3, "swiglu": 4,
}  # fmt: skip
"""The number that `normscope.ops.fused.decode_step` has for each activation, or for the activation of its gate."""

_UNSUPPORTED = ("smear", "embedding_mix", "value_embeddings", "backout")


def can_decode(model: nn.Module) -> bool:
    """Whether the fused decoder can run the model with the same result.

    It supports pre-norm blocks with norms over the width and over each head, in float32 on the CPU, without hooks.
    """
    return (
        type(model) is GPT
        and model.config.wiring == "pre"
        and model.config.activation in KERNEL_ACTIVATIONS
        and not any(getattr(model.config, name) for name in _UNSUPPORTED)
        and model.config.attention_cap is None
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in parameters_and_buffers(model))
        and select_backend(*parameters_and_buffers(model)) == "fused"
        and not autocasts(torch.device("cpu"))
        and not has_hooks(*model.modules())
        and _structure(model) == _unmodified_structure(model.config)
        and _norms_are_supported(model)
    )


def parameters_and_buffers(model: nn.Module) -> list[Tensor]:
    """All tensors of a model, including rotary tables, which are not in its state_dict."""
    return [*model.parameters(), *model.buffers()]


def _structure(model: GPT) -> dict[str, tuple[object, ...]]:
    """Return the class, settings and shapes of every module but the norms, by name."""
    return {
        name: (type(module), _settings(module), _shapes(module))
        for name, module in model.named_modules(remove_duplicate=False)
        if not isinstance(module, Norm | NoNorm)
    }


@lru_cache(maxsize=16)
def _unmodified_structure(config: GPTConfig) -> dict[str, tuple[object, ...]]:
    if config.window_pattern != "S" or config.rotary_pattern != "R":
        with torch.device("meta"):
            return _structure(GPT(config))
    with torch.device("meta"):  # one block is enough, and faster: all are alike
        found = _structure(GPT(replace(config, depth=1)))
    block = {name.removeprefix("blocks.0"): entry for name, entry in found.items() if name.startswith("blocks.0")}
    return found | {f"blocks.{i}{name}": entry for i in range(config.depth) for name, entry in block.items()}


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    own = {**module._parameters, **module._buffers}
    return {name: tensor.shape for name, tensor in own.items() if tensor is not None}


def _settings(module: nn.Module) -> object:
    """The settings of a module on which its result depends, besides its class and its tensors."""
    match module:
        case Block():
            return module.wiring
        case Attention():
            sizes = module.heads, module.kv_heads, module.head_dim
            return *sizes, module.causal, module.window, module.scale, module.cap
        case Rotary():
            return module.base, module.rotary_dim, module.scaling
        case MLP():
            return module.activation.name
        case Embedding():
            return module.max_norm  # which would modify the weight at each lookup
    return None


def _norms_are_supported(model: GPT) -> bool:
    """Whether all norms are over the last axis, and what the kernel stores once is the same in all blocks."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    width_norms = [model.final_norm, *(norm for block in blocks for norm in block.norms)]
    if type(model.embedding_norm) is not NoNorm:
        width_norms.append(model.embedding_norm)
    attentions = [block.attention for block in blocks]
    head_norms = [(norm, heads) for a in attentions for norm, heads in ((a.q_norm, a.heads), (a.k_norm, a.kv_heads))]
    e = attentions[0].head_dim
    return (
        all(_normalizes_last_axis(norm, (1, 1, model.config.width)) for norm in width_norms)
        and len({norm_settings(norm) for norm in width_norms}) == 1
        and (
            all(norm is None for norm, _ in head_norms)
            or all(_normalizes_last_axis(norm, (1, 1, heads, e)) for norm, heads in head_norms)
        )
        and len({norm_settings(norm) for norm, _ in head_norms}) == 1
    )


def norm_settings(norm: nn.Module | None) -> tuple[Statistic, float | None] | None:
    """Statistic and eps of a norm; None for other modules."""
    return (norm.statistic, norm.eps) if isinstance(norm, Norm) and norm.statistic.has_kernels else None


def _normalizes_last_axis(norm: nn.Module | None, shape: tuple[int, ...]) -> bool:
    """Whether the norm is over the last axis only, with optional weight and bias along it."""
    if not is_stateless_norm(norm):
        return False
    try:
        plan, along, _ = norm._plan_for(torch.Size(shape))
    except ShapeError:
        return False  # the model raises the error
    shapes = [tuple(tensor.shape) for tensor in (norm.weight, norm.bias) if tensor is not None]
    return (
        plan.reduced == (len(shape) - 1,)
        and plan.split_shape == plan.shape
        and along in ((), (*(1 for _ in shape[1:]), shape[-1]))
        and all(own == shape[-1:] for own in shapes)
    )
