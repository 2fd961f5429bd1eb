"""What is compared: settings, weights, tokenizers, logits, greedy tokens, and the first layer that differs."""

from collections.abc import Sequence

import numpy as np
import pytest
import tokenizers
import torch

from normscope.comparing.behavior import compare_behavior, logit_distances, tolerance_for
from normscope.comparing.comparison import compare_runtimes
from normscope.comparing.report import runtime_lines
from normscope.comparing.runtime import GPTRuntime
from normscope.comparing.structure import compare_configs
from normscope.comparing.tokenizers import STRING_CLASSES, compare_tokenizers
from normscope.comparing.weights import compare_weights
from normscope.data.tokenizers import ByteTokenizer, CharacterTokenizer
from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, train_bpe
from normscope.errors import ConfigError
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPT
from normscope.models.presets import gpt2, llama, nanochat
from tests.comparing.test_causes import CONFIGS, trained


def test_equal_models_are_equal() -> None:
    model = trained(CONFIGS["llama"])
    diff = compare_runtimes(GPTRuntime(model), GPTRuntime(model))
    assert not diff.differs
    assert diff.behavior is not None
    assert diff.behavior.greedy > 16
    assert runtime_lines(diff)[1].startswith("logits: equal at 32 positions")


def test_bfloat16_weights_are_equal_within_the_tolerance_of_bfloat16_only() -> None:
    model = trained(CONFIGS["llama"])
    rounded = model_from_weights(model.config, {name: value.bfloat16() for name, value in model.state_dict().items()})
    assert GPTRuntime(rounded).precision == "bfloat16"
    assert not compare_behavior(GPTRuntime(model), GPTRuntime(rounded), greedy=0).differs
    assert compare_behavior(GPTRuntime(model), GPTRuntime(rounded), greedy=0, tolerance=1e-4).differs
    assert next(rounded.parameters()).dtype == torch.bfloat16  # the model itself stays as it is


@pytest.mark.parametrize(
    ("weight", "layer"),
    [
        ("embedding.weight", "embedding"),
        ("blocks.0.attention.v.weight", "blocks.0.attention.v"),
        ("blocks.1.mlp.down.weight", "blocks.1.mlp.down"),
        ("final_norm.weight", "final_norm"),
        ("head.weight", "head"),
    ],
)
def test_the_first_layer_that_differs_is_named(weight: str, layer: str) -> None:
    model = trained(CONFIGS["llama"])
    changed = {**model.state_dict(), weight: model.state_dict()[weight].flip(0)}
    other = model_from_weights(model.config, changed)
    found = compare_behavior(GPTRuntime(model), GPTRuntime(other)).layer
    assert found is not None
    assert found.name == layer


def test_greedy_tokens_may_differ_at_a_tie() -> None:
    class OtherAtTies(GPTRuntime):
        def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
            return [token + 1 for token in super().greedy(tokens, count)]

    flat = GPT(nanochat(vocab_size=8, context=16, depth=1, width=8, heads=2))  # the zero head: all logits are equal
    assert not compare_behavior(GPTRuntime(flat), OtherAtTies(flat)).differs
    clear = trained(CONFIGS["gpt2"])
    diff = compare_behavior(GPTRuntime(clear), OtherAtTies(clear))
    assert diff.first_position is None
    assert diff.differs
    assert diff.greedy_equal == 0


def test_nan_on_one_side_is_a_difference() -> None:
    logits = np.ones((2, 3), dtype=np.float32)
    broken = logits.copy()
    broken[1, 2] = np.nan
    assert logit_distances(logits, broken) == (0.0, float("inf"))
    assert logit_distances(broken, broken) == (0.0, 0.0)


def test_the_tolerance_is_that_of_the_coarser_side() -> None:
    assert tolerance_for("float32", "Q4_0") == tolerance_for("Q4_0") > tolerance_for("bfloat16")
    with pytest.raises(ConfigError, match="unknown precision 'q3'"):
        tolerance_for("q3")


def test_settings_differ_in_words() -> None:
    one, other = gpt2(), gpt2(context=512, activation="gelu-tanh", norm="rms", init="nanochat", dropout=0.5)
    assert [str(diff) for diff in compare_configs(one, other)] == [
        "activation (activation): gelu and gelu-tanh",
        "norm (norm.statistic): standardize and rms",
        "norm (norm.bias): True and False",
        "context length (context): 1024 and 512",
    ]
    assert not compare_configs(llama(), llama(kv_heads=4, head_dim=64, hidden=2048))


def test_weights_differ_by_name_shape_value_and_order() -> None:
    model = trained(CONFIGS["llama"])
    ours = model.state_dict()
    heads = ours["blocks.0.attention.q.weight"].unflatten(0, (6, 8))
    theirs = {
        **ours,
        "extra": torch.ones(1),
        "embedding.weight": ours["embedding.weight"][:, :-1],
        "blocks.0.attention.q.weight": heads[:, [4, 5, 6, 7, 0, 1, 2, 3]].flatten(0, 1),
        "blocks.1.attention.q.weight": ours["blocks.1.attention.q.weight"].unflatten(0, (6, 8)).flip(0).flatten(0, 1),
        "blocks.0.mlp.up.weight": ours["blocks.0.mlp.up.weight"] + 1,
        "blocks.1.mlp.up.weight": ours["blocks.1.mlp.up.weight"].bfloat16(),
    }
    del theirs["head.weight"]
    diff = compare_weights(ours, theirs, model.config)
    assert (diff.missing, diff.extra, diff.rounded) == (("head.weight",), ("extra",), 1)
    assert [name for name, *_ in diff.shapes] == ["embedding.weight"]
    assert {one.name: one.hint for one in diff.tensors} == {
        "blocks.0.attention.q.weight": "the halves of each head are swapped",
        "blocks.1.attention.q.weight": "the heads are in another order",
        "blocks.0.mlp.up.weight": "",
    }


def test_tokenizers_differ_by_classes() -> None:
    texts = ["the cat and the hat, 12 345 cafés\n" * 5]
    ours = train_bpe(texts, 300)
    assert not compare_tokenizers(Plain(ours), Plain(ours), vocab_size=ours.vocab_size).differs
    library = tokenizers.Tokenizer.from_str(ours.to_json())
    library.normalizer = tokenizers.normalizers.NFC()
    theirs = HuggingFaceTokenizer(library)
    found = compare_tokenizers(Plain(ours), Plain(theirs), vocab_size=ours.vocab_size, special=["<|end|>"])
    names = {one.name for one in found.differing}
    assert "decomposed accents" in names
    assert not names & {"English", "digits", "names of special tokens", "emoji"}


def test_a_character_that_one_side_lacks_is_counted_as_refused() -> None:
    ours, theirs = CharacterTokenizer.of(["abc"]), CharacterTokenizer.of(["abcé"])
    found = compare_tokenizers(Plain(ours), Plain(theirs), vocab_size=4)
    assert {one.name for one in found.differing} <= set(STRING_CLASSES) | {"text of the vocabulary"}
    assert not compare_tokenizers(Plain(ours), Plain(ours), vocab_size=4).differs
    assert all(one.refused for one in compare_tokenizers(Plain(ByteTokenizer()), Plain(ours), vocab_size=257).differing)


class Plain:
    """A tokenizer with ids as a list."""

    def __init__(self, tokenizer: ByteTokenizer | CharacterTokenizer | HuggingFaceTokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))
