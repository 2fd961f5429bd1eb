"""For one module: the change that fuses it, or why it is left; None for what is no norm at all."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normscope.blocks.norm.norm import Norm
from normscope.interop.fuse.activation import (
    ActivationFormula,
    FusedActivation,
    activation_inputs,
    recognize_activation,
)
from normscope.interop.fuse.change import ClassChange
from normscope.interop.fuse.equivalence import first_difference
from normscope.interop.fuse.fused_class import FORMULA_ATTRIBUTE, RANKS, FusedModuleBase, fused_class
from normscope.interop.fuse.module_copies import own_attributes, random_input, randomized_copy
from normscope.interop.fuse.recognize import NotANormError, UnknownNormError, probe_inputs, recognize_norm
from normscope.interop.fuse.row_norm import FusedRowNorm, RowNormFormula
from normscope.interop.fuse.torch_norms import TORCH_NORM_CLASSES, TORCH_NORMS, torch_change, torch_inputs
from normscope.ops import kernel_mode

Reason = str
Verdict = ClassChange | Reason | None

_NO_FUSED_FORM = "it is none of the norms that have a fused form"
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class CandidateFinder:
    """Judges modules, each kind with each settings once: a deep model has the same norm many times."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Verdict] = {}

    def verdict(self, module: nn.Module) -> Verdict:
        if isinstance(module, Norm | FusedModuleBase):
            return None  # fused already
        if isinstance(module, torch.jit.ScriptModule):
            is_norm = "norm" in module.original_name.lower()
            return "it is scripted: its forward is compiled into it" if is_norm else None
        if not (isinstance(module, TORCH_NORM_CLASSES) or _has_a_norms_build(module)):
            return _left_by_name(module)
        obstacle = _obstacle(module)
        if obstacle is not None:
            return obstacle
        key = _key(module)
        verdict = self._known[key] if key in self._known else _judge(module)
        if key is not None:
            self._known[key] = verdict
        # Asked last, because the kernels may have failed on the way: nothing would have been proven about them then.
        runs = kernel_mode.select_backend(torch.ones(1)) != "reference"
        return verdict if runs or not isinstance(verdict, ClassChange) else "the fused kernels are turned off"


def _has_a_norms_build(module: nn.Module) -> bool:
    """No modules inside, no buffers, and at most two parameters, which lie along one axis.

    What comes with torch (activations, dropout, pooling) is known to be no norm, if it is not one of the norms.
    """
    if type(module).__module__.startswith("torch.") or type(module).forward is nn.Module.forward:
        return False
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    if module._modules or module._buffers or len(parameters) > 2:
        return False
    shapes = {parameter.shape for parameter in parameters}
    return not shapes or (len(shapes) == 1 and len(shapes.pop()) == 1)


def _left_by_name(module: nn.Module) -> Reason | None:
    """A word on what calls itself a norm and cannot be one of these; containers are judged by what is in them."""
    if module._modules or "norm" not in type(module).__name__.lower():
        return None
    if any(buffer is not None for buffer in module._buffers.values()):
        return "it keeps buffers, and only torch.nn's norms are known to"
    shapes = ", ".join(str(tuple(p.shape)) for p in module._parameters.values() if p is not None)
    return f"its parameters have the shapes {shapes}: not a gain and a bias along one axis" if shapes else None


def _obstacle(module: nn.Module) -> Reason | None:
    """What keeps a module from being judged at all."""
    if isinstance(module, _NormBase) and type(module) not in TORCH_NORMS:
        return "of the norms over a batch only torch.nn's own classes are known, and this is another"
    if type(module).__module__.startswith("torch.nn.modules.") and type(module) not in TORCH_NORMS:
        return _NO_FUSED_FORM
    if "forward" in vars(module):
        return "its forward was replaced on this one object"
    if module._modules:
        return f"there are modules inside it: {', '.join(module._modules)} (a parametrization, perhaps)"
    tensors = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    for name, value in vars(module).items():
        if name in ("weight", "bias") and isinstance(value, torch.Tensor):
            return f"its {name} is computed from something else"
    for tensor in tensors:
        if type(tensor) not in (nn.Parameter, torch.Tensor):
            return f"it has a tensor of its own kind, {type(tensor).__name__}"
        if not tensor.is_cpu:
            return f"it is on the device {tensor.device}, and the fused kernels are the CPU's"
        if tensor.is_floating_point() and tensor.dtype not in kernel_mode.SUPPORTED_DTYPES:
            return f"it is in {_name(tensor.dtype)}, which the fused kernels do not take"
    if len({tensor.dtype for tensor in tensors if tensor.is_floating_point()}) > 1:
        return "its tensors are of several types"
    return None


