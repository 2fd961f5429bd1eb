r"""Load the story grammar from the text files of this package: `plots/*.txt` and `words.txt`.

    # a comment
    <greeting> ::= Hello | Good [day|evening], {hero} | <question>\nNobody answered.

Alternatives are separated by " | ", the most frequent first. A line break in the file counts as a space; `\n` is a line
break in the story. `normscope.data.stories.template` defines what an alternative of a plot may contain. In `words.txt`
an alternative is a word with its forms and lists: `rabbit, home=burrow, foods=carrots/clover`.

To add a sentence, insert it where its frequency belongs. To add a plot, add a file and an alternative to <story>.
"""

import re
from importlib import resources

from normscope.data.stories.vocabulary import Word
from normscope.errors import ConfigError


def load_rules() -> dict[str, list[str]]:
    """Return the templates of each rule of all plots, by the rule's name."""
    plots = resources.files(__package__) / "plots"
    return parse_rules("\n".join(file.read_text("utf-8") for file in plots.iterdir() if file.name.endswith(".txt")))


def load_tables() -> dict[str, list[Word]]:
    """Return the words of each table, by the table's name."""
    tables = parse_rules((resources.files(__package__) / "words.txt").read_text("utf-8"))
    return {name: [parse_word(entry) for entry in entries] for name, entries in tables.items()}


def parse_rules(text: str) -> dict[str, list[str]]:
    r"""Split the text of a file into rules and their alternatives.

    >>> parse_rules("# two rules\n<start> ::= A <pet> sat.\\n\n  | No\n    <pet> sat.\n<pet> ::= cat | dog\n")
    {'start': ['A <pet> sat.\n', 'No <pet> sat.'], 'pet': ['cat', 'dog']}
    """
    without_comments = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    _, *fields = re.split(r"^<([\w ]+)> ::=", without_comments, flags=re.MULTILINE)
    rules: dict[str, list[str]] = {}
    for name, body in zip(fields[::2], fields[1::2], strict=True):
        if name in rules:
            raise ConfigError(f"the rule <{name}> is defined twice\nfix: rename one of the two")
        rules[name] = [option.replace(r"\n", "\n") for option in " ".join(body.split()).split(" | ")]
    return rules


def parse_word(entry: str) -> Word:
    """Parse a word with its forms and lists.

    >>> owl = parse_word("owl, home=hollow tree, foods=nuts/berries")
    >>> owl.form("home"), [food.text for food in owl.list("foods").words]
    ('hollow tree', ['nuts', 'berries'])
    """
    text, *fields = entry.split(", ")
    forms = dict(field.split("=") for field in fields)
    return Word(text, **{name: form.split("/") if "/" in form else form for name, form in forms.items()})
