"""Heads, keys and scores of attention: as many as there are, whatever the batch, the mask and the way it is written."""

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.stats.tensors import AttentionStats


def looks_of(model: nn.Module, *batches: Tensor, **options: object) -> AttentionStats:
    with Xray(model) as x:
        for batch in batches:
            model(batch, batch, batch, **options)
    found = x.record[""].attention
    assert found is not None
    return found


@pytest.mark.parametrize("weights", [True, False])
def test_heads_of_torchs_attention_are_its_own_and_not_those_of_the_batch(weights: bool) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    found = looks_of(model, torch.randn(6, 5, 16), torch.randn(2, 5, 16), need_weights=weights)
    assert found.heads == len(found.entropy) == 4
    assert found.keys == 5


def test_batches_of_another_size_count_too() -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(4, 5, 16)
    both, one, other = looks_of(model, x, x[:2]), looks_of(model, x), looks_of(model, x[:2])
    for mean, first, second in zip(both.entropy, one.entropy, other.entropy, strict=True):
        assert mean == pytest.approx((4 * first + 2 * second) / 6)


def test_a_first_text_of_one_token_hides_no_other() -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    x, padded = torch.randn(4, 5, 16), torch.zeros(4, 5).bool()
    padded[0, 1:] = True
    found, rest = looks_of(model, x, key_padding_mask=padded), looks_of(model, x[1:])
    assert found.entropy == pytest.approx(rest.entropy)
    assert found.peaked == pytest.approx(rest.peaked)


class Masked(nn.Module):
    """Attention by hand, with a number added to hide keys."""

    def __init__(self, hidden: float, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.hidden, self.heads = nn.Linear(16, 48), hidden, heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.enter(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 2
        scores[..., 8:] += self.hidden
        y: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return y


def test_what_a_mask_hides_is_hidden_whatever_number_it_adds() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 12, 16)
    found = []
    for hidden in (-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf):
        with Xray(Masked(hidden)) as look:
            look._model(x)
        found.append(look.record[""].attention)
    first = found[0]
    assert first is not None
    assert first.keys == 8
    assert first.score_std is not None
    assert first.score_std < 2
    for other in found[1:]:
        assert other is not None
        assert other.keys == 8
        assert other.score_std == pytest.approx(first.score_std, rel=1e-3)
        assert other.entropy == pytest.approx(first.entropy, rel=1e-3)


def test_attention_over_no_keys_is_left_alone() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    with Xray(Nothing()) as x:
        x._model(torch.zeros(2, 3, 4, 0))
    assert x.record[""].attention is None
    assert x.record.notices == ()
