"""The fused attention against torch's own and float64: values, gradients, hard inputs, threads, memory and edges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.ops import registry
from normscope.ops.attention import attend, attention_mask, sdpa
from normscope.ops.fused import attention as loops
from normscope.ops.kernel_mode import reference_kernels
from tests.accuracy import assert_no_less_accurate
from tests.ops.recording import recorded
from tests.support import kept_for_backward, randn

BOTH = ["forward", "backward"]
PAYS = registry.attention_kernel_is_faster


class Case(NamedTuple):
    b: int = 2
    s: int = 40
    heads: int = 4
    kv_heads: int = 4
    e: int = 32
    causal: bool = True
    window: int | None = None

    @property
    def sight(self) -> dict[str, Any]:
        return {"causal": self.causal, "window": self.window}


CASES = [
    Case(),
    Case(causal=False),
    Case(s=64, kv_heads=2, e=16),
    Case(s=1, e=5),
    Case(s=1, causal=False),
    Case(s=33, heads=6, kv_heads=1, e=33),
    Case(b=1, s=129, heads=2, kv_heads=2, e=64),
    Case(b=1, s=100, heads=1, kv_heads=1, e=128, causal=False),
    Case(window=7),
    Case(window=1),
    Case(s=77, window=30, kv_heads=2),
    Case(s=77, window=30, causal=False),
    Case(s=70, window=2, causal=False, e=3),
    Case(window=99),
    Case(b=1, s=512, heads=1, kv_heads=1),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
causal_or_not = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])

Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs wherever it can, not only where it is faster."""
    monkeypatch.setattr(registry, "attention_kernel_is_faster", lambda *_: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return recorded(monkeypatch, [(name, loops, name) for name in BOTH])


def inputs(case: Case, seed: int = 0) -> list[Tensor]:
    """q, k, v and the gradient of y."""
    shapes = [(case.b, case.s, heads, case.e) for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads)]
    return [randn(*shape, seed=10 * seed + i, dtype=torch.float32) for i, shape in enumerate(shapes)]


def results(case: Case, *given: Tensor, function: Function = attend) -> list[Tensor]:
    *inputs, g = given
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves, **case.sight)
    return [y.detach(), *torch.autograd.grad(y, leaves, g.to(y.dtype))]


