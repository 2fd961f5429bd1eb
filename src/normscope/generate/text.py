"""Text in, text out, as it is written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from normscope.blocks.checks import check_config
from normscope.checks import check_flags, check_positive_int, check_seed, short_repr
from normscope.data.tokenizers import TokenIds, Tokenizer
from normscope.errors import ConfigError, DtypeError
from normscope.generate.decoder import Weights
from normscope.generate.sampling import SamplingConfig
from normscope.generate.sequence import StoppedBy
from normscope.generate.stop_strings import StopFinder, check_stops
from normscope.generate.tokens import AT_ONCE, Generation, check_model
from normscope.models.gpt import GPT

LENGTH = 256
"""How many tokens a text gets at most, unless told otherwise."""


@dataclass(frozen=True)
class Generated:
    """A text that was written.

    Args:
        prompt: the text that it continues.
        text: the text after the prompt, up to a stop string and without it. Half a character at the end of a text
            that was cut off for its length is left out. Bytes that are no character, which only a model can write,
            are U+FFFD.
        tokens: all the tokens that were chosen, those of a stop string too, but for the token of the end.
        stopped_by: "end", the model ended it; "stop", a stop string came; "length", it got all the tokens it may have.
        notices: what happened on the way that a reader may want to know.
    """

    prompt: str
    text: str
    tokens: list[int]
    stopped_by: StoppedBy
    notices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How a text is written.

    Args:
        sampling: how a token is chosen.
        max_new_tokens: how many tokens a text gets at most.
        stop: strings that end a text.
        seed: texts of another seed are other texts.
        weights: see `Generation`.

    >>> TextSettings(stop="END").stop
    ('END',)
    """

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_new_tokens: int = LENGTH
    stop: Sequence[str] = ()
    seed: int = 0
    weights: Weights = "float32"

    def __post_init__(self) -> None:
        check_config(self.sampling, SamplingConfig, "a text")
        check_positive_int(max_new_tokens=self.max_new_tokens)
        check_seed(seed=self.seed)
        object.__setattr__(self, "stop", check_stops(self.stop))


