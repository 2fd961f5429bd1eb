"""`Runtime`: a model in a tool that can run it. `GPTRuntime` is ours; an exporter adds one for its target."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.data.tokenizers import Tokenizer
from normscope.errors import ConfigError
from normscope.generate.model_runner import eval_inference_mode
from normscope.generate.tokens import generate_tokens
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPT

FloatArray = NDArray[np.float32]


class Runtime(Protocol):
    """A model in a tool that can run it.

    Attributes:
        name: what messages call it, such as "llama.cpp".
        context: longest sequence.
        vocab_size: number of logits of a position.
        precision: coarsest format of its weights or sums, a key of `TOLERANCES` in any case, such as "Q8_0".
        has_tokenizer: whether it can encode and decode.
    """

    name: str
    context: int
    vocab_size: int
    precision: str
    has_tokenizer: bool

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        """Return the logits of the next token at each position, (s, vocab_size)."""
        ...

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the `count` most likely next tokens, one after the other, past any end of text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Encode a text without adding or parsing special tokens; raise an error if it cannot be encoded."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        """Return the outputs of layers, (s, features), by our names ("embedding", "blocks.0"), in the order of
        execution. Empty if the tool does not show them."""
        ...


@runtime_checkable
class CachingRuntime(Runtime, Protocol):
    """A runtime that shows the logits that it decodes with."""

    def cached_logits(self, tokens: Sequence[int], prompt: int) -> FloatArray:
        """Return what `logits` does, computed as in decoding: the first `prompt` tokens at once, then one by one."""
        ...


class GPTRuntime:
    """A GPT of normscope, computed in float32.

    >>> from normscope.models.presets import llama
    >>> runtime = GPTRuntime(GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4)))
    >>> runtime.logits([1, 2, 3]).shape, runtime.layers([1, 2, 3])["blocks.0.attention"].shape
    ((3, 65), (3, 64))
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer | None = None, name: str = "normscope") -> None:
        self.name, self.tokenizer = name, tokenizer
        self.precision = coarsest_precision(model)
        self.model = in_float32(model)
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self.has_tokenizer = tokenizer is not None

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        with eval_inference_mode(list(self.model.modules())):
            found: FloatArray = self.model(_batch(tokens, self.model))[0].cpu().numpy()
        return found

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        (found,) = generate_tokens(self.model, [list(tokens)], temperature=0.0, max_new_tokens=count)
        return found.tokens

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer().encode(text).tolist()
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer().decode(list(tokens))

    def layers(self, tokens: Sequence[int]) -> dict[str, FloatArray]:
        found: dict[str, FloatArray] = {}
        with ExitStack() as hooks, eval_inference_mode(list(self.model.modules())):
            for name, module in self.model.named_modules():
                if name and not isinstance(module, nn.Dropout):
                    hooks.callback(module.register_forward_hook(partial(_keep, found, name)).remove)
            self.model(_batch(tokens, self.model))
        return found

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError(f"{self.name} has no tokenizer\nfix: compare it by token ids only")
        return self.tokenizer


def _keep(found: dict[str, FloatArray], name: str, module: nn.Module, _: Any, output: Any) -> None:
    """Keep the output of a module for one text, (s, features)."""
    if isinstance(output, Tensor) and output.dim() >= 3 and output.shape[0] == 1:
        found[name] = output[0].flatten(1).float().cpu().numpy().copy()


def _batch(tokens: Sequence[int], model: GPT) -> Tensor:
    return torch.tensor([list(tokens)], device=model.embedding.weight.device)


def in_float32(model: GPT) -> GPT:
    """Return the model with float32 weights: itself if it has, otherwise a converted one."""
    weights = model.state_dict()
    if all(value.dtype == torch.float32 for value in weights.values() if value.is_floating_point()):
        return model
    converted = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    return model_from_weights(model.config, converted)


def coarsest_precision(model: GPT) -> str:
    """The name of the coarsest dtype of the weights, such as "bfloat16"."""
    dtypes = {value.dtype for value in model.parameters() if value.is_floating_point()}
    return str(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)).removeprefix("torch.")
