"""What can be changed in the middle of a chat: /temperature, /seed and the like."""

from dataclasses import dataclass, replace

from normscope.errors import ConfigError
from normscope.generate.text import TextSettings

OFF = "off"


@dataclass(frozen=True)
class ChatSetting:
    """One of the settings by which answers are written.

    Args:
        name: its field, in `SamplingConfig` or `TextSettings`.
        help: what it does.
        kind: int or float.
        optional: whether it may be off.
    """

    name: str
    help: str
    kind: type[int] | type[float] = float
    optional: bool = False

    @property
    def metavar(self) -> str:
        return "N" if self.kind is int else "X"

    def value(self, settings: TextSettings) -> str:
        """What it is now."""
        value = getattr(settings if hasattr(settings, self.name) else settings.sampling, self.name)
        return OFF if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def changed(self, settings: TextSettings, text: str) -> TextSettings:
        """The settings with what was typed; what cannot be is refused.

        >>> temperature = ChatSetting("temperature", "")
        >>> temperature.value(temperature.changed(TextSettings(), "0.5"))
        '0.5'
        """
        value = {self.name: self._read(text)}
        if hasattr(settings, self.name):
            return replace(settings, **value)  # type: ignore[arg-type]
        return replace(settings, sampling=replace(settings.sampling, **value))  # type: ignore[arg-type]

    def _read(self, text: str) -> float | None:
        if self.optional and text == OFF:
            return None
        try:
            return self.kind(text)
        except ValueError:
            what, example = ("a whole number", "40") if self.kind is int else ("a number", "0.8")
            off = f" or {OFF}" if self.optional else ""
            raise ConfigError(f"{self.name} must be {what}{off}, but got {text!r}\nfix: {example}{off}") from None


SETTINGS = {
    "/temperature": ChatSetting("temperature", "below 1 likely tokens become likelier, 0 takes the likeliest"),
    "/top-k": ChatSetting("top_k", "choose among so many of the likeliest tokens, or off", int, optional=True),
    "/top-p": ChatSetting("top_p", "choose among the likeliest with this probability together, or off", optional=True),
    "/min-p": ChatSetting("min_p", "choose among those of this share of the likeliest one's, or off", optional=True),
    "/seed": ChatSetting("seed", "another seed gives other answers", int),
    "/tokens": ChatSetting("max_new_tokens", "how many tokens an answer gets at most", int),
}
"""By the command that shows it, or changes it."""
