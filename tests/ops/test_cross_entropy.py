"""The fused cross-entropy against its reference in torch: values, gradients, edges, threads and memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from normscope.errors import TokenError
from normscope.models.gpt import GPT
from normscope.ops.cross_entropy import cross_entropy, cross_entropy_reference
from normscope.ops.fused import cross_entropy as loops
from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.threads import ThreadPool
from tests.accuracy import assert_no_less_accurate
from tests.models.tiny import VOCABULARY, tiny
from tests.support import kept_for_backward, randn, random_tokens, scramble

Loss = Callable[[Tensor, Tensor, float | None], Tensor]
every_cap = pytest.mark.parametrize("cap", [None, 5.0], ids=["free", "capped"])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The number of threads of each loop that ran, and whether it left a gradient."""
    found: list[tuple[int, bool]] = []
    forward = loops.forward

    def recording(pool: ThreadPool, *arguments: Any) -> None:
        found.append((pool[0], arguments[-1][-1]))
        forward(pool, *arguments)

    monkeypatch.setattr(loops, "forward", recording)
    return found


def case(rows: int, d: int, scale: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and targets, of which some do not count."""
    targets = random_tokens(d, rows, seed=seed)
    targets[2::7] = -1
    return scale * randn(rows, d, seed=seed, dtype=torch.float32), targets


def results(loss: Loss, logits: Tensor, targets: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, targets, cap)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@every_cap
@pytest.mark.parametrize(("rows", "d"), [(50, 65), (40, 1), (33, 700), (8, 20_011), (9, 512)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_errors_are_no_larger_than_torchs(
    rows: int, d: int, scale: float, cap: float | None, runs: list[tuple[int, bool]]
) -> None:
    logits, targets = case(rows, d, scale)
    ours, theirs = results(cross_entropy, logits, targets, cap), results(cross_entropy_reference, logits, targets, cap)
    assert len(runs) == 1
    exact = results(cross_entropy_reference, logits.double(), targets, cap)
    for found, torchs, wanted in zip(ours, theirs, exact, strict=True):
        assert_no_less_accurate(found, torchs, wanted)


@every_cap
def test_it_is_the_mean_of_minus_log_p(cap: float | None) -> None:
    logits, targets = case(9, 6)
    z = logits.double() if cap is None else cap * torch.tanh(logits.double() / cap)
    terms = [
        math.log(sum(math.exp(value) for value in row)) - row[target]
        for row, target in zip(z.tolist(), targets.tolist(), strict=True)
        if target >= 0
    ]
    assert cross_entropy(logits, targets, cap).item() == pytest.approx(sum(terms) / len(terms), rel=1e-6)


@every_cap
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["target", "elsewhere", "whole row"])
def test_nan_and_infinity_go_through_as_in_torch(bad: float, where: str, cap: float | None) -> None:
    logits, targets = case(6, 40)
    if where == "whole row":
        logits[3] = bad
    else:
        logits[3, (int(targets[3]) + (where == "elsewhere")) % 40] = bad
    ours, theirs = results(cross_entropy, logits, targets, cap), results(cross_entropy_reference, logits, targets, cap)
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


@every_cap
def test_rows_that_do_not_count_have_no_say(cap: float | None) -> None:
    logits, targets = case(9, 40)
    spoilt = logits.masked_fill((targets < 0)[:, None], torch.nan)
    for found, wanted in zip(
        results(cross_entropy, spoilt, targets, cap), results(cross_entropy, logits, targets, cap), strict=True
    ):
        assert torch.equal(found, wanted)
    loss, gradient = results(cross_entropy, logits, torch.full_like(targets, -1), cap)
    assert loss.isnan()
    assert not gradient.any()


def test_an_empty_batch_has_no_mean() -> None:
    assert cross_entropy(torch.empty(0, 5), torch.empty(0, dtype=torch.int64)).isnan()


@every_cap
@pytest.mark.parametrize("wrong", [6, -2, 1 << 40])
@pytest.mark.parametrize("learns", [False, True])
def test_a_target_out_of_range_is_refused(wrong: int, learns: bool, cap: float | None) -> None:
    logits, targets = case(9, 6)
    targets[4] = wrong
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        cross_entropy(logits.requires_grad_(learns), targets, cap)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_cap
def test_halves_are_widened(dtype: torch.dtype, cap: float | None) -> None:
    logits, targets = case(9, 40)
    loss, gradient = results(cross_entropy, logits.to(dtype), targets, cap)
    wanted, its = results(cross_entropy, logits.to(dtype).float(), targets, cap)
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert torch.equal(loss, wanted)
    assert torch.equal(gradient, its.to(dtype))


def test_logits_that_do_not_lie_in_a_row() -> None:
    logits, targets = case(9, 40)
    spread = torch.stack([logits, logits], dim=-1)[..., 0]
    assert not spread.is_contiguous()
    for found, wanted in zip(
        results(lambda z, t, c: cross_entropy(torch.stack([z, z], dim=-1)[..., 0], t, c), logits, targets, None),
        results(cross_entropy, logits, targets, None),
        strict=True,
    ):
        assert torch.equal(found, wanted)


@pytest.mark.usefixtures("two_threads")
@every_cap
def test_threads_do_not_change_a_bit(cap: float | None, runs: list[tuple[int, bool]]) -> None:
    logits, targets = case(101, 700)
    many, alone = results(cross_entropy, logits, targets, cap), cross_entropy(logits, targets, cap)
    assert runs == [(2, True), (2, False)]
    for _ in range(100):  # each thread has a row of its own to work in, so none gets in another's way
        assert torch.equal(many[0], cross_entropy(logits, targets, cap))
    torch.set_num_threads(1)
    for one, other in zip(many, results(cross_entropy, logits, targets, cap), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(cross_entropy(logits, targets, cap), alone)


@every_cap
def test_a_row_does_not_depend_on_the_others(cap: float | None) -> None:
    logits, targets = case(64, 70)
    targets = targets.clamp(min=0)
    whole = results(cross_entropy, logits, targets, cap)[1]
    for first, count in ((0, 1), (5, 2), (32, 32)):  # powers of two, by which a mean is divided without rounding
        part = results(cross_entropy, logits[first : first + count], targets[first : first + count], cap)[1]
        torch.testing.assert_close(part * count / 64, whole[first : first + count], rtol=1e-7, atol=0)


@every_cap
def test_the_gradient_is_scaled_by_what_comes_in(cap: float | None) -> None:
    logits, targets = case(9, 40)
    wanted = results(cross_entropy, logits, targets, cap)[1]
    for factor in (1.0, 0.25, -3.0):
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy(leaf, targets, cap)
        for times in (1, 2, 3):  # again and again: what is kept may not change
            (factor * loss).backward(retain_graph=times < 3)
            torch.testing.assert_close(leaf.grad, times * factor * wanted, rtol=1e-6, atol=1e-9)


@every_cap
def test_second_and_third_derivatives_are_those_of_the_formula(cap: float | None) -> None:
    logits, targets = case(9, 6, scale=1.0)

    def higher(loss: Loss) -> list[Tensor]:
        leaf = logits.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(leaf, targets, cap).square(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf, create_graph=True)
        (third,) = torch.autograd.grad(second.pow(3).sum(), leaf)
        return [first, second, third]

    for one, other in zip(higher(cross_entropy), higher(cross_entropy_reference), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@every_cap
def test_no_more_is_kept_than_in_torch(cap: float | None) -> None:
    logits, targets = case(64, 70)

    def kept(loss: Loss) -> int:
        leaf = logits.clone().requires_grad_() * 1
        return sum(kept_for_backward(lambda: loss(leaf, targets, cap)).values())

    assert kept(cross_entropy) <= kept(cross_entropy_reference)


def test_what_is_left_to_the_formula(runs: list[tuple[int, bool]]) -> None:
    logits, targets = case(9, 40)
    cross_entropy(logits.double(), targets)
    cross_entropy(logits.to("meta"), targets.to("meta"))
    with reference_kernels():
        steps = cross_entropy(logits, targets)
    assert runs == []
    torch.testing.assert_close(cross_entropy(logits, targets), steps, rtol=1e-6, atol=0)
    assert runs == [(1, False)]


@every_cap
def test_where_the_loop_fails_the_formula_runs_after_one_notice(
    cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    logits, targets = case(9, 40)
    wanted = results(cross_entropy_reference, logits, targets, cap)
    monkeypatch.setattr(loops, "forward", broken)
    monkeypatch.setattr("normscope.ops.kernel_mode._enabled", True)  # for what follows turns it off
    with pytest.warns(RuntimeWarning, match="not available"):
        found = results(cross_entropy, logits, targets, cap)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    monkeypatch.setattr("normscope.ops.kernel_mode._enabled", True)
    with pytest.warns(RuntimeWarning, match="not available"):
        torch.testing.assert_close(cross_entropy(logits, targets, cap), wanted[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler calls what torch has deprecated
@every_cap
def test_torch_compile_sees_one_operator(cap: float | None) -> None:
    logits, targets = case(9, 40)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        called = (node for node in graph.graph.nodes if node.op == "call_function" and len(node.users))
        seen.extend(str(node.target) for node in called)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(cross_entropy, fullgraph=True, backend=backend)(logits, targets, cap)
    assert [name for name in seen if "getitem" not in name] == ["normscope.cross_entropy.default"]
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 0.3):
        for one, other in zip(
            results(lambda z, t, c, s=scale: s * compiled(z, t, c), logits, targets, cap),  # type: ignore[misc]
            results(lambda z, t, c, s=scale: s * cross_entropy(z, t, c), logits, targets, cap),  # type: ignore[misc]
            strict=True,
        ):
            assert torch.equal(one, other)
    for learns in (False, True):
        torch.library.opcheck(torch.ops.normscope.cross_entropy.default, (logits, targets, cap, learns))


@every_cap
def test_the_gpt_takes_it(cap: float | None, runs: list[tuple[int, bool]]) -> None:
    model = GPT(tiny("nanochat", logit_cap=cap))
    scramble(model)
    tokens = random_tokens(VOCABULARY, 2, 10)
    loss = model.loss(tokens, tokens)
    assert runs == [(1, True)]
    with reference_kernels():
        torch.testing.assert_close(model.loss(tokens, tokens), loss, rtol=1e-5, atol=0)
    logits = model(tokens).flatten(0, 1)
    torch.testing.assert_close(cross_entropy_reference(logits, tokens.flatten()), loss, rtol=1e-5, atol=0)
    with pytest.raises(TokenError, match=f"token id {VOCABULARY} is out of range"):
        model.loss(tokens, torch.full_like(tokens, VOCABULARY))


def test_as_an_operator_it_refuses_a_second_derivative() -> None:
    """Loudly: what torch.compile and make_fx record has the first one only."""
    logits, targets = case(9, 40)

    def second(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        (first,) = torch.autograd.grad(cross_entropy(z, targets), z, create_graph=True)
        return torch.autograd.grad(first.square().sum(), z)[0]

    with pytest.raises(NotImplementedError, match="no second derivative as an operator"):
        make_fx(second)(logits)
