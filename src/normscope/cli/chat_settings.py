"""Settings that can be changed during a chat: /temperature, /seed and so on."""

from dataclasses import dataclass, replace

from normscope.errors import ConfigError
from normscope.generate.config import GenerationConfig

OFF = "off"


@dataclass(frozen=True)
class ChatSetting:
    """A generation setting.

    Args:
        name: field of `GenerationConfig`.
        help: help text.
        kind: int or float.
        optional: whether it can be turned off.
    """

    name: str
    help: str
    kind: type[int] | type[float] = float
    optional: bool = False

    @property
    def metavar(self) -> str:
        return "N" if self.kind is int else "X"

    def value(self, config: GenerationConfig) -> str:
        """Format the current value."""
        value = getattr(config, self.name)
        return OFF if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def changed(self, config: GenerationConfig, text: str) -> GenerationConfig:
        """Return the config with a new value, parsed from text.

        >>> temperature = ChatSetting("temperature", "")
        >>> temperature.value(temperature.changed(GenerationConfig(), "0.5"))
        '0.5'
        """
        return replace(config, **{self.name: self._read(text)})  # type: ignore[arg-type]

    def _read(self, text: str) -> float | None:
        if self.optional and text == OFF:
            return None
        try:
            return self.kind(text)
        except ValueError:
            what, example = ("an integer", "40") if self.kind is int else ("a number", "0.8")
            off = f" or {OFF}" if self.optional else ""
            raise ConfigError(f"{self.name} must be {what}{off}, but got {text!r}\nfix: {example}{off}") from None


SETTINGS = {
    "/temperature": ChatSetting("temperature", "sampling temperature, 0 for greedy decoding"),
    "/top-k": ChatSetting("top_k", "sample from the N most likely tokens, or off", int, optional=True),
    "/top-p": ChatSetting("top_p", "sample from the top tokens with this total probability, or off", optional=True),
    "/min-p": ChatSetting("min_p", "minimum probability relative to the most likely token, or off", optional=True),
    "/seed": ChatSetting("seed", "random seed", int),
    "/tokens": ChatSetting("max_new_tokens", "maximum number of tokens per reply", int),
}
"""Chat command -> setting that it shows or changes."""
