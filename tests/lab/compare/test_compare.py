"""Comparisons: ranking, summary, notices and equal treatment of variants."""

import itertools
import math
from typing import Any

import pytest

from normscope.errors import ConfigError
from normscope.lab.compare.comparison import TUNING_SEEDS, check_buildable, combinations, leaks_future, one_step
from normscope.lab.compare.ranking import ranking, summarize
from normscope.lab.compare.report import comparison_page, notices, table
from normscope.lab.progress import work_of
from normscope.lab.results.variant_runs import VariantRuns
from normscope.lab.running.trial import LabTrial
from tests.lab.compare.comparing import GUESSING, Simulated, compared, metrics, plan, runs

CLEAR = runs(b=[2.0, 2.1, 2.2, 2.3], a=[1.0, 1.1, 1.2, 1.3], c=[3.0, 3.1, 3.2, 3.3])
UNCLEAR = runs(a=[2.0, 2.2, 1.9, 2.1], b=[2.1, 2.0, 2.2, 2.0])


def test_best_variant_is_first_and_differences_are_quantified() -> None:
    found = ranking(CLEAR)
    assert [one.name for one in found.ranked] == ["a", "b", "c"]
    assert found.pairs["a", "b"].behind.middle == pytest.approx(1.0)
    said = summarize(found)
    assert said.startswith("With this budget a is better than b by 1.00 nats per byte (95% 1.00 to 1.00).")
    assert "It is also better than c." in said


def test_undetected_differences_are_reported_as_such() -> None:
    assert summarize(ranking(UNCLEAR)).startswith("No difference found between a and b: ")
    three = runs(a=[2.0, 2.2, 1.9, 2.1], b=[2.1, 2.0, 2.2, 2.0], c=[2.05, 2.1, 2.0, 2.2])
    assert summarize(ranking(three)) == "No difference found between a, b and c."


def test_variants_similar_to_the_best_can_differ_from_each_other() -> None:
    """The best one scatters, the other two do not."""
    found = runs(a=[2.0, 1.6, 2.3, 1.7, 2.2], b=[2.0, 2.01, 1.99, 2.0, 2.02], c=[2.1, 2.112, 2.09, 2.099, 2.121])
    said = summarize(ranking(found))
    assert said.startswith("a does not differ from b or c, but b is better than c by 0.100 nats per byte (95% 0.")
    assert "No difference" not in said


def test_comparison_is_paired_by_seed() -> None:
    """Losses scatter by one, differences by nothing: only pairing detects the difference."""
    found = ranking(runs(a=[1.0, 2.0, 3.0, 3.9], b=[1.1, 2.1, 3.1, 4.0001]))
    assert found.pairs["a", "b"].differs
    assert found.ranked[0].loss.high > found.ranked[1].loss.low


def test_more_variants_give_wider_intervals() -> None:
    two = runs(a=[1.0, 1.1, 1.2, 1.3], b=[1.3, 1.25, 1.35, 1.7])
    many = VariantRuns({**two.metrics, **{f"x{i}": [metrics(9.0 + i)] * 4 for i in range(6)}}, (0, 1, 2, 3))
    wide, narrow = (ranking(found).pairs["a", "b"].behind for found in (many, two))
    assert wide.width > 1.5 * narrow.width


def test_failed_seed_is_reported_and_the_others_are_compared() -> None:
    found = ranking(runs(good=[1.50, 1.52, 1.49, 1.51, 1.50], fragile=[1.60, 1.62, 1.60, 1.61, GUESSING]))
    assert summarize(found) == (
        "fragile failed with 1 of 5 seeds: no better than a uniform guess. "
        "Over the 4 seeds with which both good and fragile trained, good is better by 0.103 nats per byte "
        "(95% 0.0945 to 0.110)."
    )


def test_variant_that_failed_once_can_be_better_otherwise() -> None:
    found = ranking(runs(steady=[1.60, 1.62, 1.60, 1.61, 1.61], fragile=[1.50, 1.52, 1.49, 1.51, GUESSING]))
    assert "with which both steady and fragile trained, fragile is better by 0.103 nats" in summarize(found)