class Writer:
    """Texts in the making: iterate to get their pieces as they come, (number of the text, piece).

    A piece is text that is whole (a character's bytes may be spread over tokens) and that is sure to stay (it does not
    begin a stop string). The pieces of a text, one after the other, are its text.

    Args:
        model, tokenizer: what writes, and what it was trained with.
        prompts: the tokens of each prompt; one of none begins where a document begins, after the end of another.
        settings: how texts are written.
        samples: how many are made from each prompt.
        at_once: how many are in the making together.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        prompts: Sequence[TokenIds],
        settings: TextSettings,
        *,
        samples: int = 1,
        at_once: int = AT_ONCE,
    ) -> None:
        self.generation = Generation(
            model,
            [prompt if len(prompt) else [tokenizer.eos_token_id] for prompt in prompts],
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling,
            seed=settings.seed,
            samples=samples,
            stop_tokens=(tokenizer.eos_token_id,),
            at_once=at_once,
            weights=settings.weights,
            vocabulary=tokenizer.vocab_size,  # a model may have more, rounded up, that are no text
        )
        rows = self.generation.rows
        self.texts = ["" for _ in rows]
        self._streams = [tokenizer.stream(after=row.tokens) for row in rows]
        self._finders = [StopFinder(settings.stop) for _ in rows]
        self._pieces = self._write()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self._pieces

    def _write(self) -> Iterator[tuple[int, str]]:
        for event in self.generation:
            stream, finder = self._streams[event.text], self._finders[event.text]
            piece = "" if event.token is None else finder.push(stream.push(event.token))
            if event.stopped_by is not None:
                piece += finder.push(stream.finish(cut=event.stopped_by == "length"))
                piece += finder.finish()
            if finder.found:
                self.generation.stop(event.text)
            if piece:
                self.texts[event.text] += piece
                yield event.text, piece


def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    samples: int = 1,
    max_new_tokens: int = LENGTH,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] | str = (),
    allow_special: bool = False,
    weights: Weights = "float32",
    stream: Callable[[int, str], None] | None = None,
    at_once: int = AT_ONCE,
) -> list[Generated]:
    """How the prompts go on, in the model's words: for each of them, one after the other, all of its samples.

    The same seed gives the same text, alone or beside others; sample i of a prompt is the same however many samples
    there are. An empty prompt begins where a document begins.

    Args:
        model: a GPT, in any mode; it is left as it was.
        tokenizer: the one that the model was trained with.
        prompts: a text, or several.
        samples: how many texts are made from each prompt.
        max_new_tokens: how many tokens a text gets at most.
        temperature, top_k, top_p, min_p, repetition_penalty: how a token is chosen: see `SamplingConfig`.
        seed: texts of another seed are other texts.
        stop: strings that end a text, before them.
        allow_special: whether the names of special tokens in a prompt stand for these: see `Tokenizer.encode`.
        weights: "bfloat16" and "int8" are rounded copies, read in half or a quarter of the time on a CPU.
        stream: is called with each piece of text as it comes: the number of the text in the list, and the piece.
        at_once: how many texts are in the making together; the others wait.

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
    settings = TextSettings(
        sampling=SamplingConfig(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        ),
        max_new_tokens=max_new_tokens,
        stop=check_stops(stop),
        seed=seed,
        weights=weights,
    )
    if stream is not None and not callable(stream):
        raise DtypeError(f"stream is a function of a text's number and a piece of it, but got {short_repr(stream)}")
    known = _checked_prompts(prompts)
    check_fit(model, tokenizer)
    check_flags(allow_special=allow_special)
    encoded = tokenizer.encode_many(known, allow_special=allow_special)
    writer = Writer(model, tokenizer, encoded, settings, samples=samples, at_once=at_once)
    for text, piece in writer:
        if stream is not None:
            stream(text, piece)
    return [
        Generated(known[row.prompt], text, row.written, row.ending, tuple(row.notices))
        for row, text in zip(writer.generation.rows, writer.texts, strict=True)
    ]


def check_fit(model: GPT, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that the model was not trained with, as far as that can be told."""
    config = check_model(model)
    if not isinstance(tokenizer, Tokenizer):
        raise DtypeError(
            f"text is read and written by a Tokenizer, but got {type(tokenizer).__name__}\n"
            f"fix: load_tokenizer(path) reads the one that the model was trained with"
        )
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model knows {config.vocab_size}\n"
            f"fix: use the tokenizer that the model was trained with"
        )
    if config.vocab_size > rounded_up(tokenizer.vocab_size):
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model knows {config.vocab_size}, more than "
            f"rounding up explains: it was trained with another tokenizer\n"
            f"fix: use the tokenizer that the model was trained with"
        )


def rounded_up(vocabulary: int) -> int:
    """The largest vocabulary that a model has for a tokenizer of this size: matrices are fast at round sizes.

    Usual are multiples of 64 or 128; the largest share in use is a hundredth (Pythia has 50,688 for 50,254).

    >>> rounded_up(50_257), rounded_up(65), rounded_up(1)
    (51262, 128, 64)
    """
    return max(-(-vocabulary // 64) * 64, vocabulary + vocabulary // 50)


def _checked_prompts(prompts: str | Sequence[str]) -> list[str]:
    if not isinstance(prompts, Iterable):
        raise DtypeError(f"prompts are texts, but got {short_repr(prompts)}\nfix: prompts=['Once upon'], for instance")
    known = [prompts] if isinstance(prompts, str) else list(prompts)
    for prompt in known:
        if not isinstance(prompt, str):
            raise DtypeError(
                f"a prompt is a str, but got {type(prompt).__name__}\nfix: for tokens there is generate_tokens()"
            )
    return known
