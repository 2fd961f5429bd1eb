"""Text-level generation: prompts in, streamed text out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.checks import check_flags, short_repr
from normscope.data.tokenizers import TokenIds, Tokenizer
from normscope.errors import ArgumentTypeError, ConfigError
from normscope.generate.config import GenerationConfig, make_config
from normscope.generate.sequence import FinishReason
from normscope.generate.stop_strings import StopStringFilter
from normscope.generate.tokens import Generation, check_model
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class GeneratedText:
    """A generated text.

    Args:
        prompt: the prompt that it continues.
        text: the generated text, without the prompt and up to a stop string. An incomplete character at the end of a
            text that reached max_new_tokens is dropped; invalid UTF-8 becomes U+FFFD.
        tokens: all generated tokens, including those of a stop string, without a stop token.
        finish_reason: "stop_token" (end of text), "stop" (a stop string) or "length" (max_new_tokens reached).
        notices: messages for the user, such as a truncated prompt.
    """

    prompt: str
    text: str
    tokens: list[int]
    finish_reason: FinishReason
    notices: tuple[str, ...]


class TextGeneration:
    """A streaming text generation: iterate to receive (sequence index, piece of text).

    A piece contains only complete characters and text that is not part of a stop string. The pieces of a sequence
    concatenate to its text.

    Args:
        model: a GPT.
        tokenizer: the tokenizer that the model was trained with.
        prompts: token ids of each prompt; an empty one starts at the beginning of a document.
        config: generation settings.
        stop_tokens: tokens that end a text, besides the end-of-text token.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        prompts: Sequence[TokenIds],
        config: GenerationConfig,
        stop_tokens: Sequence[int] = (),
    ) -> None:
        starts = [prompt if len(prompt) else [tokenizer.start_token_id] for prompt in prompts]
        stop = (tokenizer.eos_token_id, *stop_tokens) if tokenizer.has_eos else stop_tokens
        # The model's vocabulary may be padded to a larger one.
        self.generation = Generation(model, starts, config, stop_tokens=stop, vocabulary=tokenizer.vocab_size)
        sequences = self.generation.sequences
        self.texts = ["" for _ in sequences]
        self._streams = [tokenizer.stream(after=sequence.tokens) for sequence in sequences]
        self._filters = [StopStringFilter(config.stop) for _ in sequences]
        self._pieces = self._generate()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self._pieces

    def _generate(self) -> Iterator[tuple[int, str]]:
        for event in self.generation:
            stream, stop_filter = self._streams[event.sequence], self._filters[event.sequence]
            piece = "" if event.token is None else stop_filter.push(stream.push(event.token))
            if event.finish_reason is not None:
                piece += stop_filter.push(stream.finish(cut=event.finish_reason == "length"))
                piece += stop_filter.finish()
            if stop_filter.found:
                self.generation.stop(event.sequence)
            if piece:
                self.texts[event.sequence] += piece
                yield event.sequence, piece


def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    config: GenerationConfig | None = None,
    *,
    allow_special: bool = False,
    stream: Callable[[int, str], None] | None = None,
    **settings: Any,
) -> list[GeneratedText]:
    """Generate text from prompts: all samples of the first prompt, then of the second, and so on.

    The same seed gives the same text, alone or in any batch; sample i of a prompt does not depend on the number of
    samples. An empty prompt starts at the beginning of a document.

    Args:
        model: a GPT, in train or eval mode; the mode is left unchanged.
        tokenizer: the tokenizer that the model was trained with.
        prompts: one prompt or a list of prompts.
        config: generation settings.
        allow_special: parse special tokens such as <|endoftext|> in prompts: see `Tokenizer.encode`.
        stream: callback for each piece of text as it is generated: stream(index, piece).
        settings: fields of `GenerationConfig` to replace: temperature, top_p, max_new_tokens, stop, samples, seed, ...

    >>> from normscope.data.tokenizers import CharacterTokenizer
    >>> from normscope.models.presets import llama
    >>> tokenizer = CharacterTokenizer.of(["hello world"])
    >>> model = GPT(llama(vocab_size=tokenizer.vocab_size, context=32, depth=2, width=64, heads=4))
    >>> texts = generate_text(model, tokenizer, ["hello ", "world"], samples=2, max_new_tokens=8, stop=["ll"])
    >>> [text.prompt for text in texts]
    ['hello ', 'hello ', 'world', 'world']
    >>> texts[3] == generate_text(model, tokenizer, "world", samples=2, max_new_tokens=8, stop=["ll"])[1]
    True
    """
    config = make_config(config, settings)
    if stream is not None and not callable(stream):
        raise ArgumentTypeError(f"stream must be callable as stream(index, piece), but got {short_repr(stream)}")
    prompts = _check_prompts(prompts)
    check_tokenizer_matches(model, tokenizer)
    check_flags(allow_special=allow_special)
    encoded = tokenizer.encode_many(prompts, allow_special=allow_special)
    generation = TextGeneration(model, tokenizer, [tokenizer.with_start(ids) for ids in encoded], config)
    for index, piece in generation:
        if stream is not None:
            stream(index, piece)
    return [
        GeneratedText(prompts[one.prompt], text, one.generated_tokens, one.final_finish_reason, tuple(one.notices))
        for one, text in zip(generation.generation.sequences, generation.texts, strict=True)
    ]


def check_tokenizer_matches(model: GPT, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer whose vocabulary does not match the model."""
    config = check_model(model)
    fix = "use the tokenizer that the model was trained with"
    if not isinstance(tokenizer, Tokenizer):
        raise ArgumentTypeError(
            f"tokenizer must be a Tokenizer, but got {type(tokenizer).__name__}\nfix: tokenizer = load_tokenizer(path)"
        )
    sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has vocab_size={config.vocab_size}"
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(f"{sizes}\nfix: {fix}")
    if config.vocab_size > largest_padded_vocabulary(tokenizer.vocab_size):
        raise ConfigError(f"{sizes}, a difference too large for padding\nfix: {fix}")


def largest_padded_vocabulary(vocabulary: int) -> int:
    """The largest vocab_size that a model plausibly has for a tokenizer of this size: many pad it for fast matmuls.

    Multiples of 64 or 128 are common; the largest padding in use is about 1% (Pythia: 50,688 for 50,254).

    >>> largest_padded_vocabulary(50_257), largest_padded_vocabulary(65), largest_padded_vocabulary(1)
    (51262, 128, 64)
    """
    return max(-(-vocabulary // 64) * 64, vocabulary + vocabulary // 50)


def _check_prompts(prompts: str | Sequence[str]) -> list[str]:
    if not isinstance(prompts, Iterable):
        raise ArgumentTypeError(f"prompts must be strings, but got {short_repr(prompts)}\nfix: prompts=['Once upon']")
    checked = [prompts] if isinstance(prompts, str) else list(prompts)
    for prompt in checked:
        if not isinstance(prompt, str):
            raise ArgumentTypeError(
                f"a prompt must be a str, but got {type(prompt).__name__}\nfix: use generate_tokens() for token ids"
            )
    return checked
