"""Each figure of a record against the same one computed by hand, from tensors that were kept."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from normscope import GPT, gpt2, llama
from normscope.diagnostics.record import XrayRecord
from tests.support import random_tokens


class Watched(nn.Module):
    """A small model that hands out what passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 4)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.kept["first"] = self.first(x)
        active = self.kept["relu"] = F.relu(hidden)
        normed = self.kept["norm"] = self.norm(active)
        result: Tensor = self.last(normed)
        self.kept["last"] = result
        for tensor in self.kept.values():
            tensor.retain_grad()
        return result


@pytest.fixture
def seen() -> tuple[Watched, XrayRecord, list[dict[str, Tensor]]]:
    """Three batches of unequal sizes, each with its tensors."""
    model, batches = Watched(), []
    with normscope.xray(model) as x:
        for size in (5, 8, 3):
            model.kept = {}
            model(torch.randn(size, 6) + 0.3).square().mean().backward()
            batches.append(model.kept)
    return model, x.record, batches


@pytest.mark.parametrize("name", ["first", "relu", "norm", "last"])
def test_signals_over_several_batches(name: str, seen: tuple[Watched, XrayRecord, list[dict[str, Tensor]]]) -> None:
    _, record, batches = seen
    module = record["relu()" if name == "relu" else name]
    for found, tensors in (
        (module.output, [batch[name].detach() for batch in batches]),
        (module.gradient, [batch[name].grad for batch in batches]),
    ):
        assert found is not None
        numbers = torch.cat([t.flatten().double() for t in tensors if t is not None])
        assert found.mean == pytest.approx(float(numbers.mean()), rel=1e-6, abs=1e-12)
        assert found.rms == pytest.approx(float(numbers.square().mean().sqrt()), rel=1e-6)
        assert found.variance == pytest.approx(float(numbers.var(correction=0)), rel=1e-6)
        assert (found.min, found.max) == (float(numbers.min()), float(numbers.max()))
        off = numbers - numbers.mean()
        assert found.kurtosis == pytest.approx(float(off.pow(4).mean() / off.square().mean() ** 2), rel=1e-6)
        assert found.zeros == pytest.approx(float((numbers == 0).double().mean()))
    assert (module.calls, record.batches, record.backward_passes) == (3, 3, 3)


def test_shapes_flops_bytes_and_who_feeds_whom(seen: tuple[Watched, XrayRecord, list[dict[str, Tensor]]]) -> None:
    _, record, _ = seen
    first, relu, last = record["first"], record["relu()"], record["last"]
    assert (first.input_shapes, first.output_shapes) == (((5, 6),), ((5, 12),))
    assert first.flops == 2 * 16 * 6 * 12 // 3  # of a batch, on average
    assert record[""].flops == (2 * 16 * 6 * 12 + 2 * 16 * 12 * 4) // 3
    assert first.output_bytes == 16 * 12 * 4 // 3
    assert (relu.fed_by, record["norm"].fed_by, last.fed_by) == (("first",), ("relu()",), ("norm",))
    assert record.parameter_count == 6 * 12 + 12 + 24 + 12 * 4 + 4


