"""Designs of single claims that could be wrong while every answer looks right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from normscope.lab.claim import get_budget
from normscope.lab.claims.architecture import gradient_by_depth
from normscope.lab.claims.initialization import empty_vs_zeros, variance_by_depth
from normscope.lab.claims.norms import eps_and_precision, equivalent_norms
from normscope.lab.results.verdict import Answer, answer

QUICK = get_budget("quick")


def test_every_weight_scale_draws_its_own_weights() -> None:
    """The same draws, only scaled, would have the same relative error."""
    worst = [
        variance_by_depth.measure({"gain": gain, "layers": 2, "samples": 8}, 0)["worst"] for gain in (0.5, 1.0, 2.0)
    ]
    assert min(abs(one - other) for i, one in enumerate(worst) for other in worst[:i]) > 1e-6


def test_order_of_allocations_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def spy(name: str) -> None:
        real: Callable[..., Any] = getattr(torch, name)

        def allocate(*size: int) -> Any:
            order.append(name)
            return real(*size)

        monkeypatch.setattr(torch, name, allocate)

    spy("empty")
    spy("zeros")
    empty_vs_zeros.measure({"fill": "ones", "size": 256, "repeats": 4}, 0)
    assert order[2:] == ["empty", "zeros", "zeros", "empty"] * 2  # after one of each that does not count


def gradients_that_drift(a_block: float) -> dict[str, Answer]:
    """The answers for blocks that multiply the gradient by slightly more than theory predicts."""
    runs = {
        name: {
            "arrives": [(depth, factor ** (depth / 2) * a_block**depth) for depth in (1, 4, 14)],
            "in_company": [(depth, a_block**depth) for depth in (1, 4, 14)],
        }
        for name, (_, _, factor) in gradient_by_depth.STACKS.items()
    }
    return {question.text: answer(question, [runs]) for question in gradient_by_depth.questions(QUICK)}


def test_error_that_accumulates_over_blocks_contradicts_the_gradient_theory() -> None:
    assert {found.verdict for found in gradients_that_drift(1.02).values()} == {"supported"}
    for drift in (1.06, 1 / 1.06):
        failed = {text for text, found in gradients_that_drift(drift).items() if found.verdict == "contradicted"}
        assert len(failed) == len(gradient_by_depth.STACKS) + 1  # all but that without anything it vanishes


def test_eval_mode_of_a_warmed_up_batchnorm_matches_a_large_batch() -> None:
    metrics = equivalent_norms.measure({"library": "torch"}, 0)
    training, memory = (dict(metrics[name])[16] for name in ("batch_from_instance", "memory_from_instance"))
    assert memory == pytest.approx(training, rel=0.15)


@pytest.mark.parametrize(("kept", "verdict"), [(0.0, "supported"), (1.0, "contradicted")])
def test_eps_protects_only_if_the_output_is_zero(kept: float, verdict: str) -> None:
    """Finite output is not enough: it may be large."""
    metrics = {"kept 1e-20": kept, "broken 1e-20": 0.0}
    (question,) = [one for one in eps_and_precision.questions(QUICK) if " float16, torch's" in one.text]
    assert answer(question, [{"torch float16": metrics}]).verdict == verdict
