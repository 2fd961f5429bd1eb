"""Find the origin of a NaN or Inf: the first module whose output is not finite although its input is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from normscope.checks import as_path
from normscope.errors import CheckpointError
from normscope.interop.files.lazy_tensors import tensor_specs
from normscope.models.config_json import config_from_json, config_to_json
from normscope.models.gpt import GPT, GPTConfig
from normscope.runs import checksummed_folder
from normscope.runs.checksummed_folder import MANIFEST_NAME
from normscope.runs.initial_weights import set_trainable
from normscope.runtime.devices import resolve_device
from normscope.runtime.precision import Precision, choose_precision
from normscope.runtime.rng import preserve_rng, rng_state, set_rng_state
from normscope.storage.json_files import StrictStruct
from normscope.storage.safe_folder import SafeFolder
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tracer import TraceObserver, Tracer
from normscope.training.config import TrainConfig
from normscope.training.running_statistics import preserve_tensors, running_statistics

Moment = Literal["weights", "forward", "backward", "statistics"]


@dataclass(frozen=True)
class NonFiniteOrigin:
    """Where the first non-finite value appeared.

    Args:
        where: Name of the module or parameter.
        when: In the weights or buffers before the batch, in the forward pass, in the backward pass, or in the running
            statistics after the batch.
        what: "nan", "inf" or "nan and inf".
    """

    where: str
    when: Moment
    what: str

    def __str__(self) -> str:
        happened = {
            "weights": "not finite before the batch",
            "forward": "output is not finite, although the input is finite",
            "backward": "gradient is not finite, although the incoming gradient is finite",
            "statistics": "running statistic is not finite after the batch, although the gradients are finite",
        }
        return f"{self.where}: {happened[self.when]} ({self.what})"


def find_nonfinite(
    model: GPT, inputs: Tensor, targets: Tensor, *more: Tensor, micro_batch: int | None = None
) -> NonFiniteOrigin | None:
    """Run a batch again with hooks on every module; None if everything stays finite this time.

    Clears the gradients and restores the RNG state and running statistics.
    """
    origin = _first_nonfinite(model.state_dict(), "weights")
    size, statistics = micro_batch or len(inputs), running_statistics(model)
    with preserve_rng(inputs.device), preserve_tensors(statistics.values()):
        for part in zip(*(tensor.split(size) for tensor in (inputs, targets, *more)), strict=True):
            origin = origin or _find_in_micro_batch(model, *part)
        origin = origin or _first_nonfinite(statistics, "statistics")
    model.zero_grad(set_to_none=True)
    return origin


def _first_nonfinite(tensors: Mapping[str, Tensor], when: Moment) -> NonFiniteOrigin | None:
    found = ((name, tensor) for name, tensor in tensors.items() if not _finite(tensor))
    return next((NonFiniteOrigin(name, when, _nan_or_inf(tensor)) for name, tensor in found), None)


def _find_in_micro_batch(model: GPT, *batch: Tensor) -> NonFiniteOrigin | None:
    watched = [module for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)]
    observer = _NonFiniteObserver()
    origins = observer.origins
    with Tracer(model, observer) as tracer:
        tracer.watch_modules(watched)
        # Token ids have no gradient; that of the embedding's weight is checked below.
        tracer.watch_backward([module for module in watched if not isinstance(module, nn.Embedding)])
        loss = model.loss(*batch)
        if not origins and not _finite(loss):
            return NonFiniteOrigin("the loss", "forward", _nan_or_inf(loss))
        if not origins:
            loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return origins[0] if origins else _first_nonfinite(gradients, "backward")


class _NonFiniteObserver(TraceObserver):
    """Find modules whose output or gradient is not finite although what they were given is."""

    def __init__(self) -> None:
        self.origins: list[NonFiniteOrigin] = []

    def enter_module(self, module: nn.Module, name: str | None, args: Any, kwargs: Any, frames: Any) -> Any:
        return name, args

    def exit_module(self, frame: Any, output: Any) -> None:
        name, inputs = frame
        self._check(name, "forward", inputs, output)

    def exit_backward(self, name: str, module: nn.Module, grad_inputs: Any, grad_outputs: Any) -> None:
        own = [weight.grad for weight in module.parameters(recurse=False)]
        self._check(name, "backward", grad_outputs, (grad_inputs, own))

    def _check(self, name: str, when: Moment, given: Any, made: Any) -> None:
        before, after = ([t for t in tensors_in(value) if t.is_floating_point()] for value in (given, made))
        if all(map(_finite, before)) and not all(map(_finite, after)):
            self.origins.append(NonFiniteOrigin(name, when, _nan_or_inf(*after)))


_BATCH_NAMES = ("inputs", "targets", "positions")
"""Positions only if rows hold several documents."""


class _BundleState(StrictStruct):
    """Schema of a NaN bundle's state.json."""

    error: str
    config: dict[str, Any]
    origin: dict[str, str] | None = None
    micro_batch: Annotated[int, Meta(ge=1)] | None = None
    device: str = "cpu"
    precision: Precision = "float32"
    threads: str = ""
    ranks: str = "1"
    parallel: str = ""
    kernels: str = ""
    mkl_cbwr: str = ""
    torch: str = ""
    cpu_capability: str = ""
    finetuning: dict[str, Any] | None = None


