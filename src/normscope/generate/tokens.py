"""Tokens in, tokens out: many prompts and many samples of each, a token at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from torch import Tensor, nn

from normscope.blocks.checks import check_config
from normscope.checks import check_positive_int, check_seed, is_integer, short_repr
from normscope.data.tokenizers import TokenIds
from normscope.errors import ConfigError, DtypeError, TokenError
from normscope.generate.counter_rng import uniform
from normscope.generate.decoder import Weights
from normscope.generate.prefill_and_decode import Reader
from normscope.generate.sampling import Numbers, SamplingConfig, choose
from normscope.generate.sequence import Row, StoppedBy
from normscope.models.gpt import GPT, GPTConfig

AT_ONCE = 16
"""How many texts are in the making together, unless told otherwise: each has a cache of its own."""


MOST_TEXTS = 1_000_000
"""Of one generation: each takes some memory from the beginning."""


@dataclass(frozen=True)
class Event:
    """What happened to a text: it got a token, or it ended, or both.

    Args:
        text: the number of the text: those of the first prompt come first, in the order of their samples.
        token: the new token; None if it was a stop token, which is no part of the text.
        stopped_by: why the text ended with this; None if it goes on.
    """

    text: int
    token: int | None
    stopped_by: StoppedBy | None


@dataclass(frozen=True)
class Continuation:
    """How a prompt went on.

    Args:
        prompt, sample: which prompt of those that were given, and which of its samples.
        tokens: those that came after the prompt, without a stop token.
        stopped_by: "end" for a stop token, "length" for the most tokens that were asked for.
        notices: what happened on the way that the caller may want to know.
    """

    prompt: int
    sample: int
    tokens: list[int]
    stopped_by: StoppedBy
    notices: tuple[str, ...]


class Generation:
    """Texts in the making: iterate to get their tokens as they come.

    A text depends on the model, its prompt, the settings, the seed and the number of its sample, and on nothing else:
    not on the prompts beside it, nor on how many are written at once. (On another number of threads, or another
    machine, torch may round otherwise.) The chance for a token depends on its place in the whole text, so a text that
    is cut off and given as a prompt goes on as it would have, as long as it fits the context and no choice hangs on a
    rounding: a prompt is read at once and with the model's own weights, what is written token by token.

    Between two events the model is as it was found: in its own mode, and with gradients if they were on. No generator
    of random numbers is touched.

    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4))
    >>> generation = Generation(model, [[1, 2, 3]], max_new_tokens=20)
    >>> for event in generation:
    ...     if generation.rows[event.text].count == 5:
    ...         generation.stop(event.text)
    >>> generation.rows[0].stopped_by, len(generation.rows[0].written)
    ('stop', 5)

    Args:
        model: a GPT.
        prompts: the tokens of each prompt, one at least.
        max_new_tokens: how many tokens a text gets at most.
        sampling: how a token is chosen; None for the model's own probabilities.
        seed: texts of another seed are other texts.
        samples: how many texts are made from each prompt.
        stop_tokens: tokens that end a text.
        at_once: how many texts are in the making together; the others wait.
        vocabulary: how many tokens there are to choose from; None for all that the model has.
        weights: "bfloat16" and "int8" are rounded copies, read in half or a quarter of the time on a CPU.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[TokenIds | Tensor],
        *,
        max_new_tokens: int,
        sampling: SamplingConfig | None = None,
        seed: int = 0,
        samples: int = 1,
        stop_tokens: Sequence[int] = (),
        at_once: int = AT_ONCE,
        vocabulary: int | None = None,
        weights: Weights = "float32",
    ) -> None:
        config = check_model(model)
        if weights not in get_args(Weights):
            raise ConfigError(f"weights={weights!r}: choose one of {', '.join(get_args(Weights))}")
        vocabulary = config.vocab_size if vocabulary is None else vocabulary
        check_positive_int(max_new_tokens=max_new_tokens, samples=samples, at_once=at_once, vocabulary=vocabulary)
        check_seed(seed=seed)
        if vocabulary > config.vocab_size:
            raise ConfigError(f"vocabulary={vocabulary} is more than the model's vocab_size of {config.vocab_size}")
        sampling = SamplingConfig() if sampling is None else sampling
        check_config(sampling, SamplingConfig, "a generation")
        self._model, self._sampling, self._seed = model, sampling, int(seed)
        self._most, self._at_once = max_new_tokens, at_once
        self._context, self._vocabulary, self._weights = config.context, vocabulary, weights
        self._stop_tokens = frozenset(_checked_tokens(stop_tokens, config.vocab_size))
        if not _has_rows(prompts):
            raise DtypeError(f"prompts are rows of tokens, but got {short_repr(prompts)}\nfix: prompts=[[1, 2, 3]]")
        known = [_checked_prompt(prompt, config.vocab_size) for prompt in prompts]
        if len(known) * samples > MOST_TEXTS:
            raise ConfigError(
                f"samples={samples} of {len(known)} prompts are more than {MOST_TEXTS:,} texts\n"
                f"fix: fewer at a time; with another seed the next ones are others"
            )
        self.rows = [
            Row(
                tokens,
                prompt=prompt,
                sample=sample,
                context=config.context,
                vocabulary=vocabulary,
                ends=self._stop_tokens,
            )
            for prompt, tokens in enumerate(known)
            for sample in range(samples)
        ]
        self._events = self._write_all()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def stop(self, text: int) -> None:
        """End a text where it is: the caller found what it was looking for."""
        self.rows[text].stopped_by = "stop"

    def _write_all(self) -> Iterator[Event]:
        for first in range(0, len(self.rows), self._at_once):
            texts = range(first, min(first + self._at_once, len(self.rows)))
            going = [text for text in texts if self.rows[text].stopped_by is None]  # the caller may have stopped some
            if going:
                yield from self._write(going)

    def _write(self, texts: Sequence[int]) -> Iterator[Event]:
        """Write these texts, all together, until the last has ended."""
        rows = {text: self.rows[text] for text in texts}
        prompts = list(dict.fromkeys(row.prompt for row in rows.values()))
        firsts = [next(row for row in rows.values() if row.prompt == prompt) for prompt in prompts]
        longest = max(len(row.window) for row in firsts)
        reader = Reader(self._model, len(firsts), min(self._context, longest + self._most), self._weights)
        # Every prompt is read once, and then each of its samples has a copy of what was read.
        of_prompt = reader.read(firsts)
        copies = [prompts.index(row.prompt) for row in rows.values()]
        reader.keep(copies)
        logits = [of_prompt[i] for i in copies]
        while rows:
            for (text, row), its_logits in zip(rows.items(), logits, strict=True):
                if row.stopped_by is None:
                    yield self._draw(text, row, its_logits)
            going = [i for i, row in enumerate(rows.values()) if row.stopped_by is None]
            if len(going) < len(rows):
                reader.keep(going)
                rows = {text: row for text, row in rows.items() if row.stopped_by is None}
            logits = reader.read(list(rows.values()))

    def _draw(self, text: int, row: Row, logits: Numbers) -> Event:
        chance = uniform(self._seed, row.sample, len(row.tokens))
        seen = None if self._sampling.repetition_penalty == 1 else row.seen
        token = choose(logits[: self._vocabulary], self._sampling, chance, seen)
        if token in self._stop_tokens:
            row.stopped_by = "end"
            return Event(text, None, "end")
        row.add(token)
        if row.count == self._most:
            row.stopped_by = "length"
        return Event(text, token, row.stopped_by)


