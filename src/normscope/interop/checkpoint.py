"""A model of another tool in our terms: its config, its weights by our names, its tokenizer. And a GPT of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.data.tokenizers import Tokenizer
from normscope.errors import WeightsError
from normscope.interop.files.lazy_tensors import tensor_specs
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.size import check_model_size
from normscope.render.formatting import format_bytes
from normscope.runtime.devices import resolve_device

_SMALL_TABLES = 2**30
"""Rotary tables that fit into any memory; a context of a million tokens takes half of it."""


@dataclass(frozen=True)
class ExternalCheckpoint:
    """A checkpoint of another tool. Weights are read one at a time, when they are looked up.

    Args:
        format: where it comes from, such as "Hugging Face llama" or "nanoGPT".
        path: the file or folder.
        config: the model's config.
        weights: our parameter names to tensors in the dtype in which they are stored.
        tokenizer: the model's tokenizer; None if the checkpoint has none.
        chat_template: Jinja template of a conversation; None if the checkpoint has none.
        notices: messages for the user, such as a tokenizer that was not found.
        context_setting: what the format calls the context.
        quantization: coarsest format of weights that are float32 only here, such as "Q4_0" or "F16"; None for none.
    """

    format: str
    path: Path
    config: GPTConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    notices: tuple[str, ...] = ()
    context_setting: str = "context"
    quantization: str | None = None

    def __post_init__(self) -> None:
        try:
            check_tables(self.config, self.weights, self.context_setting)
        except WeightsError as error:
            raise WeightsError(f"{self.path} ({self.format}): {error}") from None


def check_tables(config: GPTConfig, weights: Mapping[str, Tensor], setting: str) -> None:
    """Refuse a context whose rotary tables are out of all proportion: a few bytes can claim any."""
    tables, stored = 4 * config.buffer_count(), sum(spec.nbytes for spec in tensor_specs(weights).values())
    if tables > max(_SMALL_TABLES, 4 * stored):
        raise WeightsError(
            f"{setting}={config.context} needs {format_bytes(tables)} of rotary tables, far more than the weights\n"
            f"fix: set {setting} to the longest context that the model was trained with"
        )


def build_model(checkpoint: ExternalCheckpoint, device: str = "cpu") -> GPT:
    """Build the GPT of a checkpoint, in eval mode, with weights in their stored dtype.

    Takes the memory of the weights, if each has memory of its own when it is looked up: the model is built without
    memory, and gets its weights one by one.
    """
    try:
        return model_from_weights(checkpoint.config, checkpoint.weights, device)
    except WeightsError as error:
        raise WeightsError(f"{checkpoint.path} ({checkpoint.format}): {error}") from error


def model_from_weights(config: GPTConfig, weights: Mapping[str, Tensor], device: str = "cpu") -> GPT:
    """Build a GPT in eval mode that has these weights, one by one.

    Args:
        config: config of the model.
        weights: all its weights by name; only one is looked up at a time. The model shares them where it can.
        device: device of the model.
    """
    target = resolve_device(device)
    check_model_size(0, depth=config.depth, buffers=config.buffer_count())  # a few bytes can claim any context
    with torch.device("meta"):  # no initialization, and no memory
        model = GPT(config)
    wanted = model.state_dict()
    _check_names(set(wanted), set(weights))
    for name, expected in wanted.items():
        owner, _, own_name = name.rpartition(".")
        tensor = _owned(weights[name].detach(), target)
        if tensor.shape != expected.shape or tensor.is_floating_point() != expected.is_floating_point():
            kind = "floating-point " if expected.is_floating_point() else ""
            raise WeightsError(
                f"{name} is {_dtype(tensor)} of {tuple(tensor.shape)}, but the model's config needs {kind}"
                f"{tuple(expected.shape)}\nfix: use a config and weights of the same model"
            )
        module = model.get_submodule(owner)
        if own_name in module._parameters:
            module._parameters[own_name] = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
        else:
            module._buffers[own_name] = tensor
    _fill_tables(model, target)
    return model.eval()


def _check_names(wanted: set[str], found: set[str]) -> None:
    problems = [f"{name} is missing" for name in sorted(wanted - found)]
    problems += [f"{name} is unexpected" for name in sorted(found - wanted)]
    if problems:
        more = f", and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise WeightsError(
            f"the weights are not those of the model's config: {', '.join(problems[:4])}{more}\n"
            f"fix: use a config and weights of the same model"
        )


def _owned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, contiguous, and alone in its memory: a slice would keep the whole tensor."""
    moved = tensor.to(device).contiguous()
    return moved.clone() if moved.untyped_storage().nbytes() > moved.nbytes else moved


def _fill_tables(model: GPT, device: torch.device) -> None:
    """Compute the buffers that are not saved with the weights, such as the tables of rotary embeddings."""
    for module in model.modules():
        if any(buffer is not None and buffer.is_meta for buffer in module._buffers.values()):
            module.to_empty(device=device, recurse=False)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
