"""Load a tokenizer from a tokenizer.json."""

from pathlib import Path
from typing import Any

from normscope.checks import as_path
from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.characters import AlphabetTokenizer, ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.template_settings import read_template_settings
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import LARGE_FILE_BYTES, JsonSource, reraise_as

_FIX = "name a file written by save() or by Hugging Face's tokenizers; if it is damaged, copy it again"


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a file that `save` wrote, any Hugging Face tokenizer.json, or a folder with one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CharacterTokenizer("abc").save(Path(folder) / "tokenizer.json")
    ...     load_tokenizer(folder).encode("cab")
    array([2, 0, 1], dtype=uint8)
    """
    path = as_path(path, "a tokenizer")
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.exists():
        raise FileError(
            f"there is no tokenizer file {path}\nfix: name a tokenizer.json, or one of: characters, bytes, bpe"
        )
    with reraise_as(FileError, _FIX), open_regular(path) as file:
        data = read_limited(file, path, LARGE_FILE_BYTES)
        tokenizer = parse_tokenizer(data, path)
        read_template_settings(tokenizer, path.parent)
    return tokenizer


def parse_tokenizer(data: bytes, path: Path) -> Tokenizer:
    """Parse the contents of a tokenizer file; `path` is for messages."""
    content = JsonSource(path, _FIX).parse(data, dict[str, Any], allow_any_text=True)
    if "model" in content:
        return _huggingface_tokenizer(path, data.decode())
    return _own_tokenizer(path, content)


def _own_tokenizer(path: Path, content: dict[str, Any]) -> Tokenizer:
    match content:
        case {"kind": "bytes"}:
            return ByteTokenizer()
        case {"kind": "characters" | "alphabet" as kind, "alphabet": str(alphabet)}:
            try:
                return CharacterTokenizer(alphabet) if kind == "characters" else AlphabetTokenizer(alphabet)
            except NormscopeError:
                raise _not_a_tokenizer(path, "its alphabet is not unique characters in Unicode order") from None
    raise _not_a_tokenizer(path, "it has neither a known 'kind' nor a 'model'")


def _huggingface_tokenizer(path: Path, text: str) -> Tokenizer:
    import tokenizers

    from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer

    try:
        library = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises nothing narrower, and its panics are not Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise _not_a_tokenizer(path, f"the tokenizers library cannot read it: {error}") from None
    try:
        return HuggingFaceTokenizer(library)
    except ConfigError as error:
        raise FileError(f"{path} is not a tokenizer: {error}") from None


def _not_a_tokenizer(path: Path, problem: str) -> FileError:
    return FileError(f"{path} is not a tokenizer: {problem}\nfix: {_FIX}")
