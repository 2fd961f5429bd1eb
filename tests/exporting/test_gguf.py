"""GGUF files of every family that llama.cpp has, with tokenizers of the families; faults of converters are caught."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer
from normscope.errors import ConfigError
from normscope.exporting.export import ExportError, export, export_source
from normscope.exporting.gguf import architectures, write
from normscope.exporting.gguf.architectures import architecture_of
from normscope.exporting.gguf.tokenizer import check_tokenizer
from normscope.exporting.gguf.write import WEIGHTS
from normscope.interop.checkpoint import build_model
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.gguf.read import read_gguf
from normscope.interop.huggingface.read import gpt_from_huggingface
from normscope.models.gpt import GPTConfig
from normscope.runs.import_model import import_model
from tests.exporting.families import CONTEXT, FAMILIES, made_for, source_of
from tests.exporting.library_tokenizers import LIBRARIES, byte_level, library_tokenizer, sentencepiece
from tests.exporting.models import small_source
from tests.exporting.test_planted_faults import metadata
from tests.interop.checkpoints import LLAMA3, L, S, made, stored
from tests.pairs import chiefly
from tests.support import random_tokens

FAST = [("gemma3", "f32")]


ALL = [(family, weights) for family in FAMILIES for weights in WEIGHTS]


@pytest.mark.parametrize("case", chiefly(FAST, [case for case in ALL if case not in FAST]), ids=" ".join)
def test_a_family_is_equal_in_llama_cpp_and_read_back(case: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    family, weights = case
    source = source_of(family)
    assert architecture_of(source.model.config) == FAMILIES[family][0]
    done = export_source(source, "gguf", tmp_path / "m.gguf", weights, "require")
    assert done.proof is not None
    assert done.proof.succeeded
    if weights == "f32" and family != "llama 3.1":  # whose rotary embeddings are read only with Meta's settings
        tokens = random_tokens(source.model.config.vocab_size, 1, CONTEXT)
        with torch.no_grad():
            expected, found = source.model(tokens), build_model(read_gguf(done.path))(tokens)
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-4


@pytest.mark.parametrize("family", chiefly(["mistral, window"], ["gemma2", "neox", "phi3, part", "qwen2", "smollm3"]))
def test_an_imported_folder_is_exported_with_its_own_tokenizer(family: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    theirs, library = made_for(family)
    theirs.save_pretrained(tmp_path / "phi3")  # a name of which llama.cpp expects other tokens
    library.save(str(tmp_path / "phi3/tokenizer.json"))
    done = export(import_model(tmp_path / "phi3", tmp_path / "my-phi3"), "gguf", weights="f16", proof="require")
    back = read_gguf(done.path)
    assert back.tokenizer is not None
    text = "It's the theme of 1984"
    assert back.tokenizer.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", chiefly([], LIBRARIES))
def test_tokenizers_of_the_families_are_equal_in_llama_cpp(name: str, tmp_path: Path) -> None:
    """So is the tokenizer that is read from the file, and written again."""
    pytest.importorskip("xllamacpp")
    source = small_source("llama", depth=1, vocab_size=400)
    notes = {"mistral": "puts a space", "gpt_neox": "(NFC)", "qwen2": "(NFC)"}
    for path, own in ((tmp_path / "1.gguf", library_tokenizer(name)), (tmp_path / "2.gguf", None)):
        found = own or read_gguf(tmp_path / "1.gguf").tokenizer
        assert found is not None
        source = dataclasses.replace(source, tokenizer=found)
        check_tokenizer(found, 400)
        proof = export_source(source, "gguf", path, "f32", "require").proof
        assert proof is not None
        assert [note for note in proof.known_differences if notes.get(name, "-") not in note or own is None] == []


def config_of(form: str, **changes: Any) -> GPTConfig:
    theirs = made(form, **changes)
    return gpt_from_huggingface(theirs.config.to_dict(), stored(theirs)).config


@pytest.mark.parametrize(
    ("form", "changes", "field"),
    [
        ("nanochat", {}, "embedding_norm=True"),
        ("gemma2", {}, "attention_scale=0.377"),
        ("gemma2-no-caps", {"query_pre_attn_scalar": 10}, "qk_norm=None"),
        ("gemma2", {"query_pre_attn_scalar": 10, "layer_types": [L, S, S, L]}, "window_pattern='LSS'"),
        ("gemma2", {"query_pre_attn_scalar": 10, "tie_word_embeddings": False}, "tied_head=False"),
        ("gemma2", {"query_pre_attn_scalar": 10, "attention_bias": True}, "bias='attention'"),
        ("qwen2-window", {}, "bias='qkv'"),
        ("qwen2", {"head_dim": 16}, "head_dim=16"),
        ("qwen3-bias", {}, "bias='attention'"),
        ("qwen3-window", {}, "qk_norm="),
        ("qwen3", {"rope_parameters": LLAMA3}, "rotary_scaling="),
        ("olmo2", {"tie_word_embeddings": True}, "tied_head=True"),
        ("neox-sequential", {}, "bias='mlp'"),
        ("neox-all-rotary", {}, "tied_head=True"),
        ("gpt2-relu", {}, "activation='relu'"),
    ],
)
def test_what_llama_cpp_lacks_is_refused_by_the_name_of_the_field(
    form: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        architecture_of(config_of(form, **changes))
    assert field in str(caught.value).split("(closest")[0]
    assert "`normscope train --preset llama`" in str(caught.value)


def test_nothing_is_written_of_what_is_refused(tmp_path: Path) -> None:
    theirs, _ = made_for("llama")
    theirs.config.hidden_act = "relu"
    theirs.save_pretrained(tmp_path / "relu")
    LIBRARIES["llama3"]().save(str(tmp_path / "relu/tokenizer.json"))
    run = import_model(tmp_path / "relu", tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="activation='reglu'"):
        export(run, "gguf")
    assert sorted(tmp_path.rglob("*")) == before


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def changed(library: tokenizers.Tokenizer, **parts: Any) -> tokenizers.Tokenizer:
    for name, part in parts.items():
        setattr(library, name, part)
    return library


def without_a_byte() -> tokenizers.Tokenizer:
    vocabulary = {"<unk>": 0, "a": 1, "<0x00>": 2}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    return changed(library, normalizer=normalizers.Replace(" ", "▁"), decoder=decoders.Sequence([decoders.Fuse()]))


def in_another_order() -> tokenizers.Tokenizer:
    """A tokenizer with byte fallback in which a merge is missing, although its token can be made of its parts."""
    library = LIBRARIES["gemma"]()
    merges = [tuple(one) for one in json.loads(library.to_str())["model"]["merges"]]
    library.model = models.BPE(
        library.get_vocab(with_added_tokens=False), merges[1:], unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    return library


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: changed(byte_level(BYTE_LEVEL), normalizer=normalizers.NFKC()), "normalizer='NFKC'"),
        (lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), "pre_tokenizer="),
        (lambda: byte_level(BYTE_LEVEL, ignore_merges=True), "model.ignore_merges=True"),
        (lambda: sentencepiece(normalizers.NFKC(), None), "byte fallback and normalizer="),
        (lambda: tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, True)), "model.type='Unigram'"),
        (without_a_byte, "model.vocab without='<0x01>'"),
        (in_another_order, "model.merges that scores of tokens cannot replace"),
    ],
)
def test_tokenizers_that_llama_cpp_lacks_are_refused(make: Callable[[], tokenizers.Tokenizer], message: str) -> None:
    with pytest.raises(ConfigError, match="cannot run a tokenizer with") as caught:
        check_tokenizer(HuggingFaceTokenizer(make()), 400)
    assert message in str(caught.value)
    assert "`normscope train --preset llama`" in str(caught.value)


Plant = Callable[[pytest.MonkeyPatch], None]


def tensors(change: Callable[[str, Tensor], Tensor]) -> Plant:
    right = architectures.tensors

    def wrong(*arguments: Any) -> Any:
        found = right(*arguments)
        return LazyTensors(found.specs, lambda key: change(key, found[key]))

    return lambda patch: patch.setattr(write, "tensors", wrong)


def interleaved(key: str, tensor: Tensor) -> Tensor:
    """q, k and v for each head in turn, as GPT-NeoX has them."""
    if "attn_qkv" not in key:
        return tensor
    by_head: Tensor = tensor.unflatten(0, (3, 4, -1)).transpose(0, 1)
    return by_head.reshape(tensor.shape)


FAULTS: dict[str, tuple[str, Plant, str]] = {
    "gain - 1": (
        "gemma2",
        tensors(lambda key, tensor: tensor - 1 if "norm" in key else tensor),
        "gains of norms are applied as gain - 1",
    ),
    "window pattern": ("gemma3", metadata(attention__sliding_window_pattern=2), "logits differ"),
    "local base": (
        "gemma3",
        metadata(rope__freq_base_swa=1e6),
        "blocks with a window have the rotary base of the others",
    ),
    "attention cap": ("gemma2", metadata(attn_logit_softcapping=1e6), "the soft cap of the attention is missing"),
    "logit cap": ("gemma2", metadata(final_logit_softcapping=1e6), "the soft cap of the logits is none"),
    "interleaved qkv": ("neox, sequential", tensors(interleaved), "q, k and v of the joint matrix are read"),
    "partial rotary": ("neox", metadata(rope__dimension_count=16), "logits differ"),
    "sequential branches": ("neox", metadata(use_parallel_residual=False), "logits differ"),
    "window": ("mistral, window", metadata(attention__sliding_window=CONTEXT), "the sliding window is none"),
    "sinks": (
        "mistral, window",
        tensors(lambda key, tensor: tensor * 0 if "sinks" in key else tensor),
        "logits differ",
    ),
    "rotary pattern": (
        "smollm3, other pattern",
        metadata(attention__rope_pattern=[True] * 3),
        "all blocks have the same rotary embedding",
    ),
}


@pytest.mark.parametrize("fault", chiefly(["interleaved qkv"], [one for one in FAULTS if one != "interleaved qkv"]))
def test_a_fault_of_a_family_is_caught(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    family, plant, words = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(ExportError) as caught:
        export_source(source_of(family), "gguf", tmp_path / "m.gguf", "f32", "require")
    assert words in str(caught.value)
