"""Find the models that a running script trains: the outermost modules whose parameters its optimizers hold."""

import gc
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from torch import nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.wrappers import compiled_classes
from normscope.render.formatting import join_words


class TrainedModels(nn.Module):
    """Several models that a script trains, such as the generator and the discriminator of a GAN."""


def trained_model(called: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module | None:
    """Return what a script trains that is about to call a module; None if no optimizer holds parameters of the module.

    That is the outermost module around the called one, or a container of several models, under their variable names.
    """
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    if not _own(called) & held:
        return None
    roots = _cover(_outermost_modules(), called, held)
    return roots[0] if len(roots) == 1 else _container(roots)


def _own(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def _outermost_modules() -> list[nn.Module]:
    """All modules of the process that are in no other."""
    # `isinstance` would ask objects for their class, which some answer by importing a package.
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module) and "_modules" in vars(found)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in inner]


def _cover(modules: Sequence[nn.Module], called: nn.Module, held: set[int]) -> list[nn.Module]:
    """Choose modules that together have the parameters of the optimizers, first the one around the called module."""

    def rank(module: nn.Module) -> tuple[bool, int]:
        return all(inner is not called for inner in module.modules()), -len(_own(module) & held)

    chosen: list[nn.Module] = []
    for module in sorted(modules, key=rank):
        own = _own(module) & held
        if own:
            chosen.append(module)
            held = held - own
    return chosen


def _container(models: Sequence[nn.Module]) -> nn.Module:
    container = TrainedModels()
    names = dict(_variable_names(models))
    for number, model in enumerate(models):
        name = names.get(id(model), "")
        if not name or hasattr(container, name):
            name = f"{type(model).__name__.lower()}_{number}"
        container.add_module(name, getattr(model, "_orig_mod") if isinstance(model, compiled_classes()) else model)  # noqa: B009
    container.__class__ = type(join_words(list(container._modules)), (TrainedModels,), {})  # the title of the report
    return container


def _variable_names(models: Sequence[nn.Module]) -> Iterator[tuple[int, str]]:
    """The names that the running functions of the script, or the object whose method runs, have for the models."""
    wanted = set(map(id, models))
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("torch.", "normscope.")):
            for variables in (frame.f_globals, getattr(frame.f_locals.get("self"), "__dict__", {}), frame.f_locals):
                yield from ((id(value), name) for name, value in list(variables.items()) if id(value) in wanted)
        frame = frame.f_back
