"""A Hugging Face folder in transformers, loaded by AutoModelForCausalLM and AutoTokenizer."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeMissingError, RuntimeRefusalError

_LAYERS = (
    (r"(model\.embed_tokens|transformer\.wte|gpt_neox\.embed_in)", "embedding"),
    (r"(?:model\.layers|transformer\.h|gpt_neox\.layers)\.(\d+)", "blocks.{}"),
    (r"(?:model\.layers|transformer\.h|gpt_neox\.layers)\.(\d+)\.(?:self_attn|attn|attention)", "blocks.{}.attention"),
    (r"(?:model\.layers|transformer\.h|gpt_neox\.layers)\.(\d+)\.mlp", "blocks.{}.mlp"),
    (r"(model\.norm|transformer\.ln_f|gpt_neox\.final_layer_norm)", "final_norm"),
)
"""Names of modules, and of our layers with the same output."""


class TransformersRuntime:
    """A folder in transformers, computed in float32."""

    has_tokenizer = True

    def __init__(self, folder: Path) -> None:
        try:
            import transformers
        except ImportError:
            raise RuntimeMissingError("transformers is not installed\nfix: pip install transformers") from None
        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            self.model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
            )
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # it raises errors of every kind
            raise RuntimeRefusalError(f"transformers cannot load it: {error}") from error
        wrong = [f"{kind}: {', '.join(sorted(map(str, names))[:3])}" for kind, names in report.items() if names]
        if wrong:
            raise RuntimeRefusalError(f"transformers loads it in part: {'; '.join(wrong)}")
        self.model.eval()
        config = self.model.config
        self.name = f"transformers {transformers.__version__} ({type(self.model).__name__})"
        self.context, self.vocab_size = int(config.max_position_embeddings), int(config.vocab_size)
        self.precision = str(next(iter(_stored_dtypes(config)), "float32"))
        self.eos_token_id = self.model.generation_config.eos_token_id

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        with torch.inference_mode():
            found: FloatArray = self.model(torch.tensor([list(tokens)])).logits[0].float().numpy()
        return found

    def cached_logits(self, tokens: Sequence[int], prompt: int) -> FloatArray:
        new, past, found = list(tokens), None, []
        with torch.inference_mode():
            for piece in (new[:prompt], *([token] for token in new[prompt:])):
                output = self.model(torch.tensor([piece]), past_key_values=past, use_cache=True)
                past = output.past_key_values
                found.append(output.logits[0].float().numpy())
        return np.concatenate(found)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        prompt = torch.tensor([list(tokens)])
        with torch.inference_mode():
            found = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=-1,  # none: the comparison goes on past the end of a text
                pad_token_id=0,
            )
        generated: list[int] = found[0, len(tokens) :].tolist()
        return generated

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        found: dict[str, FloatArray] = {}
        with ExitStack() as hooks:
            for name, module in self.model.named_modules():
                for pattern, ours in _LAYERS:
                    match = re.fullmatch(pattern, name)
                    if match:
                        hooks.callback(
                            module.register_forward_hook(partial(_keep, found, ours.format(match[1]))).remove
                        )
            self.logits(tokens)
        return found


def _keep(found: dict[str, FloatArray], name: str, module: Any, _: Any, output: Any) -> None:
    value = output[0] if isinstance(output, tuple) else output
    if isinstance(value, torch.Tensor):
        found[name] = (value[0] if value.dim() == 3 else value).float().numpy().copy()


def _stored_dtypes(config: Any) -> list[str]:
    """The dtype of the weights in the files, if config.json says it; the model itself is float32."""
    import json

    path = Path(config._name_or_path) / "config.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [content[name] for name in ("dtype", "torch_dtype") if name in content]
