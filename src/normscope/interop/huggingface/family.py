"""A Hugging Face model family as a table: its settings and weights in terms of ours, in both directions.

Every setting in a config.json is accounted for: read, harmless, required to have one value, or refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from normscope.errors import WeightsError
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.huggingface.settings import HARMLESS, Setting, Settings
from normscope.interop.huggingface.weight_table import WeightTable
from normscope.models.gpt import GPTConfig


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        model_type: its name in config.json.
        architecture: its class with a language model head.
        fixed: the fields of `GPTConfig` that all its models share.
        settings: its settings, and the fields of `GPTConfig` that they are.
        weights: the names of its weights.
        required: settings with a single supported value, which is also the default.
        harmless: settings of this family that do not change the logits.
    """

    model_type: str
    architecture: str
    fixed: Mapping[str, Any]
    settings: tuple[Setting, ...]
    weight_table: WeightTable
    required: Mapping[str, Any] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()

    def read_config(self, settings: Settings) -> GPTConfig:
        """Return the config of a config.json; settings that are not supported are refused by name."""
        self._check_settings(settings)
        fields = dict(self.fixed)
        for setting in self.settings:
            fields |= setting.read(settings)
        return GPTConfig(**fields)

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        """Return the contents of config.json, for a config that `closest` returns unchanged.

        Ids of special tokens are the tokenizer's. The one for padding is null: the default of some families is outside
        of a small vocabulary.
        """
        written: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.architecture]}
        written["pad_token_id"] = None
        for setting in self.settings:
            written |= setting.write(config)
        return written

    def closest(self, config: GPTConfig) -> GPTConfig:
        """Return the config of this family's model that is the most like another: that of its config.json."""
        return self.read_config(self.write_config(config))

    def weights(self, config: GPTConfig, theirs: Mapping[str, Tensor]) -> LazyTensors:
        """Return our weights, each converted when it is looked up, in the dtype in which it is stored.

        Gains that are stored as their difference from one become float32: in bfloat16 the sum would be rounded.
        """
        return self.weight_table.to_ours(config, theirs)

    def to_theirs(self, config: GPTConfig, ours: Mapping[str, Tensor]) -> LazyTensors:
        """Return the weights of this family, each converted when it is looked up."""
        return self.weight_table.to_theirs(config, ours)

    def _check_settings(self, settings: Settings) -> None:
        read = {name for setting in self.settings for name in setting.names}
        known = read | self.harmless | HARMLESS
        for name, value in settings.items():
            if name in self.required:
                if value != self.required[name]:
                    raise WeightsError(f"unsupported setting {name}={value!r}: expected {self.required[name]!r}")
            elif name not in known and not name.startswith("_") and value:  # None, False, 0 and {}: not in use
                raise WeightsError(
                    f"unsupported setting {name}={value!r:.80}: not known for the model_type {self.model_type!r}\n"
                    f"fix: remove it from config.json, if the model does not depend on it"
                )
