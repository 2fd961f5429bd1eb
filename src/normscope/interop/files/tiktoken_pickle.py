"""Read a pickled tiktoken.Encoding, which nanochat saves as tokenizer.pkl, without executing it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from normscope.errors import FileError
from normscope.interop.files.pickle_builders import PLAIN
from normscope.interop.files.pickle_file import read_pickle
from normscope.storage.json_files import StrictStruct

_FIX = "name the tokenizer.pkl that nanochat's tok_train wrote, a pickled tiktoken.Encoding"


@dataclass(frozen=True)
class TiktokenRanks:
    """What a tiktoken encoding consists of.

    Args:
        name: its name.
        pattern: the regular expression that splits a text before merging.
        ranks: id of each token by its bytes; lower ids are merged first.
        special_tokens: id of each special token.
    """

    name: str
    pattern: str
    ranks: dict[bytes, int]
    special_tokens: dict[str, int]


class _Encoding:
    """Stands for the Encoding while its pickle is read."""

    state: Any = None

    def set_state(self, state: Any) -> None:
        self.state = state


class _State(StrictStruct):
    """The state of an Encoding."""

    name: str
    pat_str: str
    mergeable_ranks: dict[bytes, int]
    special_tokens: dict[str, int]


def read_tiktoken(path: str | Path) -> TiktokenRanks:
    """Read a pickled tiktoken.Encoding."""
    encoding = read_pickle(path, {**PLAIN, "tiktoken.core.Encoding": _Encoding})
    if not isinstance(encoding, _Encoding):
        raise FileError(f"{path} has a {type(encoding).__name__} instead of a tiktoken.Encoding\nfix: {_FIX}")
    if isinstance(encoding.state, str):
        raise FileError(
            f"{path} only names tiktoken's built-in encoding {encoding.state!r:.40} and doesn't contain it\n"
            f"fix: save its tokenizer.json"
        )
    try:
        state = msgspec.convert(encoding.state, _State)
    except msgspec.ValidationError as error:
        raise FileError(f"{path} has no valid tiktoken.Encoding: {error}\nfix: {_FIX}") from None
    ids = [*state.mergeable_ranks.values(), *state.special_tokens.values()]
    if len(set(ids)) != len(ids) or min(ids, default=-1) < 0:
        raise FileError(f"{path} has negative token ids, none, or one for several tokens\nfix: {_FIX}")
    return TiktokenRanks(state.name, state.pat_str, state.mergeable_ranks, state.special_tokens)