def _judge(module: nn.Module) -> Verdict:
    try:
        return _of_torch(module) if type(module) in TORCH_NORMS else _of_others(module)
    except NotANormError:
        activation = None if list(module.parameters()) else _of_activations(module)
        if activation is not None:
            return activation
        return _NO_FUSED_FORM if _is_called_a_norm(module) else None
    except UnknownNormError as difference:
        return str(difference)
    except Exception as error:  # whatever a stranger's code does with an input that it did not expect
        worth_a_word = _is_called_a_norm(module) or bool(list(module.parameters()))
        text = str(error).partition("\n")[0] or "no reason given"
        return f"it could not be tried: {type(error).__name__}: {text}" if worth_a_word else None


def _is_called_a_norm(module: nn.Module) -> bool:
    return isinstance(module, TORCH_NORM_CLASSES) or "norm" in type(module).__name__.lower()


def _of_torch(module: nn.Module) -> ClassChange | Reason:
    dtype = _dtype(module)
    change = torch_change(module)
    old, new = randomized_copy(module, dtype), randomized_copy(module, dtype)
    change.apply(new)
    difference = first_difference(old, new, torch_inputs(module, dtype))
    return change if difference is None else f"{change.text} does not do the same: {difference}"


def _of_others(module: nn.Module) -> ClassChange | Reason:
    form = recognize_norm(module)
    changes = {
        kind: _row_change(module, replace(form, kinds=frozenset({kind}))) for kind in kernel_mode.SUPPORTED_DTYPES
    }
    differences = {kind: _difference(module, change, _row_inputs(form, kind), kind) for kind, change in changes.items()}
    for kind in (torch.float32, _dtype(module)):
        if differences[kind] is not None:
            return f"as {form} it does not do the same in {_name(kind)}: {differences[kind]}"
    return _row_change(module, replace(form, kinds=_proven(differences)))


def _row_inputs(form: RowNormFormula, kind: torch.dtype) -> list[Tensor]:
    """Inputs of every size; in the halves of the usual one, because tiny ones are below what the type holds."""
    width = form.width or 20
    usual = [random_input((4, 3, 2, width)[-rank:], 1.0, kind, seed=50 + rank) for rank in RANKS]
    return probe_inputs(form.eps, width) if kind == torch.float32 else usual


def _row_change(module: nn.Module, form: RowNormFormula) -> ClassChange:
    return ClassChange(fused_class(FusedRowNorm, type(module)), str(form), attributes={FORMULA_ATTRIBUTE: form})


def _of_activations(module: nn.Module) -> ClassChange | None:
    """An activation that is proven in float32; there is nothing to say about others, which are no norms."""
    form = recognize_activation(module)
    if form is None:
        return None
    changes = {
        kind: _activation_change(module, replace(form, kinds=frozenset({kind})))
        for kind in kernel_mode.SUPPORTED_DTYPES
    }
    differences = {kind: _difference(module, change, activation_inputs(kind), kind) for kind, change in changes.items()}
    proven = _proven(differences)
    return _activation_change(module, replace(form, kinds=proven)) if torch.float32 in proven else None


def _activation_change(module: nn.Module, form: ActivationFormula) -> ClassChange:
    return ClassChange(fused_class(FusedActivation, type(module)), form.name, "activation", {FORMULA_ATTRIBUTE: form})


def _proven(differences: dict[torch.dtype, str | None]) -> frozenset[torch.dtype]:
    return frozenset(kind for kind, difference in differences.items() if difference is None)


def _difference(module: nn.Module, change: ClassChange, inputs: list[Tensor], kind: torch.dtype) -> str | None:
    """What differs in one type; None if nothing does. In float32 it is the same under autocast too."""
    old, new = randomized_copy(module, kind), randomized_copy(module, kind)
    change.apply(new)
    try:
        difference = first_difference(old, new, inputs)
        if difference is None and kind == torch.float32:
            with torch.autocast("cpu", torch.bfloat16):
                difference = first_difference(old, new, inputs)
    except Exception as error:  # its code may not be for this type
        return f"{type(error).__name__}: {error}"
    return difference


def _dtype(module: nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in module.parameters()), torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _key(module: nn.Module) -> Hashable | None:
    """What decides the verdict; None if the module holds more than plain settings."""
    settings: list[tuple[str, Any]] = []
    for name, value in own_attributes(module).items():
        if not isinstance(value, _PLAIN) and not (
            isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value)
        ):
            return None
        settings.append((name, value))
    tensors = {**module._parameters, **module._buffers}
    build = tuple((name, None if t is None else (t.shape, t.dtype)) for name, t in tensors.items())
    return type(module), tuple(settings), build
