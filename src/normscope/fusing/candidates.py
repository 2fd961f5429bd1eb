"""Decide for each module: the change that fuses it, the reason why not, or None if it is not a norm."""

from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normscope.blocks.norm.base import Norm
from normscope.fusing.change import ClassChange
from normscope.fusing.equivalence import first_difference
from normscope.fusing.fused_forward import FORMULA_ATTRIBUTE, RANKS, FusedFormula, FusedForward, fused_class
from normscope.fusing.torch_norms import TORCH_NORM_CLASSES, TORCH_NORMS, torch_change, torch_inputs
from normscope.ops import kernel_mode
from normscope.ops.activations import REFERENCE_ACTIVATIONS
from normscope.tracing.module_trials import allclose, call_forward, own_attributes, random_input, randomized_copy
from normscope.tracing.norm_formula import NormFormula, NotANormError, UnknownNormError, probe_formula, probe_inputs

Reason = str
Verdict = ClassChange | Reason | None

_ACTIVATIONS = ("gelu-tanh", "silu", "relu2")
_NO_FUSED_FORM = "no fused version of this norm"
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class CandidateFinder:
    """Decide how to fuse modules, once per class and settings: a deep model repeats the same norm."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Verdict] = {}

    def verdict(self, module: nn.Module) -> Verdict:
        if isinstance(module, Norm | FusedForward):
            return None  # already fused
        if isinstance(module, torch.jit.ScriptModule):
            is_norm = "norm" in module.original_name.lower()
            return "scripted module: its forward is compiled" if is_norm else None
        if not (isinstance(module, TORCH_NORM_CLASSES) or _could_be_norm(module)):
            return _reason_by_name(module)
        obstacle = _obstacle(module)
        if obstacle is not None:
            return obstacle
        key = _key(module)
        verdict = self._known[key] if key in self._known else _decide(module)
        if key is not None:
            self._known[key] = verdict
        # Checked last: if the kernels failed meanwhile, nothing was verified.
        runs = kernel_mode.select_backend(torch.ones(1)) != "reference"
        return verdict if runs or not isinstance(verdict, ClassChange) else "fused kernels are disabled"


def _could_be_norm(module: nn.Module) -> bool:
    """Whether it has no submodules, no buffers, and at most two parameters along one axis.

    torch's own modules (activations, dropout, pooling) are excluded: their norms are known by class.
    """
    if type(module).__module__.startswith("torch.") or type(module).forward is nn.Module.forward:
        return False
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    if module._modules or module._buffers or len(parameters) > 2:
        return False
    shapes = {parameter.shape for parameter in parameters}
    return not shapes or (len(shapes) == 1 and len(shapes.pop()) == 1)


def _reason_by_name(module: nn.Module) -> Reason | None:
    """A reason to report for a class named norm that cannot be fused; containers are skipped."""
    if module._modules or "norm" not in type(module).__name__.lower():
        return None
    if any(buffer is not None for buffer in module._buffers.values()):
        return "buffers are supported only for torch.nn norms"
    shapes = ", ".join(str(tuple(p.shape)) for p in module._parameters.values() if p is not None)
    return f"parameters of shape {shapes} are not a weight and bias along one axis" if shapes else None


def _obstacle(module: nn.Module) -> Reason | None:
    """The reason why a module cannot be tried; None if it can."""
    if isinstance(module, _NormBase) and type(module) not in TORCH_NORMS:
        return "only torch.nn's own batch and instance norm classes are supported"
    if type(module).__module__.startswith("torch.nn.modules.") and type(module) not in TORCH_NORMS:
        return _NO_FUSED_FORM
    if "forward" in vars(module):
        return "forward was replaced on this instance"
    if module._modules:
        return f"it has submodules: {', '.join(module._modules)} (a parametrization?)"
    tensors = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    for name, value in vars(module).items():
        if name in ("weight", "bias") and isinstance(value, torch.Tensor):
            return f"{name} is not a parameter"
    for tensor in tensors:
        if type(tensor) not in (nn.Parameter, torch.Tensor):
            return f"unsupported tensor class {type(tensor).__name__}"
        if not tensor.is_cpu:
            return f"on device {tensor.device}: the fused kernels run on the CPU only"
        if tensor.is_floating_point() and tensor.dtype not in kernel_mode.SUPPORTED_DTYPES:
            return f"the fused kernels do not support {_name(tensor.dtype)}"
    if len({tensor.dtype for tensor in tensors if tensor.is_floating_point()}) > 1:
        return "tensors of different dtypes"
    return None


def _decide(module: nn.Module) -> Verdict:
    try:
        return _of_torch(module) if type(module) in TORCH_NORMS else _of_others(module)
    except NotANormError:
        activation = None if list(module.parameters()) else _of_activations(module)
        if activation is not None:
            return activation
        return _NO_FUSED_FORM if _is_named_norm(module) else None
    except UnknownNormError as difference:
        return str(difference)
    except Exception as error:  # third-party code may raise anything
        report = _is_named_norm(module) or bool(list(module.parameters()))
        text = str(error).partition("\n")[0] or "no message"
        return f"trying it raised {type(error).__name__}: {text}" if report else None


def _is_named_norm(module: nn.Module) -> bool:
    return isinstance(module, TORCH_NORM_CLASSES) or "norm" in type(module).__name__.lower()


def _of_torch(module: nn.Module) -> ClassChange | Reason:
    dtype = _dtype(module)
    change = torch_change(module)
    old, new = randomized_copy(module, dtype), randomized_copy(module, dtype)
    change.apply(new)
    difference = first_difference(old, new, torch_inputs(module, dtype))
    return change if difference is None else f"not equivalent to {change.text}: {difference}"


def _of_others(module: nn.Module) -> ClassChange | Reason:
    formula = probe_formula(module)

    def inputs(dtype: torch.dtype) -> list[Tensor]:
        """Inputs of every scale in float32; of scale 1 in half precision, where tiny ones underflow."""
        width = formula.width or 20
        if dtype == torch.float32:
            return probe_inputs(formula.eps, width)
        return [random_input((4, 3, 2, width)[-rank:], 1.0, dtype, seed=50 + rank) for rank in RANKS]

    change, differences = _verified_change(module, formula, inputs)
    for dtype in (torch.float32, _dtype(module)):
        if dtype in differences:
            return f"not equivalent to {formula} in {_name(dtype)}: {differences[dtype]}"
    return change


def _of_activations(module: nn.Module) -> ClassChange | None:
    """The change for a recognized activation, verified in float32; None for others, which are not reported."""
    name = _recognize_activation(module)
    if name is None:
        return None
    change, differences = _verified_change(module, name, _activation_inputs)
    return None if torch.float32 in differences else change


def _recognize_activation(module: nn.Module) -> str | None:
    """The name of the activation that a module without parameters computes; None if it has no fused version."""
    copy, inputs = randomized_copy(module), _activation_inputs(torch.float32)
    with torch.no_grad():
        results = [call_forward(copy, x.clone()) for x in inputs]
        for name in _ACTIVATIONS:
            wanted = [REFERENCE_ACTIVATIONS[name](x.double()).float() for x in inputs]
            if all(y.shape == w.shape and allclose(y, w) for y, w in zip(results, wanted, strict=True)):
                return name
    return None


def _activation_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Inputs in the curved range, the asymptotic range and close to zero; in float32 also where it may be capped."""
    shapes = (40, 16), (2, 3, 16), (2, 3, 2, 16)
    scales = (1.0, 20.0, 1e-2, *((1e4,) if dtype == torch.float32 else ()))
    return [random_input(shape, scale, dtype, seed=60) for shape in shapes for scale in scales]