def test_too_few_seeds_with_both_trained_are_not_compared() -> None:
    found = ranking(runs(a=[1.5, 1.5, GUESSING], b=[1.6, GUESSING, 1.6]))
    assert summarize(found).endswith("Both a and b trained with only 1 seed, too few to compare them.")
    assert "a failed with 1 of 3 seeds and b failed with 1 of 3 seeds" in summarize(found)


def test_nothing_is_compared_if_nothing_trained() -> None:
    nothing = [GUESSING] * 5
    two = summarize(ranking(runs(a=nothing, b=nothing)))
    assert two == "Neither a nor b learned anything: no better than a uniform guess with any of 5 seeds."
    assert "to 0" not in table(compared(runs(a=nothing, b=nothing)), ranking(runs(a=nothing, b=nothing)))
    three = summarize(ranking(runs(a=nothing, b=nothing, c=nothing)))
    assert three.startswith("None of a, b and c learned anything")
    one = summarize(ranking(runs(a=[2.0] * 5, b=nothing, c=nothing)))
    assert one == "Only a learned anything. b and c were no better than a uniform guess with any of 5 seeds."
    some = summarize(ranking(runs(a=[2.0] * 5, b=[2.5] * 5, c=nothing)))
    assert some.startswith("With this budget a is better than b by 0.500")
    assert some.endswith("c was no better than a uniform guess with any of 5 seeds.")


def test_failures_have_a_column_only_if_there_are_any() -> None:
    assert "failed" not in table(compared(CLEAR), ranking(CLEAR))
    found = runs(good=[1.5] * 3, fragile=[1.6, 1.6, GUESSING])
    lines = table(compared(found), ranking(found)).splitlines()
    assert [line.split()[-3:] for line in lines[1:]] == [["0", "of", "3"], ["1", "of", "3"]]
    page = comparison_page(compared(found))
    assert "<th>failed</th>" in page
    assert "fragile failed with 1 of 3 seeds" in page


def test_unequal_costs_are_reported() -> None:
    found = runs(slow=[2.0, 2.1], quick=[2.1, 2.2], lost=[GUESSING, GUESSING])
    unequal = compared(found, seconds=[7.0, 1.0, 0.0], context=[64, 32, 32])
    said = notices(unequal, ranking(found))
    assert said[0].endswith("a step of slow takes 7.0 times as long as one of quick")
    assert "different ones" in said[1]
    assert [line.split()[10] for line in table(unequal, ranking(found)).splitlines()[2:]] == ["10.0", "0"]
    assert notices(compared(CLEAR), ranking(CLEAR)) == []


def test_diverged_runs_are_excluded_from_timing() -> None:
    workers = Simulated(1, {1: 0.01, 2: 0.02}, {1: 0.0, 2: 0.0}, ends_early=lambda trial: trial.seed == 0)
    found = workers.run(plan(lrs=(0.01,), refine=False))
    assert found.seconds == pytest.approx({"depth 1": 0.01 * found.steps, "depth 2": 0.02 * found.steps})


def test_best_lr_at_the_edge_is_reported() -> None:
    tuned = {"a": {0.001: 3.0, 0.01: 2.0, 0.1: 1.0}, "b": {0.001: 3.0, 0.01: 2.0, 0.1: 2.5}}
    assert any(
        "the best learning rate of a is at the edge" in note
        for note in notices(compared(UNCLEAR, tuned), ranking(UNCLEAR))
    )


def test_every_combination_appears_once() -> None:
    found = combinations({"norm": ["rms", "layer"], "activation": ["gelu", "relu"], "depth": [3]})
    expected = [" ".join(pair) for pair in itertools.product(["rms", "layer"], ["gelu", "relu"])]
    assert list(found) == expected
    assert all(settings["model"]["depth"] == 3 for settings in found.values())