def test_parameters_their_gradients_and_their_updates() -> None:
    model = nn.Linear(5, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with normscope.xray(model) as x:
        model(torch.randn(4, 5)).square().sum().backward()
        gradient, before = model.weight.grad, model.weight.detach().clone()
        optimiser.step()
    weight = x.record[""].parameters[0]
    assert gradient is not None
    assert weight.gradient is not None
    assert weight.gradient.rms == pytest.approx(float(gradient.square().mean().sqrt()))
    assert weight.update_ratio == pytest.approx(float(0.1 * gradient.norm() / before.norm()), rel=1e-5)
    assert weight.in_optimizer
    assert weight.predicted_gain == pytest.approx(float((5 * model.weight.detach().square().mean()).sqrt()))
    step = x.record.steps[0]
    assert (step.optimizer, step.lr, step.number, step.peak_lr) == ("SGD", 0.1, None, None)


def test_a_step_of_ones_own_and_a_schedule() -> None:
    model = nn.Linear(5, 3, bias=False)
    with normscope.xray(model) as x, torch.no_grad():
        model.weight.mul_(1.01)
    assert x.record[""].parameters[0].update_ratio == pytest.approx(0.01, rel=1e-3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, start_factor=0.1, total_iters=10)
    with normscope.xray(model) as x:
        model(torch.ones(1, 5)).sum().backward()
        optimiser.step()
        schedule.step()
    step = x.record.steps[0]
    assert (step.number, step.peak_lr) == (1, 0.5)
    assert step.lr == pytest.approx(0.05)


def test_dead_and_saturated_units_over_batches() -> None:
    """A unit counts as dead only if it was so in every batch."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [-1, 0, 0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0, -1, 0]))
        model[2].weight.zero_()
        model[2].bias.copy_(torch.tensor([50.0, 0.1]))
    with normscope.xray(model) as x:
        model(torch.tensor([[1.0, -1, 0]]))  # 1, 2 and 3 are silent
        model(torch.tensor([[-1.0, -1, 0]]))  # 0, 1 and 2 are
    relu, tanh = x.record["1"].units, x.record["3"].units
    assert relu is not None
    assert tanh is not None
    assert (relu.count, relu.dead, relu.saturated) == (4, 2, None)
    assert (tanh.count, tanh.dead, tanh.saturated) == (2, 0, 1)
    assert x.record["3"].saturated == 0.5


def test_units_of_channels_come_second_in_images_and_last_in_texts() -> None:
    model = nn.Sequential(nn.Conv1d(2, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(35, 3), nn.ReLU())
    with normscope.xray(model) as x:
        model(torch.randn(4, 2, 7))
    counts = [x.record[name].units for name in ("1", "4")]
    assert [units.count for units in counts if units is not None] == [5, 3]


def test_features_that_stick_out() -> None:
    model = nn.Linear(8, 2)
    inputs = torch.randn(100, 8)
    inputs[:, 5] *= 50
    with normscope.xray(model) as x:
        model(inputs)
    features = x.record[""].features
    assert features is not None
    assert features.outliers[0][0] == 5
    assert features.outliers[0][2] == pytest.approx(float(inputs.abs().max()))
    assert features.median_rms == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_attention_against_the_weights_themselves(make: Any) -> None:
    model = GPT(make(vocab_size=29, context=12, depth=1, width=32, heads=4))
    tokens = random_tokens(29, 3, 12)
    attention: Any = model.blocks[0].attention
    with torch.no_grad():
        for linear in (attention.q, attention.k):
            linear.weight.mul_(8)
    kept: list[tuple[Tensor, Tensor]] = []

    class Keep(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if getattr(func, "__name__", "") == "attend":
                kept.append((args[0].detach(), args[1].detach()))
            return func(*args, **(kwargs or {}))

    with Keep():
        model(tokens)
    with normscope.xray(model) as x:
        model(tokens)
    q, k = (heads.transpose(1, 2).double() for heads in kept[0])
    scores = q @ k.repeat_interleave(4 // k.shape[1], dim=1).mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf).softmax(-1)[:, :, 1:]
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1) / torch.arange(2.0, 13).log()
    found = x.record["blocks.0.attention"].attention
    assert found is not None
    assert found.entropy == pytest.approx(entropy.mean((0, 2)).tolist(), rel=1e-4)
    assert found.peaked == pytest.approx((weights.amax(-1) > 0.99).double().mean((0, 2)).tolist())
    assert (found.heads, found.keys, found.future_weight) == (4, 12, 0.0)


class ByHand(nn.Module):
    """Attention as people write it: matmul, mask, softmax, matmul."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(8, 24), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / 2
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        mixed: Tensor = F.softmax(scores, dim=-1) @ v
        return mixed.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_by_hand(causal: bool) -> None:
    model = ByHand(causal)
    with normscope.xray(model) as x:
        model(torch.randn(2, 6, 8))
    found = x.record[""].attention
    assert found is not None
    assert found.heads == 2
    assert (found.future_weight == 0.0) == causal
    assert x.record[""].flops == 2 * 12 * 8 * 24 + 2 * (2 * 2 * 6 * 6) * 4 * 2


def test_joins_of_every_wiring() -> None:
    """Where a branch joins the stream, and whether the sum is normalized before it goes on."""
    found = {}
    for wiring in ("pre", "post", "sandwich", "parallel", "single"):
        model = GPT(gpt2(vocab_size=29, context=12, depth=3, width=16, heads=2, wiring=wiring))
        with normscope.xray(model) as x:
            model(random_tokens(29, 2, 12))
        middle = x.record["blocks.1"].joins
        found[wiring] = (len(middle), [join.post_norm for join in middle])
        for join in middle:
            assert 0 < join.branch < 10
            assert join.total <= join.stream + join.branch + 1e-6
    assert found == {
        "pre": (2, [None, None]),
        "post": (2, ["blocks.1.norms.0", "blocks.1.norms.1"]),
        "sandwich": (2, [None, None]),
        "parallel": (1, [None]),
        "single": (1, [None]),
    }


def test_the_model_is_the_same_under_another_name() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    with normscope.xray(model) as x:
        model(torch.randn(2, 4))
    assert x.record["0"].calls == 2
    assert len(x.record["0"].rms_by_call) == 2
    assert x.record["2"].alias_of == "0"
    assert x.record.parameter_count == 20
