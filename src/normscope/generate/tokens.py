"""Token-level generation: batches of prompts, several samples each, streamed token by token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from normscope.checks import check_positive_int, is_integer, short_repr
from normscope.data.tokenizers import TokenIds
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, TokenError
from normscope.generate.config import GenerationConfig, make_config
from normscope.generate.model_runner import ModelRunner
from normscope.generate.sampling import FloatArray, sample_token, uniform
from normscope.generate.sequence import FinishReason, TokenSequence
from normscope.models.gpt import GPT, GPTConfig

MAX_SEQUENCES = 1_000_000
"""Limit per call: every sequence takes some memory up front."""


@dataclass(frozen=True)
class TokenEvent:
    """A sequence got a token, or finished, or both.

    Args:
        sequence: index of the sequence: all samples of the first prompt come first.
        token: the new token; None for a stop token, which is not part of the output.
        finish_reason: why the sequence finished; None while it continues.
        logits: the model's logits that the token was sampled from, (vocabulary) in float64, before the repetition
            penalty and the temperature; `sampling.probabilities` applies them.
    """

    sequence: int
    token: int | None
    finish_reason: FinishReason | None
    logits: FloatArray = field(repr=False, compare=False)


@dataclass(frozen=True)
class GeneratedTokens:
    """The generated continuation of a prompt.

    Args:
        prompt: index of the prompt.
        sample: index of the sample of this prompt.
        tokens: the generated tokens, without a stop token.
        finish_reason: "stop_token", or "length" if max_new_tokens was reached.
        notices: messages for the user, such as a truncated prompt.
    """

    prompt: int
    sample: int
    tokens: list[int]
    finish_reason: FinishReason
    notices: tuple[str, ...]


class Generation:
    """A streaming generation: iterate to receive tokens as they are sampled.

    A sequence depends only on the model, its prompt, the settings, the seed and its sample index, never on the other
    prompts or on the batch size. (With another number of threads, or on another machine, torch may round differently.)
    The random number for a token depends on its position, so a text that is cut off and passed as a prompt continues
    as it would have, as long as it fits the context and no choice depends on rounding: a prompt is prefilled in one
    pass with the original weights, while generated tokens are decoded one by one.

    Between two events the model is in its original mode, with gradients as before. No global rng is used.

    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4))
    >>> generation = Generation(model, [[1, 2, 3]], max_new_tokens=20)
    >>> for event in generation:
    ...     if generation.sequences[event.sequence].num_generated == 5:
    ...         generation.stop(event.sequence)
    >>> generation.sequences[0].finish_reason, len(generation.sequences[0].generated_tokens)
    ('stop', 5)

    Args:
        model: a GPT.
        prompts: token ids of each prompt, at least one token each.
        config: generation settings; its stop strings are left to the caller.
        stop_tokens: tokens that finish a sequence.
        vocabulary: sample only from the first so many token ids; None for all of the model.
        settings: fields of `GenerationConfig` to replace, for instance temperature=0.8.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[TokenIds | Tensor],
        config: GenerationConfig | None = None,
        *,
        stop_tokens: Sequence[int] = (),
        vocabulary: int | None = None,
        **settings: Any,
    ) -> None:
        size = check_model(model)
        self._model, self._config, self._context = model, make_config(config, settings), size.context
        self._vocabulary = size.vocab_size if vocabulary is None else vocabulary
        check_positive_int(vocabulary=self._vocabulary)
        if self._vocabulary > size.vocab_size:
            raise ConfigError(f"vocabulary={vocabulary} exceeds vocab_size={size.vocab_size} of the model")
        self._stop_tokens = frozenset(_check_tokens(stop_tokens, size.vocab_size))
        if not _is_list_of_prompts(prompts):
            raise ArgumentTypeError(
                f"prompts must be token id lists, but got {short_repr(prompts)}\nfix: prompts=[[1, 2, 3]]"
            )
        checked, samples = [_check_tokens(prompt, size.vocab_size) for prompt in prompts], self._config.samples
        if not all(checked):
            raise ConfigError("a prompt is empty\nfix: start with tokenizer.eos_token_id")
        if len(checked) * samples > MAX_SEQUENCES:
            raise ConfigError(
                f"samples={samples} for {len(checked)} prompts exceeds the limit of {MAX_SEQUENCES:,} sequences\n"
                f"fix: generate fewer per call, and use another seed for each call"
            )
        limits = {"context": self._context, "vocabulary": self._vocabulary}
        self.sequences = [
            TokenSequence(tokens, prompt=prompt, sample=sample, stop_tokens=self._stop_tokens, **limits)
            for prompt, tokens in enumerate(checked)
            for sample in range(samples)
        ]
        self._events = self._generate_all()

    def __iter__(self) -> Iterator[TokenEvent]:
        return self._events

    def stop(self, sequence: int) -> None:
        """Finish a sequence early, for example at a stop string."""
        self.sequences[sequence].finish_reason = "stop"

    def _generate_all(self) -> Iterator[TokenEvent]:
        size = self._config.batch_size
        for first in range(0, len(self.sequences), size):
            indices = range(first, min(first + size, len(self.sequences)))
            active = [i for i in indices if self.sequences[i].finish_reason is None]  # the caller may have stopped some
            if active:
                yield from self._generate_batch(active)

    def _generate_batch(self, indices: Sequence[int]) -> Iterator[TokenEvent]:
        """Generate these sequences together until the last has finished."""
        batch = {i: self.sequences[i] for i in indices}
        prompts = list(dict.fromkeys(sequence.prompt for sequence in batch.values()))
        firsts = [next(sequence for sequence in batch.values() if sequence.prompt == prompt) for prompt in prompts]
        longest = max(len(sequence.window) for sequence in firsts)
        capacity = min(self._context, longest + self._config.max_new_tokens)
        runner = ModelRunner(self._model, len(firsts), capacity, self._config.weights)
        # Prefill each prompt once, then copy its cache for each of its samples.
        prompt_logits = runner.next_logits(firsts)
        copies = [prompts.index(sequence.prompt) for sequence in batch.values()]
        runner.select(copies)
        logits = [prompt_logits[i] for i in copies]
        while batch:
            for (i, sequence), row in zip(batch.items(), logits, strict=True):
                if sequence.finish_reason is None:
                    yield self._sample(i, sequence, row)
            active = [row for row, sequence in enumerate(batch.values()) if sequence.finish_reason is None]
            if len(active) < len(batch):
                runner.select(active)
                batch = {i: sequence for i, sequence in batch.items() if sequence.finish_reason is None}
            logits = runner.next_logits(list(batch.values()))

    def _sample(self, index: int, sequence: TokenSequence, logits: FloatArray) -> TokenEvent:
        u = uniform(self._config.seed, sequence.sample, len(sequence.tokens))
        seen = None if self._config.repetition_penalty == 1 else sequence.seen
        logits = logits[: self._vocabulary]
        token = sample_token(logits, self._config, u, seen)
        if token in self._stop_tokens:
            sequence.finish_reason = "stop_token"
            return TokenEvent(index, None, "stop_token", logits)
        sequence.append(token)
        if sequence.num_generated == self._config.max_new_tokens:
            sequence.finish_reason = "length"
        return TokenEvent(index, token, sequence.finish_reason, logits)


