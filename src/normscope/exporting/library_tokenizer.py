"""Our tokenizers as tokenizers of Hugging Face's library, with the same ids.

| ours       | theirs                                                                          |
|------------|---------------------------------------------------------------------------------|
| bpe, ...   | the same tokenizer.json                                                         |
| bytes      | byte-level BPE without merges: the token of a byte is the byte                   |
| characters | WordLevel over single characters; an unknown character is an error in both       |
"""

import json

from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.data.tokenizers.base import EOS_TOKEN
from normscope.data.tokenizers.characters import AlphabetTokenizer, CharacterTokenizer

OWN_CHARACTERS = (CharacterTokenizer, AlphabetTokenizer)
OWN = (ByteTokenizer, *OWN_CHARACTERS)
"""Tokenizers with a file of our own."""
EVERY_CHARACTER = r"[\s\S]"


def library_json(tokenizer: Tokenizer) -> str:
    """Return a tokenizer.json that Hugging Face's library reads.

    >>> import tokenizers
    >>> theirs = tokenizers.Tokenizer.from_str(library_json(CharacterTokenizer(" abc")))
    >>> theirs.encode("a cab").ids, theirs.decode([1, 0, 3, 1, 2])
    ([1, 0, 3, 1, 2], 'a cab')
    """
    from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, bytes_to_unicode

    if not isinstance(tokenizer, OWN):
        return tokenizer.library_json() if isinstance(tokenizer, HuggingFaceTokenizer) else tokenizer.to_json()
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    if isinstance(tokenizer, ByteTokenizer):
        vocabulary = {character: byte for byte, character in enumerate(bytes_to_unicode())}
        library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = decoders.ByteLevel()
    else:
        # The unknown token has no id: encoding an unknown character is an error, as it is for us.
        vocabulary = {character: index for index, character in enumerate(tokenizer.alphabet)}
        library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(EVERY_CHARACTER), "isolated")
        library.decoder = decoders.Fuse()
    if tokenizer.has_eos:
        library.add_special_tokens([EOS_TOKEN])
    assert library.token_to_id(EOS_TOKEN) == eos_of(tokenizer)
    return str(library.to_str(pretty=True)) + "\n"


def eos_of(tokenizer: Tokenizer) -> int | None:
    """The end-of-text token; None if there is none."""
    return tokenizer.eos_token_id if tokenizer.has_eos else None


def eos_name(tokenizer: Tokenizer) -> str | None:
    """The name of the end-of-text token in `library_json`; None if there is none."""
    if not tokenizer.has_eos or isinstance(tokenizer, OWN):
        return EOS_TOKEN if tokenizer.has_eos else None
    added = json.loads(tokenizer.to_json())["added_tokens"]
    return next(str(token["content"]) for token in added if token["id"] == tokenizer.eos_token_id)
