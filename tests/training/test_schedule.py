"""Learning-rate schedules: warmup, plateau, decay and the final value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ConfigError
from normscope.training.schedule import LRSchedule

shares = st.floats(0, 0.5)


@given(st.integers(1, 300), st.sampled_from(["linear", "cosine", "constant"]), shares, shares, st.floats(0, 1))
def test_warmup_plateau_and_decay_stay_between_0_and_the_peak(
    steps: int, shape: str, warmup: float, decay: float, final: float
) -> None:
    schedule = LRSchedule(steps, shape, warmup, decay, final)  # type: ignore[arg-type]
    lr_schedule = [schedule.lr_scale(step) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in lr_schedule)
    peak = lr_schedule.index(max(lr_schedule))
    assert lr_schedule[: peak + 1] == sorted(lr_schedule[: peak + 1])
    assert lr_schedule[peak:] == sorted(lr_schedule[peak:], reverse=True)


def test_cosine_is_halfway_in_the_middle_of_the_decay() -> None:
    assert LRSchedule(100, "cosine", decay=1.0).lr_scale(50) == pytest.approx(0.5)
    assert LRSchedule(100, "cosine", decay=1.0, final_lr=0.2).lr_scale(50) == pytest.approx(0.6)


def test_constant_never_decays() -> None:
    assert {LRSchedule(10, "constant").lr_scale(step) for step in range(10)} == {1.0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 5, "schedule": "sine"}, "schedule='sine': choose one of linear, cosine, constant"),
        ({"steps": 5, "warmup": 1.5}, "warmup=1.5 must be a fraction"),
        ({"steps": 5, "warmup": 0.6, "decay": 0.6}, "must be at most 1"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LRSchedule(**settings)  # type: ignore[arg-type]
