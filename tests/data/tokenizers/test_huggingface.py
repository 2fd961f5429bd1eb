"""Tokenizers of Hugging Face's library: trained here, or published by others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from normscope.data.tokenizers import load_tokenizer
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, bytes_to_unicode, token_bytes, train_bpe
from normscope.data.tokenizers.load import ModelTokens
from normscope.errors import ConfigError, FileError, TokenError
from normscope.storage.json_files import JsonSource
from tests.data.tokenizers.examples import TEXT, like_bert, like_gpt2, like_llama, saved


def test_the_byte_alphabet_matches_the_library() -> None:
    assert sorted(bytes_to_unicode()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    text = "".join(map(chr, range(0x250))) + "猫🐈"
    word = "".join(bytes_to_unicode()[byte] for byte in text.encode())
    assert token_bytes(word).decode() == text
    assert decoders.ByteLevel().decode([word]) == text


def test_frequent_words_become_tokens() -> None:
    tokenizer = train_bpe(["the cat and the hat\n"] * 50, vocab_size=280)
    assert len(tokenizer.encode("the cat and the hat")) == 5
    assert len(tokenizer.encode("xyz")) == 3


def test_texts_are_read_once_from_an_iterator() -> None:
    tokenizer = train_bpe((text for text in [TEXT] * 5), vocab_size=300)
    assert tokenizer.to_json() == train_bpe([TEXT] * 5, vocab_size=300).to_json()


def test_training_is_deterministic() -> None:
    code = (
        "from normscope.data.tokenizers.huggingface import train_bpe; import hashlib\n"
        "texts = [f'the {i % 7} cat {i % 11} sat {i % 13}\\n' * 3 for i in range(300)]\n"
        "print(hashlib.sha256(train_bpe(texts, 400).to_json().encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(runs[0].strip()) == 64
    assert runs[0] == runs[1]


@pytest.mark.parametrize("wrong", [256, 0, 300.0, "many", True])
def test_a_vocab_size_too_small_for_all_bytes(wrong: int) -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=.* must be an integer >= 257.*\nfix: vocab_size=2048"):
        train_bpe([TEXT], wrong)


@pytest.mark.parametrize("name", ["<|end|>", "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>"])
def test_known_names_of_the_end_of_text_token(name: str) -> None:
    library = Library(models.WordLevel({"a": 0, name: 1, "[UNK]": 2}, unk_token="[UNK]"))
    library.add_special_tokens([name])
    tokenizer = HuggingFaceTokenizer(library)
    assert (tokenizer.eos_token_id, tokenizer.vocab_size, tokenizer.notices) == (1, 3, ())


def test_a_missing_end_of_text_token_is_added(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(like_bert(), tmp_path))
    assert tokenizer.eos_token_id == 9
    assert tokenizer.vocab_size == 10
    assert tokenizer.notices == ("the tokenizer has no end-of-text token: added <|end|> to its vocabulary",)
    tokenizer.save(tmp_path / "ours.json")
    again = load_tokenizer(tmp_path / "ours.json")
    assert (again.eos_token_id, again.notices) == (9, ())


def test_an_end_of_text_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "a": 1, "b": 3}
    path = saved(Library(models.WordLevel(words, unk_token="[UNK]")), tmp_path)
    with pytest.raises(
        FileError, match=r"their-tokenizer\.json is not a tokenizer: .* the id 3, which 'b' already has\nfix: "
    ):
        load_tokenizer(path)
    path = saved(Library(models.WordLevel({**words, "</s>": 7}, unk_token="[UNK]")), tmp_path)
    assert load_tokenizer(path).eos_token_id == 7


def test_unknown_words_are_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(like_bert(), tmp_path))
    assert tokenizer.decode(tokenizer.encode("The cats sat, the hats")) == "the cats sat, the hats"
    with pytest.raises(TokenError, match=r"no token for 'dog' at position 8 of the text: 'the cat dog'\nfix: "):
        tokenizer.encode("the cat dog")


def test_missing_bytes_are_refused() -> None:
    library = Library(models.BPE(vocab={"a": 0, "Ġ": 1, "Ã": 2}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    tokenizer = HuggingFaceTokenizer(library)
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
    with pytest.raises(TokenError, match="no token for 'é' at position 2 of the text: 'a é'"):
        tokenizer.encode("a é")


def test_truncation_padding_and_dropout_are_turned_off() -> None:
    library = like_gpt2()
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.model.dropout = 0.9
    tokenizer = HuggingFaceTokenizer(library)
    np.testing.assert_array_equal(tokenizer.encode(TEXT), HuggingFaceTokenizer(like_gpt2()).encode(TEXT))


def test_decode_matches_the_library() -> None:
    for library in (like_gpt2(), like_llama()):
        tokenizer = HuggingFaceTokenizer(library)
        tokens = tokenizer.encode(TEXT).tolist()
        assert tokenizer.decode(tokens) == library.decode(tokens) == TEXT


def test_the_end_of_text_token_may_have_any_id() -> None:
    library = Library(models.WordLevel({"a": 0, "</s>": 70_000, "[UNK]": 5}, unk_token="[UNK]"))
    tokenizer = HuggingFaceTokenizer(library)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id, tokenizer.dtype.name) == (70_001, 70_000, "uint32")
    assert tokenizer.decode([0, 70_000, 0]) == tokenizer.decode([0, 0])


@pytest.mark.parametrize("token", [2**22, 4_000_000_000])
def test_huge_ids_are_refused(tmp_path: Path, token: int) -> None:
    library = Library(models.WordLevel({"a": 0, "</s>": token, "[UNK]": 5}, unk_token="[UNK]"))
    with pytest.raises(ConfigError, match=f"it has the token id {token:,}, but ids must be below 4,194,304\nfix: "):
        HuggingFaceTokenizer(library)
    # Written by hand: the library would iterate over all ids up to this one.
    content = json.loads(Library(models.WordLevel({"a": 0}, unk_token="[UNK]")).to_str())
    content["model"]["vocab"]["</s>"] = token
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"tokenizer\.json is not a tokenizer: it has the token id"):
        load_tokenizer(tmp_path)


def test_a_missing_unknown_token_is_reported_when_needed() -> None:
    tokenizer = HuggingFaceTokenizer(Library(models.WordPiece({"a": 0}, unk_token="[UNK]")))
    with pytest.raises(TokenError, match=r"cannot encode the text: .*\[UNK\].*\nfix: use another tokenizer"):
        tokenizer.encode("zebra")


def test_a_fork_after_encoding_does_not_warn() -> None:
    code = (
        "import os; from normscope.data.tokenizers.huggingface import train_bpe\n"
        "tokenizer = train_bpe(['the cat '] * 100, 300); tokenizer.encode_many(['the cat'] * 100)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    tokenizer.encode_many(['the cat'] * 100); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("0\n", "")


def changed(tmp_path: Path, **parts: object) -> Path:
    """A tokenizer.json with other parts."""
    content = json.loads(train_bpe([TEXT], vocab_size=280).to_json())
    path = tmp_path / "tokenizer.json"
    tmp_path.mkdir(exist_ok=True)
    path.write_text(json.dumps({**content, **parts}))
    return path


def replacements(count: int, content: str) -> list[object]:
    return [{"type": "Replace", "pattern": {"String": "a"}, "content": content}] * count


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": replacements(8, "aaa")}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 2000}},
        {"decoder": {"type": "Sequence", "decoders": replacements(8, "aaa")}},
    ],
)
def test_replacements_that_could_fill_the_memory_are_refused(tmp_path: Path, parts: dict[str, object]) -> None:
    with pytest.raises(FileError, match="its replacements make a text more than 1,000 times longer"):
        load_tokenizer(changed(tmp_path, **parts))
    few = {"type": "Sequence", "normalizers": replacements(6, "aaa")}
    assert len(load_tokenizer(changed(tmp_path, normalizer=few)).encode("a")) > 1


def test_a_regular_expression_without_end_is_an_error(tmp_path: Path) -> None:
    """The library panics, which Python does not raise as an Exception."""
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = load_tokenizer(changed(tmp_path, pre_tokenizer=endless))
    with pytest.raises(TokenError, match=r"the tokenizer cannot encode the text: .*retry-limit"):
        tokenizer.encode("a" * 40 + "b")


def template(count: int, *ids: int) -> dict[str, object]:
    """A post-processor that puts a special token of these ids so many times before a text."""
    start, text = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start] * count + [text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": ids, "tokens": ["<|end|>"] * len(ids)}},
    }


@pytest.mark.parametrize(("count", "token"), [(65, 0), (1, 999)])
def test_start_tokens_that_no_model_has_are_refused(tmp_path: Path, count: int, token: int) -> None:
    tokenizer = load_tokenizer(changed(tmp_path, post_processor=template(count, token)))
    with pytest.raises(TokenError, match=f"puts {count} tokens before every text, the largest {token}"):
        _ = tokenizer.start_tokens


@pytest.mark.parametrize("processor", [template(5000, 0), template(1, *[0] * 5000), template(80, *[0] * 80)])
def test_an_absurd_template_is_refused_before_the_library_reads_it(
    tmp_path: Path, processor: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {"type": "Sequence", "processors": [processor]}
    paths = [changed(tmp_path, post_processor=processor), changed(tmp_path / "more", post_processor=several)]
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    for path in paths:
        with pytest.raises(FileError, match="it puts more than 4,096 tokens around a text"):
            load_tokenizer(path)


def test_a_vocabulary_out_of_proportion_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed(tmp_path, more=["x" * 1000] * 2000)
    monkeypatch.setattr(JsonSource, "parse", None)
    with pytest.raises(FileError, match=r"has 2,.* bytes, far too many for a model with 280 embeddings"):
        load_tokenizer(path, ModelTokens(280, None))
    with pytest.raises(TypeError):  # it is parsed
        load_tokenizer(path, ModelTokens(8000, None))