def _verified_change(
    module: nn.Module, formula: NormFormula | str, inputs: Callable[[torch.dtype], list[Tensor]]
) -> tuple[ClassChange, dict[torch.dtype, str]]:
    """The change to a fused formula, in the dtypes in which it is equivalent, and the first difference in others."""

    def change(*dtypes: torch.dtype) -> ClassChange:
        attributes = {FORMULA_ATTRIBUTE: FusedFormula(formula, frozenset(dtypes))}
        what: Literal["norm", "activation"] = "activation" if isinstance(formula, str) else "norm"
        return ClassChange(fused_class(type(module)), str(formula), what, attributes)

    kinds = kernel_mode.SUPPORTED_DTYPES
    found = {dtype: _difference(module, change(dtype), inputs(dtype), dtype) for dtype in kinds}
    differences = {dtype: difference for dtype, difference in found.items() if difference is not None}
    return change(*(dtype for dtype in kinds if dtype not in differences)), differences


def _difference(module: nn.Module, change: ClassChange, inputs: list[Tensor], kind: torch.dtype) -> str | None:
    """The first difference in one dtype; None if there is none. float32 is also compared under autocast."""
    old, new = randomized_copy(module, kind), randomized_copy(module, kind)
    change.apply(new)
    try:
        difference = first_difference(old, new, inputs)
        if difference is None and kind == torch.float32:
            with torch.autocast("cpu", torch.bfloat16):
                difference = first_difference(old, new, inputs)
    except Exception as error:  # it may not support this dtype
        return f"{type(error).__name__}: {error}"
    return difference


def _dtype(module: nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in module.parameters()), torch.float32)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _key(module: nn.Module) -> Hashable | None:
    """Cache key of the decision; None if the module has attributes that are not plain values."""
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
