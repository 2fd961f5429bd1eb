"""Hugging Face models that take more than text, and the text model in each: one table.

To add one, add an entry to `TEXT_PARTS`. What the model has for images or sound is left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from normscope.errors import WeightsError
from normscope.interop.files.lazy_tensors import LazyTensors, tensor_specs
from normscope.interop.huggingface.settings import Settings

_SHARED = ("eos_token_id", "tie_word_embeddings", "quantization_config")
"""Settings of the whole model that are those of its text part."""


@dataclass(frozen=True)
class TextPart:
    """The text model in a model.

    Args:
        family: its model_type.
        defaults: its settings where text_config lacks them: files have only what differs from transformers' defaults.
        prefixes: how the names of its weights start, and how they start in the family.
        left_out: a regular expression for the names of all other weights.
        kinds: what is left out, for the notice.
    """

    family: str
    defaults: Mapping[str, Any]
    prefixes: Mapping[str, str]
    left_out: str
    kinds: str


TEXT_PARTS = {
    "gemma3": TextPart(
        family="gemma3_text",
        defaults={
            "vocab_size": 262208, "max_position_embeddings": 131072, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        },
        prefixes={
            "language_model.model.": "model.",  # in the files of Google and of save_pretrained
            "language_model.lm_head.": "lm_head.",
            "model.language_model.": "model.",  # in a state_dict
            "lm_head.": "lm_head.",
        },
        left_out=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
        kinds="images",
    ),
}  # fmt: skip
"""By model_type."""


class TextModel(NamedTuple):
    """The settings and weights of a text model, and notices for the user."""

    settings: Settings
    weights: Mapping[str, Tensor]
    notices: tuple[str, ...] = ()


def text_model(settings: Settings, weights: Mapping[str, Tensor]) -> TextModel:
    """Return the text part of a model that has more; any other model as it is."""
    kind = settings.get("model_type")
    part = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if part is None:
        return TextModel(settings, weights)
    own = settings.get("text_config") or {}
    if not isinstance(own, Mapping) or own.get("model_type", part.family) != part.family:
        raise WeightsError(f"unsupported setting text_config={own!r:.80}: expected that of a {part.family}")
    shared = {name: settings[name] for name in _SHARED if name in settings}
    names = {new: name for name in weights if (new := _renamed(name, part)) is not None}
    specs = tensor_specs(weights)
    return TextModel(
        {**part.defaults, **own, **shared, "model_type": part.family},
        LazyTensors({new: specs[name] for new, name in names.items()}, lambda new: weights[names[new]]),
        (f"only the text part of the {kind} model is read: its weights for {part.kinds} are left out",),
    )


def _renamed(name: str, part: TextPart) -> str | None:
    """The name of a weight in the family; None for one that is left out."""
    if re.fullmatch(part.left_out, name):
        return None
    start = next((start for start in part.prefixes if name.startswith(start)), "")
    return part.prefixes.get(start, "") + name.removeprefix(start)
