"""What every module of a model receives and returns for one token."""

import copy
import inspect
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import ConfigError
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class ModuleValues:
    """A module, and its input and output for one token.

    Args:
        name: Its name in the block, such as "attention.q"; empty for the block itself.
        kind: Its class.
        details: Its settings, as `repr` shows them.
        formula: What it computes, from its docstring; empty if that has none.
        code: The source of its `forward`.
        parameters: The shape of each of its own parameters.
        input, output: The vectors of the token, None if the module has several tokens mixed in one vector.
    """

    name: str
    kind: str
    details: str
    formula: str
    code: str
    parameters: dict[str, tuple[int, ...]]
    input: Tensor | None
    output: Tensor | None


@torch.no_grad()
def module_values(model: GPT, tokens: Tensor, *, block: int = 0, position: int = -1) -> list[ModuleValues]:
    """Run a model and return the values of one token in every module of a block, in the order of their calls.

    Args:
        model: The model.
        tokens: Token ids of one sequence, (s).
        block: Index of the block.
        position: Index of the token.

    Example:
        >>> from normscope.models.presets import llama
        >>> model = GPT(llama(vocab_size=16, context=8, depth=2, width=8, heads=2))
        >>> values = module_values(model, torch.tensor([1, 2, 3]), block=1)
        >>> [one.name for one in values][:4]
        ['', 'norms.0', 'attention', 'attention.q']
    """
    if not -len(model.blocks) <= block < len(model.blocks):
        raise ConfigError(f"block={block} is out of range: the model has {len(model.blocks)} blocks")
    if not -len(tokens) <= position < len(tokens):
        raise ConfigError(f"position={position} is out of range: there are {len(tokens)} tokens")
    # Hooks go on a copy that shares the weights: other threads may be using the model.
    weights: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, weights).eval()
    chosen = copied.blocks[block]
    calls: dict[str, list[Tensor | None]] = {}

    def before(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls.setdefault(name, [_of_token(inputs[0] if inputs else None, position, len(tokens)), None])

    def after(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if calls[name][1] is None:  # the first call: queries and keys share one rotary embedding
            calls[name][1] = _of_token(output, position, len(tokens))

    for name, module in chosen.named_modules():
        module.register_forward_pre_hook(partial(before, name))
        module.register_forward_hook(partial(after, name))
    copied(tokens[None])
    modules = dict(chosen.named_modules())
    return [_describe(name, modules[name], *values) for name, values in calls.items()]


def _of_token(value: Any, position: int, length: int) -> Tensor | None:
    """The vector of a token in a tensor (1, s, ...)."""
    if not isinstance(value, Tensor) or value.dim() < 3 or value.shape[:2] != (1, length):
        return None
    return value[0, position].flatten().float().cpu()


def _describe(name: str, module: nn.Module, given: Tensor | None, returned: Tensor | None) -> ModuleValues:
    kind = type(module)
    shapes = {key: tuple(weight.shape) for key, weight in module.named_parameters(recurse=False)}
    formula = re.search(r"Formula:\n((?: {4}.*\n?)+)", inspect.getdoc(kind) or "")
    lines = inspect.cleandoc(f"\n{formula[1]}") if formula else ""
    try:
        code = inspect.cleandoc(f"\n{inspect.getsource(kind.forward)}")
    except (OSError, TypeError):  # a class made at run time
        code = ""
    return ModuleValues(name, kind.__name__, module.extra_repr(), lines, code, shapes, given, returned)
