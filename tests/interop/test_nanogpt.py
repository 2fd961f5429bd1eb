"""nanoGPT's checkpoints: the logits of its formulas, its tokenizers, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.data.tokenizers import AlphabetTokenizer, ByteTokenizer, load_tokenizer
from normscope.data.tokenizers.huggingface import train_bpe
from normscope.errors import ConfigError, FileError, NormscopeError, WeightsError
from normscope.generate.text import generate_text
from normscope.interop.checkpoint import build_model
from normscope.interop.nano.nanogpt import read_nanogpt
from tests.interop.karpathy_models import nanogpt_logits, nanogpt_weights, save_nanogpt
from tests.support import random_tokens

LETTERS = "\n abcdefghij"


@pytest.mark.parametrize("bias", [True, False])
def test_it_gives_the_logits_of_nanogpts_formulas(bias: bool, tmp_path: Path) -> None:
    weights, tokens = nanogpt_weights(bias), random_tokens(13, 2, 12)
    save_nanogpt(tmp_path, {f"_orig_mod.{name}": weight for name, weight in weights.items()})
    found = read_nanogpt(tmp_path)
    assert (found.format, found.config.dropout, found.tokenizer) == ("nanoGPT", 0.1, None)
    assert (
        f"copy the meta.pkl of its data folder, or GPT-2's tokenizer.json (or encoder.json and vocab.bpe) to {tmp_path}"
        in (found.notices[0])
    )
    torch.testing.assert_close(build_model(found)(tokens), nanogpt_logits(weights, tokens))


def test_weights_keep_their_dtype(tmp_path: Path) -> None:
    weights = {name: weight.bfloat16() for name, weight in nanogpt_weights().items()}
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 12, 12)  # the causal mask of old versions
    found = read_nanogpt(save_nanogpt(tmp_path, weights))
    assert {weight.dtype for weight in found.weights.values()} == {torch.bfloat16}


def meta(folder: Path, characters: str) -> None:
    numbers = {letter: i for i, letter in enumerate(characters)}
    content = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": numbers}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.pkl").write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("place", ["out", "data/letters"])
def test_a_tokenizer_of_characters_has_no_end_of_text(place: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = save_nanogpt(tmp_path / "out", nanogpt_weights())
    meta(tmp_path / place, LETTERS)
    found = read_nanogpt(path)
    assert isinstance(found.tokenizer, AlphabetTokenizer)
    assert (found.tokenizer.vocab_size, found.tokenizer.has_eos) == (12, False)
    assert found.tokenizer.encode("bad").tolist() == [LETTERS.index(letter) for letter in "bad"]
    with pytest.raises(ConfigError, match="has no end-of-text token\nfix: "):
        found.tokenizer.eos_token_id  # noqa: B018
    found.tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("\n").tolist() == [0]
    (text,) = generate_text(build_model(found), found.tokenizer, "", max_new_tokens=5)
    assert (len(text.text), text.finish_reason) == (5, "length")


def test_meta_pkl_of_an_export_ends_with_end_of_text(tmp_path: Path) -> None:
    path = save_nanogpt(tmp_path, nanogpt_weights())
    content = {"itos": dict(enumerate([*LETTERS, ""])), "stoi": {}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(content))
    tokenizer = read_nanogpt(path).tokenizer
    assert tokenizer is not None
    assert tokenizer.eos_token_id == 12
    names = [chr(byte) if byte < 128 else "\ufffd" for byte in range(256)]
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": dict(enumerate([*names, ""]))}))
    with pytest.raises(WeightsError, match="has 257 tokens, but the model only 13"):
        read_nanogpt(path)
    weights = nanogpt_weights()
    weights["transformer.wte.weight"] = weights["lm_head.weight"] = torch.ones(300, 8)
    assert isinstance(read_nanogpt(save_nanogpt(tmp_path, weights, vocab_size=300)).tokenizer, ByteTokenizer)


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("tokenizer.json", "")])
def test_gpt2s_files_beside_it(names: tuple[str, str], tmp_path: Path) -> None:
    trained = train_bpe(["the cat and the hat and the bat"], vocab_size=265)
    content = json.loads(trained.to_json())
    vocabulary = {name.replace("<|end|>", "<|endoftext|>"): token for name, token in content["model"]["vocab"].items()}
    order = sorted(vocabulary, key=lambda name: (name == "<|endoftext|>", vocabulary[name]))  # it is GPT-2's last
    merges = "".join(f"{' '.join(pair)}\n" for pair in content["model"]["merges"])
    if names[1]:
        (tmp_path / names[0]).write_text(json.dumps({name: i for i, name in enumerate(order)}))
        (tmp_path / names[1]).write_text(f"#version: 0.2\n{merges}")
    else:
        trained.save(tmp_path / names[0])
    weights = nanogpt_weights()
    weights["transformer.wte.weight"] = weights["lm_head.weight"] = torch.ones(320, 8)  # padded to a multiple of 64
    tokenizer = read_nanogpt(save_nanogpt(tmp_path, weights, vocab_size=320)).tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == 265
    text = " the rat and the naïve cat\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([one]) for one in tokenizer.encode(text)] == [
        trained.decode([one]) for one in trained.encode(text)
    ]
    if names[1]:
        assert tokenizer.special_tokens["<|endoftext|>"] == tokenizer.eos_token_id == 264


def without(name: str) -> dict[str, Any]:
    weights: dict[str, Any] = nanogpt_weights()
    del weights[name]
    return weights


@pytest.mark.parametrize(
    ("weights", "changes", "words"),
    [
        (without("transformer.h.1.ln_2.weight"), {}, "has no 'transformer.h.1.ln_2.weight'"),
        ({**nanogpt_weights(), "extra": torch.ones(1)}, {}, "weights not used by the model"),
        ({**nanogpt_weights(), "lm_head.weight": torch.ones(13, 8)}, {}, "weights not used by the model"),
        (nanogpt_weights(), {"n_embd": 16}, r"is float32 of \(13, 8\), but"),
        (nanogpt_weights(), {"n_head": 3}, "width=8 is not divisible by heads=3"),
        (nanogpt_weights(), {"rotary": True}, "model_args has the unknown setting 'rotary'"),
        ({"transformer.wte.weight": "text"}, {}, "it has no 'model' with tensors"),
    ],
)
def test_refusals(weights: dict[str, Any], changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save_nanogpt(tmp_path, weights, **changes)
    with pytest.raises(WeightsError, match=words):
        read_nanogpt(path)


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no checkpoint .*ckpt.pt\nfix: name the ckpt.pt"):
        read_nanogpt(tmp_path)
    torch.save({"model_args": {}}, tmp_path / "ckpt.pt")
    with pytest.raises(WeightsError, match="it has no 'model' with tensors"):
        read_nanogpt(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"stoi": {}}, "has no characters"),
        ({"itos": {0: "b", 1: "a"}}, "Unicode order"),
        ({"itos": {1: "a"}}, "0, 1, 2"),
    ],
)
def test_invalid_characters(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save_nanogpt(tmp_path, nanogpt_weights())
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(NormscopeError, match=words):
        read_nanogpt(path)


def test_the_dataset_of_a_checkpoint_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    content = torch.load(save_nanogpt(tmp_path / "out", nanogpt_weights()))
    torch.save({**content, "config": {"dataset": "../elsewhere"}}, tmp_path / "out" / "ckpt.pt")
    meta(tmp_path / "elsewhere", LETTERS)
    assert read_nanogpt(tmp_path / "out").tokenizer is None
