"""Explanations: the code that is shown is the code that ran, and the checks can fail."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.errors import ConfigError, NormscopeError, ShapeError, TokenError
from normscope.learning.catalog import TOPICS, explain
from normscope.learning.lesson import Lesson, Step, Topic, max_difference
from tests.learning.cases import explained, numbers, wrong
from tests.support import Refusal, every_refusal, randn

EACH_TOPIC = pytest.mark.parametrize("topic", TOPICS)


@EACH_TOPIC
def test_references_agree_on_the_example(topic: str) -> None:
    worked = explained(topic)
    assert wrong(worked) == []
    assert worked.description
    assert all(step.description and step.code for step in worked.steps)
    others = [check.reference for step in worked.steps for check in step.checks if "float64" not in check.reference]
    assert others, "somebody else computed it too"


@EACH_TOPIC
def test_the_code_that_is_shown_gives_the_numbers_that_are_shown(topic: str) -> None:
    worked, lesson = explained(topic), TOPICS[topic].lesson()
    names: dict[str, Any] = {**lesson.given, **lesson.hidden}
    for work, shown in zip(TOPICS[topic].steps, worked.steps, strict=True):
        here = {**inspect.unwrap(work.function).__globals__, **names}
        exec(shown.code, here)  # as a reader would type it
        names[shown.title] = here[shown.title]
        if isinstance(shown.value.content, str):
            assert str(names[shown.title]) == shown.value.content
        else:
            typed = names[shown.title]
            found = typed.detach().numpy() if isinstance(typed, Tensor) else np.asarray(typed)
            np.testing.assert_array_equal(found, shown.value.content)


@EACH_TOPIC
def test_explaining_does_not_change_the_rng(topic: str) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = explain(topic)
    assert torch.rand(1) == expected
    for before, after in zip(first.steps, explained(topic).steps, strict=True):
        assert np.array_equal(np.asarray(before.value.content), np.asarray(after.value.content))


@pytest.mark.parametrize("topic", ["requires-grad", "residual", "layernorm", "powernorm"])
@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode])
def test_no_grad_and_inference_mode_do_not_matter(topic: str, surroundings: Callable[[], Any]) -> None:
    usual = explained(topic)
    with surroundings():
        found = explain(topic)
    assert [step.checks for step in found.steps] == [step.checks for step in usual.steps]


def test_another_default_dtype_does_not_matter() -> None:
    usual = explain("block")
    torch.set_default_dtype(torch.float64)
    try:
        found = explain("block")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert [step.checks for step in found.steps] == [step.checks for step in usual.steps]


def test_the_users_tensor_does_not_change() -> None:
    x = randn(2, 3, dtype=torch.float32).requires_grad_()
    before = x.detach().clone()
    for name in ("layernorm", "requires-grad"):
        explain(name, x)
    assert torch.equal(x.detach(), before)
    assert x.grad is None


@Step({"half as much": lambda x: x, "none for two": lambda count: None if count == 2 else 0.0})
def doubled(x: Tensor) -> Tensor:
    """Twice x, of {count} numbers."""
    once = x  # and
    return once.add(  # once more
        x,
    )


def topic(x: Tensor) -> Lesson:
    """About   {count} numbers."""
    return Lesson({"x": x}, {"count": 2}, "A note.")


def test_a_reference_that_differs_is_reported() -> None:
    described = Topic("one line", title="{count} numbers", example=[1.0, 3.0], check=lambda x: x)
    worked = described(topic).explain()
    assert (worked.title, worked.description) == ("2 numbers", "About 2 numbers. A note.")
    assert wrong(worked) == [("doubled", "half as much", 3.0)]
    assert worked.steps[0].description == "Twice x, of 2 numbers."
    assert worked.steps[0].code == "once = x  # and\ndoubled = once.add(  # once more\n    x,\n)"
    with pytest.raises(KeyError, match="topic has no step 'tripled'; it has doubled"):
        worked.step("tripled")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, 2.0], [[1.0, 2.0]], float("inf")),
        ([float("nan")], [float("nan")], 0.0),
        ([float("nan")], [1.0], float("inf")),
        ([float("inf"), -float("inf")], [float("inf"), -float("inf")], 0.0),
        ([float("inf")], [-float("inf")], float("inf")),
        ([], [], 0.0),
    ],
)
def test_largest_difference(ours: Any, theirs: Any, expected: float) -> None:
    assert max_difference(torch.tensor(ours), torch.tensor(theirs)) == expected


def test_an_overflow_of_float32_is_reported() -> None:
    worked = explain("rmsnorm", [1e30, 2e30])
    told = {(title, reference) for title, reference, _ in wrong(worked)}
    assert ("squares", "float64") in told
    assert ("result", "normscope.RMSNorm") in told  # which is right
    assert ("result", "torch.nn.RMSNorm") not in told  # which is not


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "layernorm": [(1,), (4,), (2, 3, 4, 5)],
    "rmsnorm": [(1,), (4,), (2, 3, 4, 5)],
    "batchnorm": [(4, 3), (2, 3, 5), (2, 3, 2, 2), (2, 3, 2, 2, 2), (2, 3, 2, 1, 2, 2), (1, 3, 2)],
    "instancenorm": [(2, 3, 5), (1, 3, 2, 2), (2, 3, 2, 2, 2), (2, 1, 2, 1, 2, 2)],
    "groupnorm": [(1, 4), (2, 1), (2, 3, 5), (2, 4, 2, 2), (2, 6, 2, 2, 2), (1, 1, 7)],
    "powernorm": [(1, 3), (2, 3, 4), (2, 2, 2, 3)],
    "linear": [(5,), (2, 3, 4)],
    "mlp": [(5,), (2, 3, 4)],
    "relu2": [(5,), (2, 3, 4)],
    "attention": [(1, 1, 1), (2, 5, 6), (1, 3, 3)],
    "block": [(1, 1, 1), (2, 5, 6)],
    "residual": [(2, 5, 6), (1, 3, 3)],
    "requires-grad": [(5,), (2, 3, 4)],
}


@pytest.mark.parametrize(("topic", "shape"), [(topic, shape) for topic in SHAPES for shape in SHAPES[topic]])
def test_supported_shapes(topic: str, shape: tuple[int, ...]) -> None:
    x = randn(*shape, seed=3)
    worked = explain(topic, x)
    assert wrong(worked) == []
    if topic not in ("linear", "residual", "requires-grad"):
        assert numbers(worked, "result").shape == shape


def test_own_sizes_and_token_ids() -> None:
    assert wrong(explain("init", [3, 5])) == []
    assert wrong(explain("init", [64, 64])) == []
    assert wrong(explain("embedding", [[7, 0], [1, 60000]])) == []
    assert "one_hot" not in [step.title for step in explain("embedding", [60000] * 200).steps]


REFUSALS: list[Refusal] = [
    ("typo", ConfigError, "did you mean 'layernorm'", lambda: explain("layernrom")),
    ("unknown", ConfigError, "use one of: layernorm, ", lambda: explain("xyz")),
    ("no-name", ConfigError, "there is no topic None", lambda: explain(None)),  # type: ignore[arg-type]
    (
        "other-option",
        ConfigError,
        "rmsnorm has no option groups; its options are eps",
        lambda: explain("rmsnorm", groups=2),
    ),
    ("no-options", ConfigError, "mlp has no option eps; it has no options", lambda: explain("mlp", eps=1.0)),
    ("eps", ConfigError, "eps=-1 must be", lambda: explain("layernorm", eps=-1)),
    ("eps-rms", ConfigError, "eps=nan must be", lambda: explain("rmsnorm", eps=float("nan"))),
    ("eps-block", ConfigError, "eps='x' must be", lambda: explain("block", eps="x")),
    ("groups", ConfigError, "4 channels are not divisible by groups=3", lambda: explain("groupnorm", groups=3)),
    ("no-groups", ConfigError, "with one of 1, 2, 4", lambda: explain("groupnorm", groups=0)),
    ("heads", ConfigError, "--heads with one of 1, 2, 4", lambda: explain("attention", heads=3)),
    ("heads-block", ConfigError, "--heads with one of 1, 2, 4", lambda: explain("block", heads=0)),
    ("rank", ShapeError, "attention expects a tensor of 3 dim", lambda: explain("attention", [1.0, 2.0])),
    ("rank-block", ShapeError, "a block expects a tensor of 3 dim", lambda: explain("residual", [1.0, 2.0])),
    (
        "rank-file",
        ShapeError,
        "or a .npy file with 3 dimensions",
        lambda: explain("attention", np.ones((1, 1, 2, 2))),
    ),
    ("rank-zero", ShapeError, "1 or more dimensions, but got 0", lambda: explain("layernorm", np.float32(1))),
    ("rank-batch", ShapeError, "2 or more", lambda: explain("batchnorm", [1.0, 2.0])),
    ("one-value", ShapeError, "more than one value", lambda: explain("batchnorm", [[1.0, 2.0]])),
    ("one-pixel", ShapeError, "more than one value", lambda: explain("instancenorm", [[[1.0], [2.0]]])),
    (
        "one-in-a-group",
        ShapeError,
        "one value per group (2 groups)",
        lambda: explain("groupnorm", [[1, 2]], groups=2),
    ),
    ("power-rank", ShapeError, "2 or more", lambda: explain("powernorm", [1.0, 2.0])),
    ("many-pairs", ShapeError, "too many attention scores", lambda: explain("attention", torch.zeros(1, 3000, 4))),
    ("half-token", TokenError, "but got 1.5", lambda: explain("embedding", [1, 1.5])),
    ("negative-token", TokenError, "but got -1", lambda: explain("embedding", [1, -1])),
    ("large-token", TokenError, "but got 1000000", lambda: explain("embedding", [10**6])),
    ("huge-token", TokenError, "but got about 100000000", lambda: explain("embedding", [99_999_999])),
    (
        "lone-token",
        ShapeError,
        "embedding expects at least one dimension",
        lambda: explain("embedding", np.int64(3)),
    ),
    ("three-sizes", ShapeError, "two sizes", lambda: explain("init", [1, 2, 3])),
    ("half-a-size", ShapeError, "positive integers", lambda: explain("init", [1.5, 2])),
    ("huge-sizes", ShapeError, "100000 by 100000 is too large", lambda: explain("init", [10**5, 10**5])),
]


@every_refusal(*REFUSALS)
def test_errors_say_how_to_fix_them(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error) as caught:
        mistake()
    assert words in str(caught.value)
    assert "\nfix: " in str(caught.value)
