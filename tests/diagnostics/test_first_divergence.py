"""Where a difference begins, and why: what is said of it is so, and no more than is known."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.diff.differences import Divergence
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from tests.support import randn

X = randn(8, 16, dtype=torch.float32)
SAME = "same input and same weights"


def seen(model: nn.Module, x: Tensor = X) -> XrayRecord:
    with Xray(model) as look:
        model(x)
    return look.record


def begins(a: XrayRecord, b: XrayRecord) -> Divergence:
    found = compare(a, b).forward
    assert found is not None
    return found


class Twice(nn.Module):
    """A layer that stands at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layer(torch.tanh(self.layer(x))))
        return y


def test_a_layer_at_two_places_whose_weights_are_others() -> None:
    model = Twice()
    other = copy.deepcopy(model)
    other.layer.weight.data *= 1.1
    found = begins(seen(model), seen(other))
    assert (found.module, found.why) == ("layer", "its weights differ")


class Blocks(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(3))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = x + (self.factor if i == 1 else 1.0) * block(x)
        return x


def test_what_is_made_between_blocks_is_not_laid_on_the_next_one() -> None:
    model = Blocks()
    other = copy.deepcopy(model)
    other.factor = 1.3
    found = begins(seen(model), seen(other))
    assert found.module == "blocks.2"
    assert found.why == "the input of this module differs; it is computed earlier in the model"


@pytest.mark.parametrize("change", [lambda x: 1.1 * x, lambda x: x.flip(0)], ids=["another", "rows reversed"])
def test_another_input_of_the_model(change: Callable[[Tensor], Tensor]) -> None:
    """Also if all of its figures are the same."""
    model = nn.Sequential(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 4))
    found = begins(seen(model), seen(model, change(X)))
    assert (found.module, found.why) == ("", "the input of the model differs")


def test_other_tokens() -> None:
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    tokens = torch.arange(8).reshape(2, 4)
    found = begins(seen(model, tokens), seen(model, tokens.flip(1)))
    assert (found.module, found.why) == ("", "the input of the model differs")


def test_what_is_known_of_the_module_is_said() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).eval()
    trained = copy.deepcopy(model).train()
    found = begins(seen(model), seen(trained))
    assert (found.module, found.why) == ("1", f"eval vs training mode; {SAME}")
    squashed = copy.deepcopy(model)
    squashed[2] = nn.Sigmoid().eval()
    found = begins(seen(model), seen(squashed))
    assert (found.module, found.why) == ("2", f"Tanh vs Sigmoid; {SAME}")
    moved = copy.deepcopy(model)
    moved.get_buffer("1.running_mean").add_(0.5)
    found = begins(seen(model), seen(moved))
    assert found.module == "1"
    assert found.why == f"{SAME}: its code, its buffers or random numbers differ"


class Turned(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.turned = nn.Linear(16, 16), nn.Linear(16, 16), turned

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y: Tensor = self.second(x.flip(0) if self.turned else x + 0)
        return y


def test_the_same_numbers_are_not_claimed_where_nobody_saw_them() -> None:
    found = begins(seen(Turned(False)), seen(Turned(True)))
    assert found.module == "second"
    assert found.why.startswith("input of the same scale")


def test_figures_that_are_far_too_large_are_only_far_apart() -> None:
    record = seen(Turned(False))
    modules = tuple(replace(module, fingerprint=(1e308, -1e308, 1e308, 0.0)) for module in record.modules)
    found = compare(record, replace(record, modules=modules)).forward
    assert found is not None
