"""Claims that train a GPT on text: their questions, and their own measure functions."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from normscope.lab.claim import Budget, Experiment, get_budget
from normscope.lab.claims.architecture import relu_squared, residuals_by_depth, warmup_by_wiring
from normscope.lab.claims.batchnorm import batchnorm_on_text
from normscope.lab.claims.initialization import init_scale_sensitivity
from normscope.lab.claims.norms import rmsnorm_vs_layernorm
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.running.tuning import tuned_variants
from normscope.lab.trials.text import SMALL_GPT, train_text
from tests.lab.made import shared_lrs

QUICK, FULL = get_budget("quick"), get_budget("full")
TINY = {**SMALL_GPT, "model": {**SMALL_GPT["model"], "depth": 1, "width": 16}, "steps": 10, "batch": 2, "lr": 3e-2}
TRAINED_HERE = (
    batchnorm_on_text,
    relu_squared,
    residuals_by_depth,
    rmsnorm_vs_layernorm,
    init_scale_sensitivity,
    warmup_by_wiring,
)
IDS = [claim.__name__.rpartition(".")[2] for claim in TRAINED_HERE]


def effects(experiment: Experiment, losses: Mapping[str, float], budget: Budget = QUICK) -> list[float]:
    """The effects of an experiment's questions for these losses."""
    runs = {name: {"loss": loss} for name, loss in losses.items()}
    return [question.effect(runs) for question in experiment.questions(budget)]


def made(experiment: Experiment, budget: Budget) -> VariantRuns:
    """Synthetic runs of all variants."""
    metrics = {"loss": 2.0, "curve": [(1, 4.0), (2, 2.0)], "relative_time": 1.0}
    names = list(experiment.variants(budget))
    return VariantRuns({name: [metrics, metrics] for name in names}, (0, 1), dict.fromkeys(names, 1e-2))


@pytest.mark.parametrize("budget", [QUICK, FULL], ids=["quick", "full"])
@pytest.mark.parametrize("experiment", [claim.EXPERIMENT for claim in TRAINED_HERE], ids=IDS)
def test_questions_and_charts_use_existing_variants(experiment: Experiment, budget: Budget) -> None:
    metrics = {name: {"loss": 2.0} for name in experiment.variants(budget)}
    assert all(abs(question.effect(metrics)) < 1e-9 for question in experiment.questions(budget))
    assert len(experiment.charts(made(experiment, budget))) >= 2
    assert experiment.tuning is not None
    assert tuned_variants(
        list(metrics), experiment.tuning(budget)
    )  # every rate that is shared is one that is looked for


@pytest.mark.parametrize("budget", [QUICK, FULL], ids=["quick", "full"])
def test_scales_are_symmetric_around_the_usual_one(budget: Budget) -> None:
    found = init_scale_sensitivity.scales(budget)
    assert init_scale_sensitivity.USUAL in found
    for below, above in zip(found, reversed(found), strict=True):
        assert below * above == pytest.approx(1, rel=0.11)  # 0.3 stands for a third


def test_cost_of_a_scale_is_relative_to_the_usual_one() -> None:
    pre = {"pre 0.1": 2.3, "pre 0.3": 2.1, "pre 1": 2.0, "pre 3": 2.4, "pre 10": 2.6}
    post = {"post 0.1": 1.8, "post 0.3": 2.0, "post 1": 2.1, "post 3": 3.0, "post 10": 3.2}
    large, small = effects(init_scale_sensitivity.EXPERIMENT, {**pre, **post})
    assert large == pytest.approx((0.9 + 1.1) / 2 - (0.4 + 0.6) / 2)
    assert small == pytest.approx((-0.3 - 0.1) / 2 - (0.3 + 0.1) / 2)