def formula(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """As it is defined, in the inputs' type."""
    group, place = q.shape[2] // k.shape[2], torch.arange(q.shape[1])
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bshe,bthe->bhst", q, k) / q.shape[-1] ** 0.5
    far = place[:, None] - place
    hidden = (far < 0) if causal else torch.zeros_like(far, dtype=torch.bool)
    hidden |= far.abs() >= (q.shape[1] if window is None else window)
    return torch.einsum("bhst,bthe->bshe", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def torchs(case: Case, *given: Tensor) -> list[Tensor]:
    with reference_kernels():
        return results(case, *given)


def assert_no_worse(case: Case, given: list[Tensor]) -> None:
    """Than about torch's own errors: the largest, beside some units in the last place; and the mean of the squares."""
    exact = results(case, *(x.double() for x in given), function=formula)
    for ours, theirs, wanted in zip(results(case, *given), torchs(case, *given), exact, strict=True):
        cancels = wanted.abs().max() < 1e-12  # equal keys: the gradient of q is a sum of terms of the size of k
        assert_no_less_accurate(ours, theirs, wanted, size=given[1].abs().max().item() if cancels else 0.0)


@every_case
def test_errors_are_no_larger_than_torchs(case: Case, calls: list[str]) -> None:
    for seed in range(3):
        assert_no_worse(case, inputs(case, seed))
    assert calls == 3 * BOTH


HARD: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "large scores": lambda x: [20 * x[0], 20 * x[1], *x[2:]],
    "huge scores": lambda x: [1e4 * x[0], 1e4 * x[1], *x[2:]],
    "small scores": lambda x: [1e-6 * x[0], *x[1:]],
    "equal scores": lambda x: [torch.zeros_like(x[0]), *x[1:]],
    "equal keys": lambda x: [30 * x[0], x[1][:, :1].expand_as(x[1]), *x[2:]],
    "all scores far from zero": lambda x: [x[0] + 8, x[1] + 8, *x[2:]],
    "one value is huge": lambda x: [*x[:2], x[2].index_fill(1, torch.tensor(3), 1e6), x[3]],
    "one gradient is huge": lambda x: [*x[:3], x[3].index_fill(1, torch.tensor(3), 1e6)],
}


@pytest.mark.parametrize("how", HARD)
@causal_or_not
def test_hard_inputs(how: str, causal: bool) -> None:
    case = Case(s=50, kv_heads=2, causal=causal)
    assert_no_worse(case, HARD[how](inputs(case)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_and_sight(data: st.DataObject) -> None:
    sizes = st.integers(1, 3)
    kv_heads = data.draw(sizes)
    case = Case(
        data.draw(sizes), data.draw(st.integers(1, 90)), kv_heads * data.draw(sizes), kv_heads,
        data.draw(st.integers(1, 70)), data.draw(st.booleans()), data.draw(st.none() | st.integers(1, 90)),
    )  # fmt: skip
    given = inputs(case)
    exact = results(case, *(x.double() for x in given), function=formula)
    for ours, wanted in zip(results(case, *given), exact, strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5)


def test_one_token_is_its_own_mean() -> None:
    """To the last bit: its weight is one."""
    for case in (Case(s=1), Case(window=1)):
        q, k, v, g = inputs(case)
        y, dq, dk, dv = results(case, q, k, v, g)
        assert torch.equal(y, v)
        assert torch.equal(dv, g)
        assert not dq.any()
        assert not dk.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", range(4))
def test_what_is_not_finite_spoils_what_the_formula_says(bad: float, which: int) -> None:
    case = Case(s=9)
    given = inputs(case)
    given[which][0, 8, 2, 1] = bad
    exact = results(case, *(x.double() for x in given), function=formula)
    for ours, wanted in zip(results(case, *given), exact, strict=True):
        assert torch.equal(ours[0, 8, 2].isfinite(), wanted[0, 8, 2].isfinite())
        assert ours[1].isfinite().all()  # another text
        assert ours[0, :, 3].isfinite().all()  # another head


@every_case
@pytest.mark.usefixtures("two_threads")
def test_threads_do_not_change_a_bit(case: Case, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(case)
    monkeypatch.setattr("normscope.ops.threads._MIN_PARALLEL_SIZE", 0)
    many = results(case, *given)
    torch.set_num_threads(1)
    for one, other in zip(many, results(case, *given), strict=True):
        assert torch.equal(one, other)
    assert calls == ["forward by 2", "backward by 2", *BOTH]


@pytest.mark.usefixtures("two_threads")
def test_the_form_does_not_depend_on_the_threads() -> None:
    """Another form rounds otherwise, and a run that gets other threads would have other bits."""
    for heads in (1, 3, 4, 12):
        q, k, *_ = inputs(Case(b=1, heads=heads, kv_heads=heads))
        answers = set()
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            answers.add(PAYS(q, k, True, "fused"))
        assert len(answers) == 1


@causal_or_not
def test_texts_and_heads_do_not_depend_on_the_others(causal: bool) -> None:
    case = Case(b=3, s=45, causal=causal)
    given = inputs(case)
    whole = results(case, *given)
    for part in ((slice(1, 2), slice(None)), (slice(None), slice(2, 3))):
        chosen = [x[part[0], :, part[1]] for x in given]
        for one, other in zip(results(case, *chosen), whole, strict=True):
            assert torch.equal(one, other[part[0], :, part[1]])


@pytest.mark.parametrize("window", [None, 9])
def test_a_token_does_not_depend_on_what_comes_later(window: int | None) -> None:
    case = Case(s=90, window=window)
    q, k, v, _ = inputs(case)
    whole = attend(q, k, v, **case.sight)
    for s in (1, 8, 31, 32, 33, 64, 89):
        assert torch.equal(attend(q[:, :s], k[:, :s], v[:, :s], **case.sight), whole[:, :s])


def test_memory_in_any_order(calls: list[str]) -> None:
    case = Case()
    given = inputs(case)
    spread = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    assert not any(x.is_contiguous() for x in spread)
    for one, other in zip(results(case, *spread), results(case, *given), strict=True):
        assert torch.equal(one, other)
        assert one.is_contiguous()
    assert calls == 2 * BOTH


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_type_does_not_matter(dtype: torch.dtype) -> None:
    given = inputs(Case())
    wanted, before = results(Case(), *given), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = results(Case(), *given)
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("case", [Case(s=9, e=8), Case(s=9, e=8, kv_heads=2, causal=False, window=3)], ids=str)
def test_second_derivatives_are_those_of_the_formula(case: Case) -> None:
    q, k, v, _ = inputs(case)

    def second(function: Function) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        first = torch.autograd.grad(function(*leaves, **case.sight).pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), leaves)

    for one, other in zip(second(attend), second(formula), strict=True):
        assert one.any()
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own function has no rule for vmap
def test_many_gradients_at_once_and_many_inputs() -> None:
    case = Case(b=1, s=5, heads=2, kv_heads=1, e=4)
    q, k, v, _ = inputs(case)

    def of_q(x: Tensor) -> Tensor:
        return attend(x, k, v, causal=True)

    at_once = torch.autograd.functional.jacobian(of_q, q, vectorize=True)
    torch.testing.assert_close(at_once, torch.autograd.functional.jacobian(of_q, q), rtol=1e-5, atol=1e-6)
    many = torch.func.vmap(of_q)(torch.stack([q, 2 * q]))
    torch.testing.assert_close(many[1], of_q(2 * q))


def test_what_is_kept_for_the_backward_pass() -> None:
    """The inputs alone."""
    q, k, v = (x.requires_grad_() for x in inputs(Case())[:3])
    assert set(kept_for_backward(lambda: attend(q, k, v, causal=True))) == {x.data_ptr() for x in (q, k, v)}


def test_no_gradient_that_nobody_asked_for(calls: list[str]) -> None:
    q, k, v, g = inputs(Case())
    wanted = results(Case(), q, k, v, g)[1:]
    del calls[:]
    for i in range(3):
        leaves = [x.detach().requires_grad_(i == j) for j, x in enumerate((q, k, v))]
        attend(*leaves, causal=True).backward(g)
        assert torch.equal(leaves[i].grad, wanted[i])  # type: ignore[arg-type]
        assert all(leaf.grad is None for leaf in leaves if leaf is not leaves[i])
        with torch.no_grad():
            assert not attend(*leaves, causal=True).requires_grad
    assert calls == 3 * [*BOTH, "forward"]


def test_what_is_left_to_torch(calls: list[str]) -> None:
    q, k, v, _ = inputs(Case())
    attend(q.double(), k.double(), v.double(), causal=True)
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal=True)
    attend(q.to("meta"), k.to("meta"), v.to("meta"), causal=True)
    assert attend(q[:0], k[:0], v[:0], causal=True).shape == (0, *q.shape[1:])
    assert attend(q[:, :0], k[:, :0], v[:, :0], causal=True).shape == (2, 0, *q.shape[2:])
    with reference_kernels():
        steps = attend(q, k, v, causal=True)
    assert calls == []
    torch.testing.assert_close(attend(q, k, v, causal=True), steps)


@pytest.mark.parametrize(
    ("case", "pays"),
    [
        (Case(), True),
        (Case(s=4), False),
        (Case(s=8), True),
        (Case(s=16, e=128), False),
        (Case(s=1024, heads=1, kv_heads=1), True),
        (Case(s=1025, heads=1, kv_heads=1), False),
        (Case(s=256, heads=1, kv_heads=1, causal=False), True),
        (Case(s=257, heads=1, kv_heads=1, causal=False), False),
        (Case(s=257, heads=1, kv_heads=1, causal=False, window=9), True),
        (Case(s=100, heads=1, kv_heads=1, causal=False, e=24), False),
        (Case(b=1, kv_heads=1), False),
    ],
    ids=str,
)
@pytest.mark.usefixtures("two_threads")
def test_it_runs_where_it_was_measured_to_pay(
    case: Case, pays: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "attention_kernel_is_faster", PAYS)
    q, k, v, _ = inputs(case)
    attend(q, k, v, **case.sight)
    assert len(calls) == pays


def test_where_the_loops_fail_torch_takes_over_after_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    case = Case(kv_heads=2, window=9)
    given = inputs(case)
    wanted = torchs(case, *given)
    for name in BOTH:
        monkeypatch.setattr(loops, name, broken)
        monkeypatch.setattr("normscope.ops.kernel_mode._enabled", True)  # for what follows turns it off
        with pytest.warns(RuntimeWarning, match="not available"):
            found = results(case, *given)
        monkeypatch.undo()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_by_torch_takes_masks_and_other_keys() -> None:
    q, k, v, _ = inputs(Case(s=6))
    place = torch.arange(6)
    visible = attention_mask(place[4:, None], place, causal=True, window=3)
    assert visible.tolist() == [[False, False, True, True, True, False], [False, False, False, True, True, True]]
    newest = sdpa(q[:, 4:], k, v, attn_mask=visible)
    torch.testing.assert_close(newest, attend(q, k, v, causal=True, window=3)[:, 4:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler calls what torch has deprecated
@pytest.mark.parametrize("case", [Case(), Case(kv_heads=2, causal=False, window=9)], ids=str)
def test_torch_compile_sees_one_operator(case: Case) -> None:
    q, k, v, g = inputs(case)
    seen_by_torch: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        called = (node for node in graph.graph.nodes if node.op == "call_function" and len(node.users))
        seen_by_torch.extend(str(node.target) for node in called)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(attend, fullgraph=True, backend=backend)(q, k, v, **case.sight)
    assert seen_by_torch == ["normscope.attend.default"]
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for one, other in zip(results(case, q, k, v, g, function=compiled), results(case, q, k, v, g), strict=True):
        assert torch.equal(one, other)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.normscope.attend.default, (*leaves, *case.sight.values()))
    torch.library.opcheck(
        torch.ops.normscope.attend_backward.default, ([g], [q, k, v], *case.sight.values(), [True] * 3)
    )


class Layer(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return attend(x, x, x, causal=True)


def test_export_for_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "attention_kernel_is_faster", PAYS)
    x = inputs(Case())[0]
    short, long = torch.export.Dim("s", min=2, max=64), torch.export.Dim("s", min=2, max=4096)
    for length, name in ((short, "normscope.attend"), (long, "scaled_dot_product_attention")):
        exported = torch.export.export(Layer(), (x,), dynamic_shapes=({1: length},))
        assert any(name in str(node.target) for node in exported.graph.nodes)
        torch.testing.assert_close(exported.module()(x[:, :17]), Layer()(x[:, :17]))
