"""The settings of a generation: how tokens are sampled, and when a text ends."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from normscope import checks
from normscope.errors import ArgumentTypeError, ConfigError

WeightFormat = Literal["float32", "bfloat16", "int8"]
OFF = "off"
"""A disabled filter, as text."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Settings of a generation.

    Sampling applies the repetition penalty, temperature, top-k, top-p and min-p in this order (see `sampling`).

    Args:
        max_new_tokens: maximum number of generated tokens per text.
        temperature: divide the logits by this value; lower values make likely tokens more likely. 0 is greedy decoding
            (ties go to the lowest token id), for which top-k, top-p and min-p do nothing.
        top_k: keep only the k most likely tokens. (Fan et al. 2018, "Hierarchical Neural Story Generation")
        top_p: keep the smallest set of most likely tokens whose total probability is at least this value. (Holtzman et
            al. 2020, "The Curious Case of Neural Text Degeneration")
        min_p: keep tokens whose probability is at least this fraction of the most likely token's. (Nguyen et al. 2024,
            "Turning Up the Heat: Min-p Sampling")
        repetition_penalty: divide positive and multiply negative logits of tokens that already occur by this value; 1
            disables it. (Keskar et al. 2019, "CTRL")
        stop: stop strings; the text ends before the first match.
        seed: random seed for sampling.
        samples: number of samples per prompt.
        batch_size: number of sequences generated at the same time. Each has its own KV cache.
        weights: "bfloat16" and "int8" decode from rounded copies, in half or a quarter of the memory traffic (CPU).

    >>> GenerationConfig(temperature=0.8, top_k=50, stop="END").stop
    ('END',)
    >>> GenerationConfig(top_p=1.5)
    Traceback (most recent call last):
    normscope.errors.ConfigError: top_p=1.5 must be above 0 and at most 1
    fix: use a value such as top_p=0.95, or omit it to disable the filter
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    stop: Sequence[str] | str = ()
    seed: int = 0
    samples: int = 1
    batch_size: int = 16
    weights: WeightFormat = "float32"

    def __post_init__(self) -> None:
        checks.check_positive_int(max_new_tokens=self.max_new_tokens, samples=self.samples, batch_size=self.batch_size)
        checks.check_seed(seed=self.seed)
        if not (checks.is_number(self.temperature) and 0 <= self.temperature < float("inf")):
            raise ConfigError(
                f"temperature={self.temperature!r} must be a finite number, 0 or above\n"
                f"fix: use 1.0 for the probabilities of the model, or 0 for greedy decoding"
            )
        if self.top_k is not None:
            checks.check_positive_int(top_k=self.top_k)
        for name, example in (("top_p", 0.95), ("min_p", 0.05)):
            share = getattr(self, name)
            if share is not None and not (checks.is_number(share) and 0 < share <= 1):
                raise ConfigError(
                    f"{name}={share!r} must be above 0 and at most 1\n"
                    f"fix: use a value such as {name}={example}, or omit it to disable the filter"
                )
        checks.check_positive_number(repetition_penalty=self.repetition_penalty)
        object.__setattr__(self, "stop", _check_stops(self.stop))
        if self.weights not in get_args(WeightFormat):
            raise ConfigError(f"invalid weights={self.weights!r}\nfix: use one of {', '.join(get_args(WeightFormat))}")

    def changed(self, name: str, text: str) -> "GenerationConfig":
        """Return the config with one number changed, by name and as text; "off" disables a filter.

        >>> GenerationConfig().changed("top_k", "40").changed("temperature", "0.5").temperature
        0.5
        """
        kind = self.kind(name)
        is_optional = get_type_hints(GenerationConfig)[name] != kind
        try:
            value: Any = None if is_optional and text == OFF else kind(text)
        except ValueError:
            what, example = ("an integer", "40") if kind is int else ("a number", "0.8")
            off = f" or {OFF}" if is_optional else ""
            raise ConfigError(f"{name} must be {what}{off}, but got {text!r}\nfix: {name} {example}{off}") from None
        return dataclasses.replace(self, **{name: value})

    def shown(self, name: str) -> str:
        """Format the value of a setting; "off" for a disabled filter."""
        value = getattr(self, name)
        return OFF if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    @staticmethod
    def kind(name: str) -> Any:
        """The type of a number among the settings, int or float."""
        hint = get_type_hints(GenerationConfig)[name]
        return next(iter(get_args(hint)), hint)


def make_config(config: GenerationConfig | None, settings: dict[str, Any]) -> GenerationConfig:
    """Return the config (default: `GenerationConfig()`) with these settings replaced.

    >>> make_config(None, {"temprature": 0.5})
    Traceback (most recent call last):
    normscope.errors.ConfigError: a generation has no setting 'temprature'; did you mean 'temperature'?
    """
    config = GenerationConfig() if config is None else config
    checks.check_config(config, GenerationConfig, "a generation")
    checks.check_setting_names("a generation", settings, GenerationConfig)
    return dataclasses.replace(config, **settings) if settings else config


def _check_stops(stops: object) -> tuple[str, ...]:
    """Validate stop strings and return them as a tuple; a single string is accepted."""
    try:
        checked = (stops,) if isinstance(stops, str) else tuple(stops)  # type: ignore[arg-type]  # as Python checks it
    except TypeError:
        problem = f"stop must be a list of strings, but got {checks.short_repr(stops)}"
        raise ArgumentTypeError(f"{problem}\nfix: stop=['\\n\\n']") from None
    for stop in checked:
        if not isinstance(stop, str):
            raise ArgumentTypeError(f"a stop string must be a str, but got {stop!r:.80}\nfix: stop=['\\n\\n']")
        if not stop:
            raise ConfigError("a stop string is empty and would end every text immediately\nfix: remove it")
    return checked
