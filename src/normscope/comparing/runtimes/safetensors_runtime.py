"""A folder with weights by our names, read back with the safetensors library."""

import json
from pathlib import Path

from torch import Tensor

from normscope.comparing.runtime import GPTRuntime
from normscope.comparing.runtimes import RuntimeRefusalError
from normscope.data.tokenizers import load_tokenizer
from normscope.errors import NormscopeError
from normscope.interop.checkpoint import model_from_weights
from normscope.models.config_json import config_from_json


class SafetensorsRuntime(GPTRuntime):
    """The model of such a folder, in normscope."""

    def __init__(self, folder: Path) -> None:
        import safetensors
        from safetensors.torch import load_file

        try:
            weights: dict[str, Tensor] = {}
            for path in sorted(folder.glob("*.safetensors")):
                weights |= load_file(path)
            config = config_from_json(json.loads((folder / "config.json").read_text()))
            model, tokenizer = model_from_weights(config, weights), load_tokenizer(folder)
        except (OSError, ValueError, NormscopeError, safetensors.SafetensorError) as error:
            raise RuntimeRefusalError(f"it cannot be read back: {error}") from error
        super().__init__(model, tokenizer, f"safetensors {safetensors.__version__}")
        self.eos_token_id = tokenizer.eos_token_id if tokenizer.has_eos else None
