"""nanochat's checkpoints, of both versions: the logits of its formulas, its tokenizer, and what is refused."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import torch
from torch import Tensor

from normscope.errors import FileError, WeightsError
from normscope.interop.checkpoint import build_model
from normscope.interop.nano.nanochat import read_nanochat, reverse_rotation
from normscope.models.presets import nanochat, nanochat_2026_07
from tests.interop.karpathy_models import nanochat_logits, nanochat_weights, save_nanochat
from tests.support import randn, random_tokens

TOKENS = random_tokens(37, 1, 140)


def test_the_first_version_gives_the_logits_of_its_formulas(tmp_path: Path) -> None:
    weights = nanochat_weights(later=False, padded=37)
    save_nanochat(tmp_path, {f"_orig_mod.{name}": weight for name, weight in weights.items()})
    found = read_nanochat(tmp_path)
    sizes: dict[str, Any] = {"vocab_size": 37, "context": 300, "width": 32, "depth": 3, "heads": 4, "kv_heads": 2}
    assert found.config == nanochat(**sizes)
    torch.testing.assert_close(build_model(found)(TOKENS), nanochat_logits(weights, TOKENS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", ["SSSL", "ls"])
def test_the_later_version_gives_the_logits_of_its_formulas(pattern: str, tmp_path: Path) -> None:
    """Its vocabulary is padded, and its windows end within the text."""
    weights = nanochat_weights(later=True)
    save_nanochat(tmp_path, weights, window_pattern=pattern)
    found = read_nanochat(tmp_path)
    assert (found.config.window, found.config.window_pattern) == (129, {"SSSL": "SSL", "ls": "LSL"}[pattern])
    logits = nanochat_logits(weights, TOKENS, pattern.upper())
    torch.testing.assert_close(build_model(found)(TOKENS), logits, rtol=1e-4, atol=1e-5)
    if pattern == "SSSL":
        assert not torch.allclose(logits[:, -1], nanochat_logits(weights, TOKENS, "L")[:, -1], atol=1e-3)
        sizes: dict[str, Any] = {"vocab_size": 37, "context": 300, "width": 32, "depth": 3, "heads": 4, "kv_heads": 2}
        assert found.config == nanochat_2026_07(**sizes)


def test_cached_decoding_equals_one_pass(tmp_path: Path) -> None:
    model = build_model(read_nanochat(save_nanochat(tmp_path, nanochat_weights(later=True), window_pattern="SSSL")))
    with torch.inference_mode():
        cache = model.new_cache(batch=1)
        parts = [
            model(TOKENS[:, start:stop], cache=cache) for start, stop in ((0, 100), (100, 101), (101, 139), (139, 140))
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(TOKENS), rtol=1e-4, atol=1e-5)


def test_a_rotation_by_the_opposite_angle_is_a_change_of_signs() -> None:
    """Exactly: for a head x, F R(t) F x is R(-t) x; and twice the change is none."""
    x, angle = randn(6, 3), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)[:, None]

    def rotate(x: Tensor, sign: int) -> Tensor:
        a, b, sine = x[:3], x[3:], sign * angle.sin()
        return torch.cat((a * angle.cos() - b * sine, a * sine + b * angle.cos()))

    assert torch.equal(reverse_rotation(rotate(reverse_rotation(x, 6), 1), 6), rotate(x, -1))
    assert torch.equal(reverse_rotation(reverse_rotation(x, 2), 2), x)


def test_weights_keep_their_dtype(tmp_path: Path) -> None:
    weights = nanochat_weights(later=True)
    halved = {
        name: weight.bfloat16() if "wte" in name or "value_embeds" in name else weight
        for name, weight in weights.items()
    }
    found = read_nanochat(save_nanochat(tmp_path, halved, window_pattern="L")).weights
    half = {name for name, weight in found.items() if weight.dtype == torch.bfloat16}
    assert half == {"embedding.weight", "value_embeddings.0.weight", "value_embeddings.2.weight"}


def test_the_last_step_of_a_folder(tmp_path: Path) -> None:
    weights = nanochat_weights(later=False)
    save_nanochat(tmp_path, weights, step=900)
    last = save_nanochat(tmp_path, weights, step=1000)
    assert read_nanochat(tmp_path).path == last
    assert read_nanochat(tmp_path / "model_000900.pt").path.name == "model_000900.pt"


def without(name: str) -> dict[str, Tensor]:
    weights = nanochat_weights(later=True)
    del weights[name]
    return weights


@pytest.mark.parametrize(
    ("weights", "changes", "words"),
    [
        (
            without("smear_lambda"),
            {"window_pattern": "L"},
            "it has resid_lambdas but no smear_lambda: nanochat wrote such",
        ),
        (nanochat_weights(later=False), {"window_pattern": "SL"}, "it has a window_pattern but no resid_lambdas"),
        (without("value_embeds.0.weight"), {"window_pattern": "L"}, r"lacks weights \(1\): value_embeds.0.weight"),
        ({**nanochat_weights(later=False), "more": torch.ones(1)}, {}, r"has unknown weights \(1\): more"),
        (nanochat_weights(later=False), {"vocab_size": 65}, r"is torch.float32 of \(64, 32\), which does not fit"),
        (nanochat_weights(later=True), {"window_pattern": "SX"}, "must consist of the letters S and L"),
        (nanochat_weights(later=False), {"n_head": 3}, "width=32 is not divisible by heads=3"),
        (nanochat_weights(later=False), {"n_expert": 3}, "unknown field `n_expert`"),
        (
            nanochat_weights(later=False),
            {"sequence_len": 50_000_000},
            "sequence_len=50000000 needs .* GB",
        ),
        ({"head": 3}, {}, "it is not a dict of tensors"),
    ],
)
def test_refusals(weights: dict[str, Any], changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = save_nanochat(tmp_path, weights, **changes)
    with pytest.raises(WeightsError, match=words):
        read_nanochat(path)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"has no model_NNNNNN.pt\nfix: name a folder with"):
        read_nanochat(tmp_path)
    (tmp_path / "d12").mkdir()
    path = save_nanochat(tmp_path / "d12", nanochat_weights(later=False))
    with pytest.raises(FileError, match="fix: name one of its folders: d12"):
        read_nanochat(tmp_path)
    path.with_name("meta_000007.json").unlink()
    with pytest.raises(WeightsError, match=r"meta_000007.json does not exist"):
        read_nanochat(path)


NAMES = ("bos", "user_start", "user_end", "assistant_start", "assistant_end")


def save_tokenizer(path: Path, size: int) -> None:
    """Some bytes are their own tokens, the last five tokens are special."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {bytes([97, byte]): 256 + byte for byte in range(size - 261)}
    special = {f"<|{name}|>": size - 5 + i for i, name in enumerate(NAMES)}
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = tiktoken.Encoding("small", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens=special)
    path.write_bytes(pickle.dumps(encoding))


@pytest.mark.parametrize("place", ["base_checkpoints/d12/tokenizer.pkl", "tokenizer/tokenizer.pkl"])
def test_its_tokenizer_and_conversations(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "base_checkpoints" / "d12"
    folder.mkdir(parents=True)
    path = save_nanochat(folder, nanochat_weights(later=False, padded=320), vocab_size=270)
    assert "copy nanochat's tokenizer.pkl to" in read_nanochat(path).notices[0]
    save_tokenizer(tmp_path / place, 270)
    found = read_nanochat(path)
    assert found.tokenizer is not None
    assert found.chat_template is not None
    assert found.tokenizer.vocab_size == 270
    assert found.tokenizer.eos_token_id == found.tokenizer.special_tokens["<|bos|>"] == 265
    save_tokenizer(tmp_path / place, 280)
    monkeypatch.setattr("normscope.interop.nano.tiktoken_bpe.tokenizer_from_ranks", None)  # which would take its time
    with pytest.raises(WeightsError, match="has 280 tokens, but the model 270"):
        read_nanochat(path)
