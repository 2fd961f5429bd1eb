"""Words that a story can remember: each with its forms, in tables to draw from."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from normscope.data.stories.categorical import Categorical
from normscope.errors import ConfigError


class Word:
    """A word, or a few, with the forms that sentences need.

    A form that is a list holds what goes with the word, to be drawn from in its turn: what this animal eats, what is
    to be seen in that place. Every text also has the forms "a" (with its article) and, for the beginning of a
    sentence, a capital for each form: "He" is made from "he".

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
        """The text of a form; "" is the word itself."""
        if name not in self._forms:
            raise ConfigError(
                f"the word {self.text!r} has no form {name!r}\nfix: use one of {self._names(self._forms)}"
            )
        return self._forms[name]

    def list(self, name: str) -> "WordTable":
        """The words that go with this one."""
        if name not in self._lists:
            raise ConfigError(
                f"the word {self.text!r} has no list {name!r}\nfix: use one of {self._names(self._lists)}"
            )
        return self._lists[name]

    def __repr__(self) -> str:
        return f"Word({self.text!r})"

    @staticmethod
    def _names(mapping: Mapping[str, object]) -> str:
        return ", ".join(name for name in mapping if name) or "none: it has none"


class WordTable:
    """Words to draw from, the frequent ones first.

    >>> table = WordTable([Word("owl"), Word("fox"), Word("bear")])
    >>> table.odds(unlike=table.words[0]).options
    (Word('fox'), Word('bear'))
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self._all = Categorical(words)
        self._others = {word: self._all.without(i) for i, word in enumerate(words)} if len(words) > 1 else {}
        self.words = self._all.options
        self.check_distinct("")

    def odds(self, unlike: Word | None = None) -> Categorical[Word]:
        """How likely each word is; with `unlike`, how likely each other word is."""
        return self._all if unlike is None else self._others.get(unlike, self._all)

    def check_distinct(self, form: str) -> None:
        """Refuse two words that read the same: nobody could tell which of them was drawn."""
        texts = [word.form(form) for word in self.words]
        twice = sorted({text for text in texts if texts.count(text) > 1})
        if twice:
            raise ConfigError(f"several words of a table read {twice[0]!r}\nfix: draw them by a form that differs")
