"""Tokens as the page shows them."""

from normscope.data.tokenizers import Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token on its own.

    Bytes that are no character on their own become escapes such as \\xe4, and a special token has its name.
    """
    content = tokenizer.token_bytes[token] if token < tokenizer.vocab_size else b""
    if content:
        return content.decode("utf-8", "backslashreplace")
    return next((name for name, id in tokenizer.special_tokens.items() if id == token), "")
