"""Where a number stopped being finite: the first module that made one out of numbers that were."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from normscope.checks import as_path
from normscope.errors import CheckpointError
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPT
from normscope.runs import checksummed_folder as sealed
from normscope.runs.manifest import MANIFEST
from normscope.runs.tensor_specs import specs
from normscope.runtime.devices import resolve_device
from normscope.runtime.precision import Precision, choose_precision
from normscope.runtime.rng import random_state, set_random_state
from normscope.storage.json_files import Strict
from normscope.storage.safe_folder import OwnFolder
from normscope.training.running_statistics import put_back, running_statistics


@dataclass(frozen=True)
class Fault:
    """What made the first number that is not finite.

    Args:
        where: the module's or the parameter's name.
        when: in the weights or running statistics already, on the way forward, on the way back, or in a running
            statistic afterwards.
        what: nan, inf, or both.
    """

    where: str
    when: Literal["weights", "forward", "backward", "statistics"]
    what: str

    def __str__(self) -> str:
        happened = {
            "weights": "not finite before the batch came",
            "forward": "its output is not finite, though its input is",
            "backward": "its gradient is not finite, though the one that came to it is",
            "statistics": "not finite after the batch, though every output and gradient is",
        }
        return f"{self.where}: {happened[self.when]} ({self.what})"


def find_fault(model: GPT, inputs: Tensor, targets: Tensor, micro_batch: int | None = None) -> Fault | None:
    """Run a batch again and watch every module; None if all stays finite this time.

    Gradients are left empty, the random numbers and the running statistics as they were.
    """
    for name, tensor in model.state_dict().items():
        if not _finite(tensor):
            return Fault(name, "weights", _kind(tensor))
    size = micro_batch or len(inputs)
    statistics = running_statistics(model)
    before = [tensor.clone() for tensor in statistics.values()], random_state(inputs.device)
    try:
        for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
            fault = _find_in_part(model, part, wanted)
            if fault is not None:
                return fault
        strange = [(name, tensor) for name, tensor in statistics.items() if not _finite(tensor)]
        return Fault(strange[0][0], "statistics", _kind(strange[0][1])) if strange else None
    finally:
        model.zero_grad(set_to_none=True)
        put_back([*statistics.values()], before[0])
        set_random_state(before[1], inputs.device)


def _find_in_part(model: GPT, inputs: Tensor, targets: Tensor) -> Fault | None:
    with _watch(model) as faults:
        loss = model.loss(inputs, targets)
        if not faults and not _finite(loss):
            return Fault("the loss", "forward", _kind(loss))
        if not faults:
            loss.backward()
    if faults:
        return faults[0]
    for name, weight in model.named_parameters():
        if weight.grad is not None and not _finite(weight.grad):
            return Fault(name, "backward", _kind(weight.grad))
    return None


@contextmanager
def _watch(model: nn.Module) -> Iterator[list[Fault]]:
    faults: list[Fault] = []

    def forward(name: str, module: nn.Module, given: Any, result: Any) -> None:
        if not all(map(_finite, _tensors(result))) and all(map(_finite, _tensors(given))):
            faults.append(Fault(name, "forward", _kind(*_tensors(result))))

    def backward(name: str, module: nn.Module, made: Any, came: Any) -> None:
        own = [weight.grad for weight in module.parameters(recurse=False) if weight.grad is not None]
        if not all(map(_finite, [*_tensors(made), *own])) and all(map(_finite, _tensors(came))):
            faults.append(Fault(name, "backward", _kind(*_tensors(made), *own)))

    handles = []
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            handles.append(module.register_forward_hook(lambda *args, name=name: forward(name, *args)))
            if not isinstance(module, nn.Embedding):  # tokens have no gradient; the table's is looked at in the end
                handles.append(module.register_full_backward_hook(lambda *args, name=name: backward(name, *args)))
    try:
        yield faults
    finally:
        for handle in handles:
            handle.remove()


class _Facts(Strict):
    """What state.json says of a fault."""

    error: str
    config: dict[str, Any]
    fault: dict[str, str] | None = None
    micro_batch: Annotated[int, Meta(ge=1)] | None = None
    device: str = "cpu"
    precision: Precision = "float32"
    threads: str = ""
    kernels: str = ""
    products: str = ""
    torch: str = ""
    instructions: str = ""


def save_bundle(folder: Path | OwnFolder, model: GPT, inputs: Tensor, targets: Tensor, facts: dict[str, Any]) -> None:
    """All that it takes to see the fault again: weights, batch, and the state of the random numbers."""
    tensors = {
        "model": dict(model.state_dict()),
        "batch": {"inputs": inputs, "targets": targets},
        "random": random_state(inputs.device),
    }
    sealed.seal(folder, tensors, {**facts, "config": config_to_json(model.config)})


def replay(
    folder: str | Path, device: str | None = None, precision: Precision | None = None
) -> tuple[Fault | None, dict[str, Any]]:
    """Run the batch of a saved bundle again, on the device and in the precision of the run unless told otherwise.

    Returns:
        What is found now, and what was noted then.
    """
    fix = "fix: name a folder such as RUN/faults/00000123-batch-122"
    folder = as_path(folder, "a fault")
    if not sealed.is_sealed(folder):
        raise CheckpointError(f"{folder} does not hold a fault: it has no {MANIFEST}\n{fix}")
    bundle = sealed.Sealed(folder, fix="copy it anew from where it was written")
    if "batch" not in bundle.groups:
        raise CheckpointError(f"{folder} does not hold a fault, though it is whole\n{fix}")
    facts = bundle.facts(_Facts)
    where = resolve_device(device or facts.device)
    chosen = choose_precision(precision or facts.precision, where)
    config = config_from_json(facts.config)
    with torch.device("meta"):  # shapes without numbers; refuses sizes that nothing could be built with
        wanted = specs(GPT(config).state_dict())
    weights, random = bundle.tensors("model", wanted), bundle.tensors("random")
    inputs, targets = (tensor.to(where) for tensor in _batch(bundle.tensors("batch"), folder))
    model = GPT(config)
    model.load_state_dict(weights)
    before = random_state(where)
    try:
        set_random_state(random, where)
        with chosen.autocast(where)():
            found = find_fault(model.to(where).train(), inputs, targets, facts.micro_batch)
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{folder} cannot be replayed: {str(error).splitlines()[0]}\n{fix}") from error
    finally:
        set_random_state(before, where)
    return found, msgspec.to_builtins(facts)


def _batch(tensors: Mapping[str, Tensor], folder: Path) -> tuple[Tensor, Tensor]:
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    whole = all(tensor.dim() == 2 and tensor.dtype == torch.int64 for tensor in tensors.values())
    if shapes.keys() != {"inputs", "targets"} or len(set(shapes.values())) != 1 or not whole:
        raise CheckpointError(f"{folder} has a batch that is not inputs and targets of one shape\nfix: copy it anew")
    return tensors["inputs"], tensors["targets"]


def fault_to_json(fault: Fault | None) -> dict[str, str] | None:
    return None if fault is None else asdict(fault)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of floats in what a module was given or gave."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _kind(*tensors: Tensor) -> str:
    has_nan = any(bool(tensor.isnan().any()) for tensor in tensors)
    has_inf = any(bool(tensor.isinf().any()) for tensor in tensors)
    return " and ".join(name for name, there in (("nan", has_nan), ("inf", has_inf)) if there)
