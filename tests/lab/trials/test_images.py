"""Trials on the digits: micro-batches, uniform guesses, noise, probes, and the claims based on them."""

import copy
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.lab import toolkit
from normscope.lab.claim import get_budget
from normscope.lab.claims.batchnorm import (
    batchnorm_large_lr,
    batchnorm_small_batches,
    batchnorm_smoothness,
    noise_after_batchnorm,
)
from normscope.lab.claims.initialization import tails_saturate
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.results.verdict import answer
from normscope.lab.trials.conv_stack import (
    ConvStack,
    FeatureNoise,
    expected_shift,
    feature_moments,
    probe_along_gradient,
    shift_between,
)
from normscope.lab.trials.images import UNIFORM_LOSS, evaluate_digits, load_digits, train_images
from tests.lab.made import shared_lrs

QUICK, FULL = get_budget("quick"), get_budget("full")
SMALL = {"optimizer": "sgd", "lr": 0.1, "batch": 8, "steps": 6}


def losses(norm: str, **settings: Any) -> Tensor:
    model = {"kind": "convnet", "widths": [8, 8], "norm": norm}
    return torch.tensor([loss for _, loss in train_images({**SMALL, "model": model, **settings}, 3)["curve"]])


def test_micro_batches_change_only_batch_statistics() -> None:
    torch.testing.assert_close(losses("group", micro_batch=2), losses("group"), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(losses("group", micro_batch=3), losses("group"), atol=1e-4, rtol=1e-4)  # 3, 3 and 2
    assert (losses("batch", micro_batch=2) - losses("batch")).abs().max() > 0.005
    torch.testing.assert_close(losses("batch", micro_batch=8), losses("batch"))


class Says(nn.Module):
    """A network with a confident constant answer."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> Tensor:
        return self.answer(images)


def test_network_no_better_than_a_uniform_guess_is_marked() -> None:
    digits = load_digits()
    right = 5.0 * nn.functional.one_hot(digits.test_labels, 10)
    sure = evaluate_digits(Says(lambda images: right), digits)
    assert sure.error == 0.0
    assert not sure.guessing
    for wrong in (-right, right * math.nan):
        found = evaluate_digits(Says(lambda images, said=wrong: said), digits)  # type: ignore[misc]
        assert found.guessing
        assert found.loss == UNIFORM_LOSS
    lost = train_images({**SMALL, "model": {"kind": "convnet", "norm": None}, "lr": 1e6, "steps": 20}, 0)
    assert lost["diverged"]
    assert lost["guessing"]
    assert not train_images({**SMALL, "model": {"kind": "convnet"}, "steps": 40}, 0)["guessing"]


def test_noise_is_its_mean_in_eval_mode() -> None:
    torch.manual_seed(0)
    noise, x = FeatureNoise(), torch.linspace(-2, 2, 8).reshape(2, 2, 1, 2)
    drawn = torch.stack([noise(x) for _ in range(20_000)]).mean(dim=0)
    torch.testing.assert_close(noise.eval()(x), drawn, atol=0.02, rtol=0)
    assert (drawn - x).abs().max() > 0.2


def test_shift_of_the_noise_alone_matches_theory() -> None:
    torch.manual_seed(0)
    noise, x = FeatureNoise(), torch.randn(64, 400, 4, 4)
    x = (x - x.mean(dim=(0, 2, 3), keepdim=True)) / x.std(dim=(0, 2, 3), keepdim=True)
    looks = [[(y.mean(dim=(0, 2, 3)), y.std(dim=(0, 2, 3)))] for y in (noise(x) for _ in range(12))]
    found = [shift_between(before, after) for before, after in pairwise(looks)]
    assert sum(found) / len(found) == pytest.approx(expected_shift(), rel=0.03)


def test_probes_leave_the_network_unchanged() -> None:
    torch.manual_seed(0)
    model, digits = ConvStack("batch"), load_digits()
    before = copy.deepcopy(model.state_dict())
    feature_moments(model, digits.images[:16])
    for name, now in model.state_dict().items():
        assert torch.equal(now, before[name]), name
    assert len(list(probe_along_gradient(model, digits.images[:16], digits.labels[:16], 0.1))) > 1
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name


def test_single_outlier_does_not_dominate_the_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    shifts: Iterator[float] = iter([0.5] * 7 + [1e9] + [0.5] * 100)
    monkeypatch.setattr(noise_after_batchnorm, "shift_between", lambda before, after: next(shifts))
    settings = {"norm": "batch", "batch": 8, "steps": 40, "lr": 0.01}
    found = noise_after_batchnorm.measure(settings, 0)
    assert len(found["shifts"]) == 20
    assert found["shift"] == pytest.approx(0.5 * 2e9 ** (1 / 20))
    assert found["held_out"] <= UNIFORM_LOSS


def test_noise_must_shift_more_than_both_other_networks() -> None:
    def verdicts(without: float) -> list[str]:
        shifts = {"none": without, "batch": 0.01, "noisy batch": 0.3}
        runs = {norm: {"shift": shift, "loss": 1.0} for norm, shift in shifts.items()}
        asked = noise_after_batchnorm.questions(QUICK)[:2]
        return [answer(question, [runs, runs]).verdict for question in asked]

    assert verdicts(0.25) == ["supported", "supported"]
    assert verdicts(0.35) == ["supported", "contradicted"]


def landscape(*seeds: tuple[list[float], list[float]]) -> VariantRuns:
    """Runs with constant metrics at the steps 1, 11, ..., without a norm and with."""
    names = ("loss_low", "loss", "loss_high", "variation", "change_low", "change", "change_high", "slope")
    scale = {"loss_low": 0.5, "loss_high": 2.0}

    def metrics(values: list[float]) -> dict[str, Any]:
        return {n: [(1 + 10 * i, scale.get(n, 1.0) * value) for i, value in enumerate(values)] for n in names}

    found = {"none": [metrics(plain) for plain, _ in seeds], "batch": [metrics(normed) for _, normed in seeds]}
    return VariantRuns(found, tuple(range(len(seeds))))


def test_band_of_the_smoothness_chart_is_along_the_gradient() -> None:
    runs = landscape(([1.0, 1.0], [2.0, 0.5]), ([3.0, 1.0], [6.0, 0.5]))
    first, _, third, last = batchnorm_smoothness.charts(runs)
    plain, normed = first.lines
    assert plain.interval[0] == (1.0, 1.0, 4.0)  # half of and twice 2, the mean of 1 and 3
    assert normed.interval[0] == (1.0, 2.0, 8.0)
    assert third.lines[0].interval[0] == (1.0, 1.0, 3.0)  # the seeds
    assert plain.interval_label != third.lines[0].interval_label
    assert [y for _, y in last.lines[0].points] == pytest.approx([2.0, 0.5])


@pytest.mark.parametrize(
    ("with_norm", "when"),
    [([2.0, 0.5, 0.5], "first at step 11"), ([0.5] * 3, "first at step 1"), ([2.0] * 3, "no checkpoint")],
)
def test_smoothness_chart_says_when_batchnorm_becomes_smoother(with_norm: list[float], when: str) -> None:
    runs = landscape(([1.0] * 3, with_norm))
    assert batchnorm_smoothness.charts(runs)[-1].title.endswith(when)


def test_single_outlier_does_not_dominate_the_smoothness(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([1.0, 1.0, 1e6, 1.0] * 2)

    def known(*_: Any) -> list[tuple[float, float, float]]:
        value = next(values)
        return [(0.0, value, value), (value, value, value)]

    monkeypatch.setattr(batchnorm_smoothness, "probe_along_gradient", known)
    found = batchnorm_smoothness.measure({"norm": "batch", "batch": 8, "steps": 8, "lr": 0.01, "checkpoints": 4}, 0)
    assert [found[f"usual_{name}"] for name in batchnorm_smoothness.MEASURES] == pytest.approx([1e6 ** (1 / 4)] * 3)


def test_only_the_micro_batch_shrinks() -> None:
    for budget in (QUICK, FULL):
        found = batchnorm_small_batches.variants(budget)
        assert len({(settings["batch"], settings["steps"]) for settings in found.values()}) == 1
        assert {settings["micro_batch"] for name, settings in found.items() if name.startswith("batch")} == {
            32,
            8,
            4,
            2,
        }
        shared = shared_lrs(batchnorm_small_batches.EXPERIMENT, budget)
        assert set(shared) == {name for name in found if name.startswith("group")} - {"group 32"}


def test_groupnorm_is_tested_at_large_lrs_with_the_full_budget() -> None:
    for budget, norms in ((QUICK, ["none", "batch"]), (FULL, ["none", "batch", "group"])):
        assert list(batchnorm_large_lr.variants(budget)) == norms
        runs = {norm: {"largest": lr} for norm, lr in zip(norms, (0.125, 2.0, 0.125), strict=False)}
        verdicts = [answer(question, [runs, runs]).verdict for question in batchnorm_large_lr.questions(budget)]
        assert verdicts == ["supported", "contradicted"][: len(norms) - 1]


def test_tails_are_compared_at_equal_standard_deviation_and_lr() -> None:
    def verdicts(spoilt: str) -> list[str]:
        runs = {
            f"{unit}, {normal}": {"saturated": 0.1, "loss": 0.2}
            if normal in ("full", spoilt)
            else {"saturated": 0, "loss": 0}
            for unit in tails_saturate.UNITS
            for normal in tails_saturate.NORMALS
        }
        return [answer(question, [runs, runs]).verdict for question in tails_saturate.questions(QUICK)]

    assert toolkit.IMAGE_MARGIN < 0.2
    assert verdicts("truncated") == ["supported"] * 4
    assert verdicts("truncated, same std") == ["contradicted"] * 4
    shared = shared_lrs(tails_saturate.EXPERIMENT, QUICK)
    assert {
        name: name.split(",")[0] + ", full" for name in tails_saturate.variants(QUICK) if "truncated" in name
    } == shared