def generate_tokens(
    model: GPT,
    prompts: Sequence[TokenIds | Tensor],
    config: GenerationConfig | None = None,
    *,
    stop_tokens: Sequence[int] = (),
    vocabulary: int | None = None,
    **settings: Any,
) -> list[GeneratedTokens]:
    """Generate continuations of token prompts: all samples of the first prompt, then of the second, and so on.

    Takes the arguments of `Generation`, which streams the tokens: `settings` are fields of `GenerationConfig`.

    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4))
    >>> outputs = generate_tokens(model, [[1, 2, 3], [4]], max_new_tokens=5, samples=2)
    >>> [(one.prompt, one.sample, len(one.tokens), one.finish_reason) for one in outputs]
    [(0, 0, 5, 'length'), (0, 1, 5, 'length'), (1, 0, 5, 'length'), (1, 1, 5, 'length')]
    """
    config = make_config(config, settings)
    if config.stop:
        raise ConfigError("stop strings need a tokenizer\nfix: use generate_text(), or stop_tokens=...")
    generation = Generation(model, prompts, config, stop_tokens=stop_tokens, vocabulary=vocabulary)
    for _ in generation:
        pass
    return [
        GeneratedTokens(one.prompt, one.sample, one.generated_tokens, one.final_finish_reason, tuple(one.notices))
        for one in generation.sequences
    ]


def check_model(model: object) -> GPTConfig:
    """Refuse anything but a GPT (compiled or not) with real weights; return its config."""
    config = getattr(model, "config", None)
    if not isinstance(config, GPTConfig):
        raise ConfigError(f"model must be a GPT, but got {type(model).__name__}\nfix: model = GPT(config)")
    if isinstance(model, nn.Module) and any(weight.is_meta for weight in model.parameters()):
        raise ConfigError("the model is on the meta device, which holds no values\nfix: load the weights first")
    return config


def _is_list_of_prompts(prompts: object) -> bool:
    if isinstance(prompts, Tensor | np.ndarray):
        return prompts.ndim > 0
    return isinstance(prompts, Sequence) and not isinstance(prompts, str)


def _check_tokens(tokens: object, vocabulary: int) -> list[int]:
    """Refuse anything but a list of valid token ids."""
    if isinstance(tokens, Tensor):
        if tokens.is_floating_point() or tokens.is_complex():
            raise DtypeError(f"token ids must be integers, but got a tensor of {tokens.dtype}\nfix: tokens.long()")
        try:
            tokens = tokens.cpu().numpy()
        except (TypeError, RuntimeError) as error:  # sparse, nested, quantized, or on the meta device
            raise DtypeError(
                f"token ids must be integers, but got a tensor that cannot be converted to numpy: {error}\n"
                f"fix: prompts=[[1, 2, 3]]"
            ) from error
    if isinstance(tokens, str):
        raise ArgumentTypeError("token ids must be integers, but got str\nfix: encode the text, or use generate_text()")
    if not isinstance(tokens, Sequence) and not (isinstance(tokens, np.ndarray) and tokens.ndim == 1):
        raise ArgumentTypeError(
            f"a prompt must be a list of token ids, but got {type(tokens).__name__}\nfix: prompts=[[1, 2, 3]]"
        )
    for token in tokens:
        if not is_integer(token, least=-(2**63)):
            raise ArgumentTypeError(f"token ids must be integers, but got {token!r:.80}\nfix: prompts=[[1, 2, 3]]")
        if not 0 <= int(token) < vocabulary:
            raise TokenError(f"token id {token} is out of range: the vocabulary of the model is 0 to {vocabulary - 1}")
    return [int(token) for token in tokens]
