"""Which token ends a text and which stands before it: what the files say, not a guess from names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import normscope
from normscope.data.prepare import prepare
from normscope.data.tokenizers import load_tokenizer
from normscope.interop.gguf.tokenizer import read_gguf_tokenizer
from tests.interop.test_gguf_tokenizer import byte_level, metadata_of

transformers: Any = pytest.importorskip("transformers")
TEXT = "ab c"


def bytes_tokenizer(*special: str, start: str | None = None) -> Tokenizer:
    """Byte-level BPE, as of GPT-2 and Llama 3."""
    library = Tokenizer(models.BPE({one: i for i, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.add_special_tokens(list(special))
    if start is not None:
        library.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, library.token_to_id(start))]
        )
    return library


def gemma_tokenizer(*more: str) -> Tokenizer:
    """SentencePiece's BPE with tokens for bytes; </s> is the end of a strike-through in HTML, and no special token."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abcd", "</s>"]
    library = Tokenizer(models.BPE({one: i for i, one in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.add_special_tokens(names[:4])
    library.add_tokens([AddedToken("</s>", normalized=False)])
    library.add_special_tokens(list(more))
    library.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return library


def saved(
    folder: Path, library: Tokenizer, settings: dict[str, Any] | None = None, vocab_size: int | None = None, **more: Any
) -> Path:
    size = vocab_size or library.get_vocab_size()
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, **more}
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    library.save(str(folder / "tokenizer.json"))
    if settings is not None:
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


CASES: dict[str, tuple[Tokenizer, dict[str, Any] | None, dict[str, Any], str, list[str]]] = {
    "gemma": (gemma_tokenizer(), {"eos_token": "<eos>", "bos_token": "<bos>"}, {}, "<eos>", ["<bos>"]),
    "gemma-without-settings": (gemma_tokenizer(), None, {}, "<eos>", ["<bos>"]),
    "phi-3": (bytes_tokenizer("<|endoftext|>", "<|end|>"), {"eos_token": "<|endoftext|>"}, {}, "<|endoftext|>", []),
    "qwen": (bytes_tokenizer("<|endoftext|>", "<|im_end|>"), {"eos_token": "<|im_end|>"}, {}, "<|im_end|>", []),
    "llama-3": (
        bytes_tokenizer("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", start="<|begin_of_text|>"),
        {"eos_token": {"content": "<|eot_id|>", "__type": "AddedToken"}}, {}, "<|eot_id|>", ["<|begin_of_text|>"],
    ),
    "own-name": (bytes_tokenizer("<fin>"), {"eos_token": "<fin>"}, {}, "<fin>", []),
    "config.json": (bytes_tokenizer("<fin>", "<stop>"), None, {"eos_token_id": [257, 256]}, "<stop>", []),
    "none": (bytes_tokenizer(), None, {}, "", []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_the_files(case: str, tmp_path: Path) -> None:
    library, settings, ids, eos, start = CASES[case]
    folder = saved(tmp_path / "hf", library, settings, **ids)
    for source in (folder, normscope.import_model(folder, tmp_path / "run").folder):
        _, tokenizer = normscope.load(source)
        assert (tokenizer.eos_token, tokenizer.has_eos) == (eos, bool(eos))
        assert [library.id_to_token(token) for token in tokenizer.start_tokens] == start
        assert tokenizer.vocab_size == library.get_vocab_size()  # no token is added


@pytest.mark.parametrize("case", ["gemma", "llama-3", "qwen"])
def test_prompts_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    library, settings, ids, _, _ = CASES[case]
    folder = saved(tmp_path, library, settings, **ids)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"]
    wanted = theirs.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    (found,) = normscope.sample(folder, TEXT, max_new_tokens=6, temperature=0)
    assert found.tokens == wanted[0, prompt.shape[1] :].tolist()
    model, tokenizer = normscope.load(folder)
    conversation = normscope.Conversation(model, tokenizer, max_new_tokens=6, temperature=0)
    list(conversation.send(TEXT))
    assert conversation.messages[0].tokens[: prompt.shape[1]] == (*prompt[0].tolist(),)


def test_documents_start_and_end_with_them(tmp_path: Path) -> None:
    gemma_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("abc d\n" * 200)
    corpus = prepare(
        [tmp_path / "one.txt", tmp_path / "two.txt"], tmp_path / "out", tokenizer=tmp_path / "tokenizer.json"
    )
    tokens = np.fromfile(tmp_path / "out" / "train.bin", corpus.tokenizer.dtype)
    starts, ends = np.flatnonzero(tokens == 2), np.flatnonzero(tokens == 1)
    assert starts[0] == 0
    assert starts[1:].tolist() == [end + 1 for end in ends.tolist() if end + 1 < len(tokens)]


def test_tokens_without_an_embedding_are_left_out(tmp_path: Path) -> None:
    """Gemma 3's text models share a tokenizer with those for images."""
    library = gemma_tokenizer("<image_soft_token>")
    folder = saved(tmp_path, library, vocab_size=library.get_vocab_size() - 1)
    _, tokenizer = normscope.load(folder)
    assert tokenizer.vocab_size == library.get_vocab_size() - 1
    assert tokenizer.notices == ("left out tokens that the model has no embedding for: <image_soft_token>",)
    assert len(normscope.sample(folder, TEXT, max_new_tokens=2)[0].tokens) <= 2


def test_bytes_of_whole_characters_are_decoded_at_once(tmp_path: Path) -> None:
    """U+FFFD in a text is not the sign of an incomplete character."""
    gemma_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("\ufffd" * 5, "a\ufffd\ufffd\ufffdb", "\u00e9\ufffd\U0001f408\ufffd\ufffd\ufffd"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "more", "starts"),
    [("gpt-2", {}, False), ("gpt-2", {"add_bos_token": True}, True), ("llama-bpe", {}, True),
     ("llama-bpe", {"add_bos_token": False}, False)],
)  # fmt: skip
def test_those_of_a_gguf_file(pre: str, more: dict[str, Any], starts: bool) -> None:
    metadata = metadata_of(byte_level(pre), pre)
    ids = {
        name: metadata["tokenizer.ggml.tokens"].index(token)
        for name, token in (("bos", "<|endoftext|>"), ("eos", "<|im_start|>"))
    }
    metadata |= {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    tokenizer = read_gguf_tokenizer(metadata | {f"tokenizer.ggml.{name}": value for name, value in more.items()})
    assert tokenizer is not None
    assert tokenizer.eos_token == "<|im_start|>"
    assert tokenizer.start_tokens == ((ids["bos"],) if starts else ())


def test_they_are_exported(tmp_path: Path) -> None:
    library, settings, ids, _, _ = CASES["gemma"]
    run = normscope.import_model(saved(tmp_path / "hf", library, settings, **ids), tmp_path / "run")
    normscope.export(run.folder, to="hf", out=tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / "out" / name).read_text())
        assert (content["bos_token_id"], content["eos_token_id"]) == (2, 1)
    content = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (content["bos_token"], content["eos_token"]) == ("<bos>", "<eos>")
