"""Write the adapters of a run as a folder that peft loads onto the model that the run started from."""

import tempfile
from dataclasses import replace
from pathlib import Path

from normscope.blocks.lora import is_adapter
from normscope.comparing.runtimes.peft_runtime import PeftRuntime
from normscope.errors import ConfigError
from normscope.exporting.huggingface.write import check_huggingface, write_huggingface
from normscope.exporting.model_source import ModelSource
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.huggingface.families import families
from normscope.interop.huggingface.family import Family
from normscope.interop.huggingface.text_parts import TEXT_PARTS
from normscope.interop.peft import write_peft
from normscope.models.gpt import GPT


def check_peft(source: ModelSource) -> None:
    """Raise a ConfigError if the run has no adapters, or transformers has no architecture for its model."""
    if source.adapted is None:
        raise ConfigError(
            f"{source.name} has no LoRA adapters\nfix: --to hf for all weights, or train with --lora RANK"
        )
    kind = source.base_format.rpartition("Hugging Face ")[2]
    if kind in TEXT_PARTS:
        raise ConfigError(
            f"{source.name} was trained on the text part of a {kind} model, whose layers have other names in peft\n"
            f"fix: --to hf for all weights"
        )
    check_huggingface(source)


def write_adapter(source: ModelSource, weights: str, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors into an empty folder."""
    assert source.adapted is not None
    write_peft(source.adapted, folder, source.base, _base_family(source))


def open_adapter(source: ModelSource, weights: str, folder: Path) -> PeftRuntime:
    """Load the adapter with peft, onto the base model that transformers loads from an export of it."""
    assert source.adapted is not None
    with tempfile.TemporaryDirectory(prefix="normscope-base-") as base:
        of_base = replace(source, model=_base_model(source.adapted))
        write_huggingface(of_base, "stored", Path(base), _base_family(source))
        return PeftRuntime(folder, Path(base))


def _base_family(source: ModelSource) -> Family | None:
    """The family of the model that the run started from: two may compute the same with layers of other names."""
    return families().get(source.base_format.rpartition("Hugging Face ")[2])


def _base_model(adapted: GPT) -> GPT:
    """The model without its adapters."""
    weights = {name: tensor for name, tensor in adapted.state_dict().items() if not is_adapter(name)}
    return model_from_weights(adapted.config, weights)
