"""Folders without tokenizer.json have the ids of the tokenizer that transformers makes of their files."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from normscope.data.tokenizers import Tokenizer
from normscope.data.tokenizers.load import ModelTokens
from normscope.errors import FileError
from normscope.interop.huggingface.older_tokenizers import read_older_tokenizer
from normscope.interop.huggingface.read import read_huggingface
from tests.interop.checkpoints import made
from tests.interop.test_gguf_tokenizer import TEXT, WORDS, byte_level, sentencepiece

MODEL = ModelTokens(1000, None)


def write_merges(folder: Path) -> tokenizers.Tokenizer:
    """Write the two files of GPT-2's tokenizer."""
    library = byte_level("gpt-2")
    content = json.loads(library.to_str())
    (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    lines = ["#version: 0.2", *map(" ".join, content["model"]["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return library


def write_sentencepiece(folder: Path, prefix: bool = True, **changes: Any) -> tokenizers.Tokenizer:
    """Write tokenizer.model with the schema of SentencePiece that transformers has."""
    pytest.importorskip("google.protobuf")
    from transformers.utils import sentencepiece_model_pb2_new as schema

    library, metadata = sentencepiece(prefix)
    model: Any = schema.ModelProto()  # type: ignore[attr-defined]
    for i, piece in enumerate(metadata["tokenizer.ggml.tokens"]):
        kind, score = (metadata[f"tokenizer.ggml.{name}"][i] for name in ("token_type", "scores"))
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = changes.get("model_type", 2)
    model.trainer_spec.vocab_size = len(model.pieces)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = changes.get("remove_extra_whitespaces", False)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    return library


def found(folder: Path, model_type: str, model: ModelTokens = MODEL) -> Tokenizer:
    tokenizer = read_older_tokenizer(folder, model_type, model)
    assert tokenizer is not None
    return tokenizer


def same_ids(ours: Tokenizer, theirs: tokenizers.Tokenizer) -> None:
    for text in (TEXT, *WORDS, "".join(WORDS)):
        ids = ours.encode(text).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids) == text


def test_vocabulary_and_merges(tmp_path: Path) -> None:
    library = write_merges(tmp_path)
    tokenizer = found(tmp_path, "gpt2")
    same_ids(tokenizer, library)
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.start_tokens == ()


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    library = write_sentencepiece(tmp_path, prefix)
    tokenizer = found(tmp_path, "llama")
    same_ids(tokenizer, library)
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.start_tokens == (1,)


def test_added_tokens_and_the_chat_template(tmp_path: Path) -> None:
    size = write_sentencepiece(tmp_path).get_vocab_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size, "<image>": size + 1}))
    settings = {"chat_template": "{{ messages }}", "eos_token": {"content": "<|im_end|>"}, "model_max_length": 10**30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = found(tmp_path, "llama", ModelTokens(size + 1, 2))  # the model has no embedding for <image>
    assert tokenizer.eos_token_id == size
    assert tokenizer.vocab_size == size + 1
    assert tokenizer.chat_template == "{{ messages }}"


def test_a_folder_is_read_with_it(tmp_path: Path) -> None:
    made("gpt2", vocab_size=400).save_pretrained(tmp_path)
    library = write_merges(tmp_path)
    tokenizer = read_huggingface(tmp_path).tokenizer
    assert tokenizer is not None
    same_ids(tokenizer, library)


def test_others_are_left_alone(tmp_path: Path) -> None:
    write_merges(tmp_path)
    assert read_older_tokenizer(tmp_path, "qwen2", MODEL) is None  # which splits words in another way


@pytest.mark.parametrize(
    ("changes", "problem"), [({"model_type": 1}, "not a BPE model"), ({"remove_extra_whitespaces": True}, "normalizes")]
)
def test_other_models_of_sentencepiece_are_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write_sentencepiece(tmp_path, **changes)
    with pytest.raises(FileError, match=rf"tokenizer\.model cannot be read: it .*{problem}.*\nfix: write a tokenizer"):
        found(tmp_path, "llama")


def test_vocabularies_out_of_proportion_are_refused(tmp_path: Path) -> None:
    size = write_sentencepiece(tmp_path).get_vocab_size()
    with pytest.raises(FileError, match=f"its tokenizer has {size:,} tokens, but the model {size - 1:,} embeddings"):
        found(tmp_path, "llama", ModelTokens(size - 1, None))
    with (tmp_path / "tokenizer.model").open("ab") as file:
        file.truncate(2 * 2**20)
    with pytest.raises(FileError, match="it has 2,097,152 bytes, more than the limit of"):
        found(tmp_path, "llama")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    data = (tmp_path / "tokenizer.model").read_bytes()
    for damaged in (data[:-1], data[:200], b"\xff" * 40, b"\x08\x01", b"\x0f", b""):
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(FileError, match=r"tokenizer\.model cannot be read"):
            found(tmp_path, "llama")
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "added_tokens.json").write_text('{"<late>": 900}')
    with pytest.raises(FileError, match="has '<late>' at 900, which is not its place"):
        found(tmp_path, "llama")
