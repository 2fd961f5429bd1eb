"""Words with their forms, in tables to draw from with Zipf-like probabilities."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Generic, TypeVar

from normscope.errors import ConfigError

T = TypeVar("T")


class Categorical(Generic[T]):
    """A categorical distribution. By default the option of rank r has weight 1 / (r + 2), as in Zipf's law.

    So frequencies need not be written down: the order of the options determines them.

    >>> distribution = Categorical(["often", "sometimes", "rarely"])
    >>> [round(p, 3) for p in distribution.probabilities]
    [0.426, 0.319, 0.255]
    >>> distribution.sample(0.5)
    (1, 'sometimes')
    """

    def __init__(self, options: Sequence[T], weights: Sequence[float] | None = None) -> None:
        if weights is None:
            weights = [1 / (rank + 2) for rank in range(1, len(options) + 1)]
        total = math.fsum(weights)
        self.options = tuple(options)
        self.probabilities = tuple(weight / total for weight in weights)
        self.nats = tuple(-math.log(p) for p in self.probabilities)
        """-ln p of each option."""
        self._cumulative = tuple(accumulate(self.probabilities[:-1]))  # the last option takes the remainder

    @property
    def entropy(self) -> float:
        """Entropy in nats."""
        return math.fsum(p * nats for p, nats in zip(self.probabilities, self.nats, strict=True))

    def sample(self, uniform: float) -> tuple[int, T]:
        """Return the index and value of the option for a uniform random number from [0, 1)."""
        index = bisect_right(self._cumulative, uniform)
        return index, self.options[index]

    def without(self, index: int) -> "Categorical[T]":
        """Return the distribution conditioned on not drawing this option."""
        kept = [i for i in range(len(self.options)) if i != index]
        return Categorical([self.options[i] for i in kept], [self.probabilities[i] for i in kept])


class Word:
    """A word or phrase with the forms that sentences need.

    A form given as a list holds related words to draw from: what an animal eats, what can be seen at a place. Every
    word also has the forms "a" (with its article) and "cap" (capitalized). A capitalized form name gives the
    capitalized form, for the start of a sentence: "He" comes from "he".

    >>> owl = Word("owl", home="hollow tree", foods=["nuts", "berries"])
    >>> owl.form("a"), owl.form("Home"), owl.list("foods").words[1].text
    ('an owl', 'Hollow tree', 'berries')
    """

    def __init__(self, text: str, **forms: str | Sequence[str]) -> None:
        self.text = text
        texts = {"": text, "cap": text[0].upper() + text[1:], "a": f"{'an' if text[0] in 'aeiou' else 'a'} {text}"}
        texts |= {name: form for name, form in forms.items() if isinstance(form, str)}
        capitals = {name.capitalize(): form[0].upper() + form[1:] for name, form in texts.items() if name}
        self._forms: Mapping[str, str] = MappingProxyType(capitals | texts)
        self._lists = {
            name: WordTable([Word(item) for item in form]) for name, form in forms.items() if not isinstance(form, str)
        }

    def form(self, name: str) -> str:
        """Return the text of a form; "" is the word itself."""
        if name not in self._forms:
            raise self._no_such("form", name, self._forms)
        return self._forms[name]

    def list(self, name: str) -> "WordTable":
        """Return a list of related words."""
        if name not in self._lists:
            raise self._no_such("list", name, self._lists)
        return self._lists[name]

    def __repr__(self) -> str:
        return f"Word({self.text!r})"

    def _no_such(self, kind: str, name: str, known: Mapping[str, object]) -> ConfigError:
        names = ", ".join(filter(None, known))
        fix = f"use one of {names}" if names else f"add the {kind} to the word"
        return ConfigError(f"the word {self.text!r} has no {kind} {name!r}\nfix: {fix}")


class WordTable:
    """Words to draw from, the most frequent first.

    >>> table = WordTable([Word("owl"), Word("fox"), Word("bear")])
    >>> table.distribution(unlike=table.words[0]).options
    (Word('fox'), Word('bear'))
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self._all = Categorical(words)
        self._others = {word: self._all.without(i) for i, word in enumerate(words)} if len(words) > 1 else {}
        self.words = self._all.options
        self.check_distinct("")

    def distribution(self, unlike: Word | None = None) -> Categorical[Word]:
        """Return the distribution over all words, or over all but `unlike`."""
        return self._all if unlike is None else self._others.get(unlike, self._all)

    def check_distinct(self, form: str) -> None:
        """Raise if two words have the same text in this form: the grammar would be ambiguous."""
        texts = [word.form(form) for word in self.words]
        twice = sorted({text for text in texts if texts.count(text) > 1})
        if twice:
            raise ConfigError(
                f"several words of a table have the text {twice[0]!r}\nfix: draw them by a form that differs"
            )
