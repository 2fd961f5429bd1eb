"""Which tokenizer a tokenizer.json holds."""

import json
from pathlib import Path
from typing import Any

from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.byte_level import ByteTokenizer
from normscope.data.tokenizers.characters import CharacterTokenizer
from normscope.errors import ConfigError, FileError, NormscopeError


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file that `save` wrote, or in any tokenizer.json of Hugging Face's; a folder will do.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CharacterTokenizer("abc").save(Path(folder) / "tokenizer.json")
    ...     load_tokenizer(folder).encode("cab")
    array([2, 0, 1], dtype=uint8)
    """
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(
            f"there is no tokenizer file {path}\nfix: name a tokenizer.json, or one of: characters, bytes, bpe"
        ) from None
    except UnicodeDecodeError:
        raise _refusal(path, "it is not text") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _refusal(path, f"it is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise _refusal(path, f"it holds {type(content).__name__}, not an object")
    if "model" in content:
        return _library_tokenizer(path, text)
    return _own_tokenizer(path, content)


def _own_tokenizer(path: Path, content: dict[str, Any]) -> Tokenizer:
    match content:
        case {"kind": "bytes"}:
            return ByteTokenizer()
        case {"kind": "characters", "alphabet": str(alphabet)}:
            try:
                return CharacterTokenizer(alphabet)
            except NormscopeError:
                raise _refusal(path, "its alphabet is not each character once, in the order of Unicode") from None
    raise _refusal(path, "it has neither a 'kind' that is known here nor a 'model'")


def _library_tokenizer(path: Path, text: str) -> Tokenizer:
    import tokenizers

    from normscope.data.tokenizers.library import LibraryTokenizer

    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise _refusal(path, f"the tokenizers library cannot read it: {error}") from None
    try:
        return LibraryTokenizer(library)
    except ConfigError as error:
        raise FileError(f"{path} is not a tokenizer: {error}") from None


def _refusal(path: Path, problem: str) -> FileError:
    return FileError(
        f"{path} is not a tokenizer: {problem}\n"
        f"fix: name a file that save() or Hugging Face's tokenizers wrote; if it is damaged, copy it anew"
    )