def test_kv_heads_follow_heads() -> None:
    found = combinations({"heads": [2, 3, 4, 8]})
    assert [settings["model"]["kv_heads"] for settings in found.values()] == [2, 3, 4, 8]
    asked = combinations({"heads": [4, 8], "kv_heads": [2]})
    assert [settings["model"]["kv_heads"] for settings in asked.values()] == [2, 2]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"norm": ["rms"]}, "nothing to compare"),
        ({"norm": ["rms", "rms"]}, "listed twice"),
        ({"norm": ["rms", "layer"], "depth": list(range(1, 14))}, "too many"),
    ],
)
def test_invalid_comparisons_are_refused(choices: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        combinations(choices)


def test_invalid_models_are_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        check_buildable(combinations({"activation": ["gelu", "nonsense"]}))


def test_batch_norm_is_allowed_and_reported_to_leak() -> None:
    found = combinations({"norm": ["rms", "batch", "power"]})
    check_buildable(found)
    assert {name for name, settings in found.items() if leaks_future(settings)} == {"batch"}


def by_rate(best: dict[int, float]) -> Any:
    """Losses with their minimum at the best learning rate of each depth."""

    def loss(trial: LabTrial) -> float:
        return 1 + abs(math.log10(trial.settings["lr"] / best[trial.settings["model"]["depth"]]))

    return loss


def test_every_variant_tries_one_more_lr_near_its_best() -> None:
    """The best is beyond the grid for one and within it for the other; both use equally many runs."""
    what = plan(lrs=(1e-3, 1e-2, 1e-1))
    workers = Simulated(2, {1: 0.01, 2: 0.01}, {1: 0.1, 2: 0.1}, by_rate({1: 1.0, 2: 0.014}))
    found = workers.run(what)
    assert sorted(found.tuned["depth 1"]) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])
    assert sorted(found.tuned["depth 2"]) == pytest.approx([1e-3, 1e-2, 0.032, 1e-1])
    assert found.runs.lrs["depth 1"] == pytest.approx(1.0)
    assert 0.008 < found.runs.lrs["depth 2"] < 0.025
    tried = [trial for trial in workers.trials if trial.seed >= 1000 and not trial.measure.endswith("run_cost")]
    assert {trial.seed for trial in tried} == {1000, 1001}
    assert [sum(trial.settings["model"]["depth"] == depth for trial in tried) for depth in (1, 2)] == [
        4 * TUNING_SEEDS
    ] * 2


@pytest.mark.parametrize("changes", [{}, {"refine": False}, {"lrs": (0.01,), "refine": False}])
def test_plan_counts_its_runs(changes: dict[str, Any]) -> None:
    what = plan(**changes)
    workers = Simulated(2, {1: 0.01, 2: 0.02}, {1: 0.1, 2: 0.1})
    workers.run(what)
    assert len(workers.trials) == len(what.work) + len(what.variants)  # and one of each for its pace


def test_deeper_models_are_more_work() -> None:
    what = plan((1, 10))
    one = {name: work_of(one_step(settings)) for name, settings in what.variants.items()}
    assert one["depth 10"] > 2 * one["depth 1"]
    assert what.work == list(one.values()) * sum(what.stages)


def test_given_lrs_are_the_only_ones_tried() -> None:
    found = Simulated(1, {1: 0.01, 2: 0.01}, {1: 0.1, 2: 0.1}, by_rate({1: 9.0, 2: 9.0})).run(plan(refine=False))
    assert [sorted(losses) for losses in found.tuned.values()] == [[1e-3, 1e-2, 1e-1]] * 2


def test_page_draws_the_differences_from_the_best() -> None:
    found = runs(**{f"variant {i}": [1.5 + i, 1.6 + i, 1.7 + i] for i in range(9)})
    page = comparison_page(compared(found))
    assert page.count('<svg class="forest') == 8  # all but the best
    assert "Training loss, the best 8" in page
    assert "Loss on held-out text" not in page  # nine names do not fit below a chart


def test_too_few_seeds_are_reported() -> None:
    found = runs(one=[1.5, 1.6, 2.0], other=[1.6, 1.9, 1.7])
    (notice,) = notices(compared(found), ranking(found))
    assert notice.startswith("too few seeds to separate some variants: they may differ by up to ")
    assert notice.endswith("; try --seeds 6")
    close = runs(one=[1.50, 1.60, 1.70], other=[1.51, 1.60, 1.71])
    assert notices(compared(close), ranking(close)) == []