@pytest.mark.parametrize("budget", [QUICK, FULL], ids=["quick", "full"])
def test_lr_without_warmup_is_the_one_tuned_with_warmup(budget: Budget) -> None:
    variants = warmup_by_wiring.variants(budget)
    shared = shared_lrs(warmup_by_wiring.EXPERIMENT, budget)
    assert set(shared) == {name for name, settings in variants.items() if settings["warmup"] == 0}
    for without, with_one in shared.items():
        assert variants[with_one] == {**variants[without], "warmup": variants[with_one]["warmup"]}
        assert variants[with_one]["warmup"] > 0


def test_warmup_questions_measure_the_right_differences() -> None:
    losses = {"pre with": 1.8, "pre without": 1.9, "post with": 2.0, "post without": 2.7}
    asked = effects(warmup_by_wiring.EXPERIMENT, {f"{name} warmup, 6 blocks": loss for name, loss in losses.items()})
    assert asked == pytest.approx([0.1, 0.7, -0.2])
    assert [question.side for question in warmup_by_wiring.questions(QUICK)] == ["below", "above", "below"]


@pytest.mark.parametrize("budget", [QUICK, FULL], ids=["quick", "full"])
def test_every_depth_is_charted_and_the_gap_is_relative_to_the_shallowest(budget: Budget) -> None:
    experiment, depths = residuals_by_depth.EXPERIMENT, residuals_by_depth.depths(budget)
    for line in experiment.charts(made(experiment, budget))[0].lines:
        assert [x for x, _ in line.points] == list(depths)
    losses = dict.fromkeys(experiment.variants(budget), 2.0)
    losses.update({"one, 1 block": 2.1, "none, 1 block": 2.3, "one, 24 blocks": 2.5, "none, 24 blocks": 3.1})
    assert effects(experiment, losses, budget) == pytest.approx([0.5, 0.4, 0.6, 0.4])


def test_equal_time_shares_the_lr_of_equal_steps() -> None:
    experiment = relu_squared.EXPERIMENT
    shared, variants = shared_lrs(experiment, QUICK), experiment.variants(QUICK)
    assert set(shared) == {name for name, settings in variants.items() if settings["equal"] == "time"}
    for timed, stepped in shared.items():
        assert variants[timed] == {**variants[stepped], "equal": "time"}


def test_time_ratio_is_robust_to_slowdowns_and_outliers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is ten times slower in half of the rounds, and one step is an outlier."""
    settings = {**TINY, "equal": "time", "model": {**TINY["model"], "activation": "gelu"}}
    calls = itertools.count()

    def seconds(trainer: Any) -> float:
        call = next(calls)
        own = 1.25 if trainer.model.config.activation == "gelu" else 1.0
        hiccup = 0.01 if call == 5 else 1.0
        return own * hiccup * (10.0 if call >= relu_squared.TIMED_STEPS else 1.0)

    monkeypatch.setattr(relu_squared, "_seconds", seconds)
    assert relu_squared.relative_time(settings, 0) == pytest.approx(1.25)
    assert next(calls) == 2 * relu_squared.TIMED_STEPS
    metrics = relu_squared.measure(settings, 0)
    assert metrics["relative_time"] == pytest.approx(1.25)
    assert metrics["steps"] == TINY["steps"] / 1.25


def test_one_training_step_is_timed() -> None:
    trainer = relu_squared._trainer({**TINY, "model": {**TINY["model"], "activation": "relu2"}}, 0)
    relu_squared._seconds(trainer)
    assert trainer.steps_done == 1


def test_powernorm_warmup_uses_batch_statistics() -> None:
    model = {**TINY["model"], "norm": "power", "activation": "gelu", "allow_future_leak": True}
    plain, warmed, every_seed = (train_text({**TINY, "model": model, "norm_warmup": steps}, 0) for steps in (0, 2, 10))
    assert plain["curve"][0][1] != warmed["curve"][0][1] == every_seed["curve"][0][1]
    assert warmed["curve"][1] == every_seed["curve"][1]
    assert warmed["curve"][2] != every_seed["curve"][2]  # two of ten steps are over
