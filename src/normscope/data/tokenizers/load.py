"""Load a tokenizer from a tokenizer.json."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from normscope.checks import as_path
from normscope.data.tokenizers.base import Tokenizer
from normscope.data.tokenizers.characters import AlphabetTokenizer, ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.template_settings import read_template_settings
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.storage.files import open_regular, read_limited
from normscope.storage.json_files import MAX_TOKENIZER_BYTES, MIB, JsonSource, reraise_as

OWN_SETTINGS = "normscope"
"""The entry of ours in a tokenizer.json, which Hugging Face's library does not read."""
_MAX_GROWTH = 1000
"""How many times longer the normalizers, or the decoders, may make a text; usually they keep its length."""
_MAX_TEMPLATE = 4096
"""Limit of the tokens that a post-processor puts around a text; models have one or two."""
_SMALL_FILE, _BYTES_PER_TOKEN = MIB, 256
"""Limits of a file by the size of the model's vocabulary: Gemma's tokenizer has 130 bytes per token."""
_FIX = "name a file written by save() or by Hugging Face's tokenizers; if it is damaged, copy it again"


class ModelTokens(NamedTuple):
    """What a model's config says about its tokens.

    Args:
        vocab_size: number of embeddings.
        eos_token_id: the end-of-text token; None if it does not say.
    """

    vocab_size: int
    eos_token_id: int | None

    @property
    def largest_file(self) -> int:
        """Limit of the bytes of its tokenizer."""
        return min(_SMALL_FILE + self.vocab_size * _BYTES_PER_TOKEN, MAX_TOKENIZER_BYTES)


def load_tokenizer(path: str | Path, model: ModelTokens | None = None) -> Tokenizer:
    """Load a tokenizer from a file that `save` wrote, any Hugging Face tokenizer.json, or a folder with one.

    Args:
        path: the file or folder. A tokenizer_config.json beside it names the end-of-text token and the chat template.
        model: what is known of the model that it belongs to.

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
        data = read_limited(file, path, MAX_TOKENIZER_BYTES)
        settings = read_template_settings(path.parent)
        tokenizer = parse_tokenizer(data, path, settings.eos_token, model)
        settings.apply(tokenizer)
    return tokenizer


def parse_tokenizer(data: bytes, path: Path, eos: str | None = None, model: ModelTokens | None = None) -> Tokenizer:
    """Parse the contents of a tokenizer file.

    Args:
        data: the contents.
        path: for messages.
        eos: name of the end-of-text token, where another file says it.
        model: what is known of the model that it belongs to.
    """
    if model is not None and len(data) > model.largest_file:
        raise FileError(
            f"{path} has {len(data):,} bytes, far too many for a model with {model.vocab_size:,} embeddings\n"
            f"fix: use the tokenizer that the model was trained with"
        )
    content = JsonSource(path, _FIX).parse(data, dict[str, Any], allow_any_text=True)
    if "model" not in content:
        return _own_tokenizer(path, content)
    if max(_growth(content.get("normalizer")), _growth(content.get("decoder"))) > _MAX_GROWTH:
        raise _not_a_tokenizer(path, f"its replacements make a text more than {_MAX_GROWTH:,} times longer")
    if _template_size(content.get("post_processor")) > _MAX_TEMPLATE:
        raise _not_a_tokenizer(path, f"it puts more than {_MAX_TEMPLATE:,} tokens around a text")
    text, is_complete = data.decode(), model is not None
    if (own := content.pop(OWN_SETTINGS, None)) is not None:
        eos, is_complete, text = own.get("eos_token") if isinstance(own, dict) else None, True, json.dumps(content)
    surplus = [] if model is None else _remove_surplus(content, model.vocab_size)
    if surplus:
        text = json.dumps(content)
    if eos is None and model is not None:
        eos = _name_of(content, model.eos_token_id)
    tokenizer = _huggingface_tokenizer(path, text, eos if isinstance(eos, str) else None, is_complete)
    if surplus:
        names = f"{', '.join(surplus[:3])}{', ...' * (len(surplus) > 3)}"
        tokenizer.notices = (*tokenizer.notices, f"left out tokens that the model has no embedding for: {names}")
    return tokenizer


def _growth(step: Any) -> int:
    """A bound on how many times longer a text becomes: one replacement after the other could fill any memory."""
    if not isinstance(step, dict):
        return 1
    steps = [*_list(step.get("normalizers")), *_list(step.get("decoders"))]
    texts = [text for name in ("content", "prepend") if isinstance(text := step.get(name), str)]
    return math.prod([*map(_growth, steps), *(max(1, len(text)) for text in texts)])


def _template_size(step: Any) -> int:
    """A bound on the tokens that a post-processor puts around a text."""
    if not isinstance(step, dict):
        return 0
    special = step.get("special_tokens")
    tokens = special.values() if isinstance(special, dict) else ()
    longest = max((len(_list(one.get("ids"))) for one in tokens if isinstance(one, dict)), default=1)
    pieces = len(_list(step.get("single"))) + len(_list(step.get("pair")))
    return pieces * longest + sum(map(_template_size, _list(step.get("processors"))))


def _remove_surplus(content: dict[str, Any], vocab_size: int) -> list[str]:
    """Remove added tokens whose ids are beyond the model's vocabulary, as Gemma 3's for images; return their names."""
    tokens = _added_tokens(content)
    surplus = {str(one.get("content")) for one in tokens if isinstance(one.get("id"), int) and one["id"] >= vocab_size}
    if surplus:
        content["added_tokens"] = [one for one in tokens if str(one.get("content")) not in surplus]
        vocabulary = content["model"].get("vocab") if isinstance(content["model"], dict) else None
        if isinstance(vocabulary, dict):
            for name in surplus:
                vocabulary.pop(name, None)
    return sorted(surplus)


def _name_of(content: dict[str, Any], token: int | None) -> str | None:
    """The name of an added token."""
    tokens = _added_tokens(content)
    return next((str(one.get("content")) for one in tokens if token is not None and one.get("id") == token), None)


def _added_tokens(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in _list(content.get("added_tokens")) if isinstance(one, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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


def _huggingface_tokenizer(path: Path, text: str, eos: str | None, is_complete: bool) -> Tokenizer:
    import tokenizers

    from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer

    try:
        library = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises nothing narrower, and its panics are not Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise _not_a_tokenizer(path, f"the tokenizers library cannot read it: {error}") from None
    try:
        return HuggingFaceTokenizer(library, eos, is_complete=is_complete)
    except ConfigError as error:
        raise FileError(f"{path} is not a tokenizer: {error}") from None


def _not_a_tokenizer(path: Path, problem: str) -> FileError:
    return FileError(f"{path} is not a tokenizer: {problem}\nfix: {_FIX}")