def save_nan_bundle(
    folder: Path | SafeFolder,
    model: GPT,
    inputs: Tensor,
    targets: Tensor,
    state: dict[str, Any],
    positions: Tensor | None = None,
) -> None:
    """Save what `replay` needs to reproduce a NaN or Inf: weights, batch and RNG state.

    `state` has the settings of the run: `finetuning` are those of TrainConfig that change the model.
    """
    tensors = {
        "model": dict(model.state_dict()),
        "batch": {"inputs": inputs, "targets": targets} | ({} if positions is None else {"positions": positions}),
        "rng": rng_state(inputs.device),
    }
    checksummed_folder.write_folder(folder, tensors, {**state, "config": config_to_json(model.config)})


def replay(
    folder: str | Path, device: str | None = None, precision: Precision | None = None
) -> tuple[NonFiniteOrigin | None, dict[str, Any]]:
    """Run the batch of a saved NaN bundle again.

    Args:
        folder: The bundle, such as RUN/nan/00000123-batch-122.
        device, precision: Override the run's.

    Returns:
        The origin found now (None if everything is finite), and the saved state.
    """
    fix = "fix: pass a folder such as RUN/nan/00000123-batch-122"
    folder = as_path(folder, "a NaN bundle")
    if not checksummed_folder.is_complete(folder):
        raise CheckpointError(f"{folder} is not a NaN bundle: it has no {MANIFEST_NAME}\n{fix}")
    bundle = checksummed_folder.ChecksummedFolder(folder, fix="copy it again from its source")
    if "batch" not in bundle.groups:
        raise CheckpointError(f"{folder} is not a NaN bundle: it has no batch\n{fix}")
    state = bundle.state(_BundleState)
    where = resolve_device(device or state.device)
    chosen = choose_precision(precision or state.precision, where)
    config = config_from_json(state.config)
    with torch.device("meta"):  # shapes only; raises if the sizes are impossible
        empty = _model(config, state)
        expected = tensor_specs(empty.state_dict())
    weights, rng = bundle.tensors("model", expected), bundle.tensors("rng")
    batch = [tensor.to(where) for tensor in _batch(bundle.tensors("batch"), folder)]
    try:
        with preserve_rng(where):
            model = _model(config, state)
            model.load_state_dict(weights)
            set_rng_state(rng, where)
            with chosen.autocast(where)():
                found = find_nonfinite(model.to(where).train(), *batch, micro_batch=state.micro_batch)
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{folder} cannot be replayed: {str(error).splitlines()[0]}\n{fix}") from error
    return found, msgspec.to_builtins(state)


def _model(config: GPTConfig, state: _BundleState) -> GPT:
    model = GPT(config)
    set_trainable(model, TrainConfig.from_json({"steps": 1, "batch": 1, **(state.finetuning or {})}))
    return model


def _batch(tensors: Mapping[str, Tensor], folder: Path) -> list[Tensor]:
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    valid = all(tensor.dim() == 2 and tensor.dtype == torch.int64 for tensor in tensors.values())
    is_complete = {*_BATCH_NAMES[:2]} <= shapes.keys() <= {*_BATCH_NAMES}
    if not is_complete or len(set(shapes.values())) != 1 or not valid:
        raise CheckpointError(
            f"{folder} has an invalid batch: expected inputs and targets of one shape\nfix: copy it again"
        )
    return [tensors[name] for name in _BATCH_NAMES if name in tensors]


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _nan_or_inf(*tensors: Tensor) -> str:
    has_nan = any(bool(tensor.isnan().any()) for tensor in tensors)
    has_inf = any(bool(tensor.isinf().any()) for tensor in tensors)
    return " and ".join(name for name, found in (("nan", has_nan), ("inf", has_inf)) if found)