def generate_tokens(
    model: GPT,
    prompts: Sequence[TokenIds | Tensor],
    *,
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
    samples: int = 1,
    stop_tokens: Sequence[int] = (),
    at_once: int = AT_ONCE,
    vocabulary: int | None = None,
    weights: Weights = "float32",
) -> list[Continuation]:
    """How the prompts go on: for each of them, one after the other, all of its samples.

    The arguments are those of `Generation`, which gives the tokens as they come.

    >>> from normscope.models.presets import llama
    >>> model = GPT(llama(vocab_size=65, context=32, depth=2, width=64, heads=4))
    >>> found = generate_tokens(model, [[1, 2, 3], [4]], max_new_tokens=5, samples=2)
    >>> [(text.prompt, text.sample, len(text.tokens), text.stopped_by) for text in found]
    [(0, 0, 5, 'length'), (0, 1, 5, 'length'), (1, 0, 5, 'length'), (1, 1, 5, 'length')]
    """
    generation = Generation(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
        samples=samples,
        stop_tokens=stop_tokens,
        at_once=at_once,
        vocabulary=vocabulary,
        weights=weights,
    )
    for _ in generation:
        pass
    return [
        Continuation(row.prompt, row.sample, row.written, row.ending, tuple(row.notices)) for row in generation.rows
    ]


def check_model(model: object) -> GPTConfig:
    """Refuse what is not a GPT; one that was compiled is welcome."""
    config = getattr(model, "config", None)
    if not isinstance(config, GPTConfig):
        raise ConfigError(f"text is generated by a GPT, but got {type(model).__name__}\nfix: GPT(config) makes one")
    if isinstance(model, nn.Module) and any(weight.is_meta for weight in model.parameters()):
        raise ConfigError("the model's weights are on the meta device, which has no numbers\nfix: load them first")
    return config


def _has_rows(prompts: object) -> bool:
    if isinstance(prompts, Tensor | np.ndarray):
        return prompts.ndim > 0
    return isinstance(prompts, Sequence) and not isinstance(prompts, str)


def _checked_prompt(tokens: object, vocabulary: int) -> list[int]:
    known = _checked_tokens(tokens, vocabulary)
    if not known:
        raise ConfigError("a prompt has no tokens\nfix: start with tokenizer.eos_token_id")
    return known


def _checked_tokens(tokens: object, vocabulary: int) -> list[int]:
    """Refuse what is not a row of the model's tokens."""
    if isinstance(tokens, Tensor):
        if tokens.is_floating_point() or tokens.is_complex():
            raise DtypeError(f"tokens are whole numbers, but got a tensor of {tokens.dtype}\nfix: tokens.long()")
        try:
            tokens = tokens.cpu().numpy()
        except (TypeError, RuntimeError) as error:  # sparse, nested, quantized, or without numbers
            raise DtypeError(
                f"tokens are a row of whole numbers, but got a tensor that numpy cannot hold: {error}\n"
                f"fix: prompts=[[1, 2, 3]], a row of token ids for each prompt"
            ) from error
    if isinstance(tokens, str):
        raise DtypeError(
            "tokens are a row of whole numbers, but got str\nfix: encode text first, or use generate_text()"
        )
    if not isinstance(tokens, Sequence) and not (isinstance(tokens, np.ndarray) and tokens.ndim == 1):
        raise DtypeError(
            f"tokens are a row of whole numbers, but got {type(tokens).__name__}\n"
            f"fix: prompts=[[1, 2, 3]], a row of token ids for each prompt"
        )
    known = list(tokens)
    for token in known:
        if not is_integer(token, least=-(2**63)):
            raise DtypeError(f"tokens are whole numbers, but got {token!r:.80}\nfix: give each prompt as a row of ids")
        if not 0 <= int(token) < vocabulary:
            raise TokenError(f"token id {token} is not in the vocabulary: the model has the ids 0 to {vocabulary - 1}")
    return [int(token) for token in known]
