"""The initial weights of a run that starts from another model: a copy in the run folder.

The copy makes a run independent of its source, and a resume before the first checkpoint exact. With LoRA or frozen
parameters, checkpoints hold only what is trained, and the rest is read from here.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from normscope.blocks.lora import DEFAULT_TARGETS, add_lora, freeze
from normscope.errors import CheckpointError, WeightsError
from normscope.interop.files.lazy_tensors import tensor_specs
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops.finite import is_finite
from normscope.runs.checksummed_folder import ChecksummedFolder, checksums, write_folder
from normscope.runs.config import RunConfig
from normscope.storage.json_files import StrictStruct
from normscope.storage.safe_folder import SafeFolder
from normscope.storage.tensor_spec import TensorSpec
from normscope.training.config import TrainConfig

FOLDER_NAME = "initial"
_GROUP = "model"
_FILE = f"{_GROUP}.safetensors"
StoredDtype = Literal["float32", "bfloat16", "float16", "float64"]


class _State(StrictStruct):
    """Schema of state.json: the dtype of each weight."""

    dtypes: dict[str, StoredDtype]


def write_initial_weights(run_folder: SafeFolder, weights: Mapping[str, Tensor]) -> str:
    """Copy weights into a run folder, in the dtypes they have; return the checksum of the copy."""
    dtypes = {name: spec.dtype for name, spec in tensor_specs(weights).items()}
    state = {"dtypes": {name: str(dtype).removeprefix("torch.") for name, dtype in dtypes.items()}}
    folder = run_folder / FOLDER_NAME
    write_folder(folder, {_GROUP: weights}, state)
    return checksums(folder)[_FILE]


def initial_model(run_folder: SafeFolder, config: RunConfig, device: torch.device) -> GPT:
    """Build the model of a run as it is before the first step, with frozen parameters and adapters.

    Random values are drawn from torch's default generator.
    """
    if config.origin is None:
        return GPT(config.model).to(device)
    model = empty_model(config.model)
    weights = _read(run_folder, config, model)
    model.to_empty(device=device)
    model.load_state_dict(weights)
    set_trainable(model, config.train)
    return model


def empty_model(config: GPTConfig) -> GPT:
    """Build a model on the meta device, which takes no memory; raises if the sizes are impossible."""
    with torch.device("meta"):
        return GPT(config)


def set_trainable(model: GPT, train: TrainConfig) -> None:
    """Add adapters and freeze parameters as the settings of the training say."""
    if train.lora is not None:
        targets = DEFAULT_TARGETS if train.lora_targets is None else train.lora_targets.split(",")
        add_lora(model, train.lora, alpha=train.lora_alpha, dropout=train.lora_dropout, targets=targets)
    if train.freeze is not None:
        freeze(model, train.freeze.split(","))


def shortened(weights: Mapping[str, Tensor], config: GPTConfig) -> Mapping[str, Tensor]:
    """The weights for a shorter context: the table of learned positions loses its last rows."""
    if config.positions != "learned":
        return weights
    return {**weights, "position.weight": weights["position.weight"][: config.context]}


def check_weights(weights: Mapping[str, Tensor], config: GPTConfig) -> None:
    """Raise unless the weights are those of a model with this config, and finite."""
    expected = {name: tuple(tensor.shape) for name, tensor in empty_model(config).state_dict().items()}
    found = {name: tuple(weights[name].shape) for name in weights}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise WeightsError(f"the weights do not fit the model's config: {', '.join(wrong[:4])}")
    for name in weights:
        if not is_finite(weights[name]):
            raise WeightsError(f"the weight {name} has non-finite values\nfix: use another checkpoint")


def _read(run_folder: SafeFolder, config: RunConfig, model: GPT) -> dict[str, Tensor]:
    assert config.origin is not None
    folder = ChecksummedFolder(run_folder / FOLDER_NAME, fix="restore it from a copy of the run, or start a new run")
    if _FILE not in folder.files or folder.files[_FILE].sha256 != config.origin.weights_sha256:
        raise folder.source(_FILE).problem("is not the file that this run started from")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    dtypes = folder.state(_State).dtypes
    if dtypes.keys() != shapes.keys():
        raise CheckpointError(f"{folder.folder} has other weights than the model of this run")
    expected = {name: TensorSpec(shape, getattr(torch, dtypes[name])) for name, shape in shapes.items()}
    return folder.tensors(_GROUP, expected)
