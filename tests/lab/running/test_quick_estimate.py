"""The quick estimate: a comparison that cannot fit is refused before anything starts."""

import pytest
import torch

from normscope.lab.compare.comparison import combinations
from normscope.lab.running import time_estimates
from normscope.lab.running.time_estimates import (
    FEWEST_STEPS,
    OVERESTIMATE,
    TimeBudgetError,
    check_time_budget,
    quick_step_times,
    step_flops,
)

VARIANTS = list(combinations({"depth": [1, 2]}).values())


@pytest.fixture
def steps_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_estimates, "quick_step_times", lambda variants: [1.0] * len(variants))


@pytest.mark.usefixtures("steps_of_a_second")
def test_comparison_that_cannot_fit_is_refused_with_a_suggestion() -> None:
    seconds = 2 * 5 * FEWEST_STEPS / OVERESTIMATE  # 10 runs, one at a time
    with pytest.raises(
        TimeBudgetError, match=r"10 runs of at least 40 steps do not fit into 3.31667 minutes"
    ) as refused:
        check_time_budget(VARIANTS, [2, 3], seconds - 1, workers=1)
    assert "fix: --minutes 8, " in str(refused.value)  # 400 s of 85% of the time
    check_time_budget(VARIANTS, [2, 3], seconds + 1, workers=1)
    check_time_budget(VARIANTS, [2, 3], 60 * 8, workers=1)


@pytest.mark.usefixtures("steps_of_a_second")
def test_more_workers_fit_more_runs() -> None:
    with pytest.raises(TimeBudgetError):
        check_time_budget(VARIANTS, [5], 150, workers=1)
    check_time_budget(VARIANTS, [5], 150, workers=2)


def test_large_models_are_estimated_by_flops_without_building_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"depth": [1, 48], "width": [1024], "heads": [8], "context": [512]}
    huge = list(combinations(sizes).values())
    monkeypatch.setattr(time_estimates, "matmul_speed", lambda: 1e9)
    monkeypatch.setattr(time_estimates, "_step_time", lambda settings: pytest.fail("it was timed"))
    assert quick_step_times(huge) == [step_flops(settings) / 1e9 for settings in huge]


def test_small_models_are_timed_with_reference_kernels_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.ops.kernel_mode import select_backend

    seen = []

    def step_time(settings: object) -> float:
        seen.append((torch.get_num_threads(), select_backend(torch.zeros(2))))
        return 0.5

    monkeypatch.setattr(time_estimates, "matmul_speed", lambda: 1e12)
    monkeypatch.setattr(time_estimates, "_step_time", step_time)
    threads = torch.get_num_threads()
    assert quick_step_times(VARIANTS) == [0.5, 0.5]
    assert seen == [(1, "reference")] * 2
    assert torch.get_num_threads() == threads


def test_quick_step_times_of_real_models() -> None:
    small, large = quick_step_times(list(combinations({"width": [16, 256]}).values()))
    assert 0 < small < large
