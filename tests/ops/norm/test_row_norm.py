"""The fused row kernels: when they run, and that threads, batches and second derivatives change nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.ops import kernel_mode
from normscope.ops.fused import row_norm as forward_loops
from normscope.ops.fused import row_norm_backward as backward_loops
from normscope.ops.kernel_mode import reference_kernels
from tests.accuracy import assert_no_less_accurate
from tests.blocks.norm.cases import randn, scramble
from tests.ops.recording import recorded
from tests.pairs import every_pair
from tests.support import is_exhaustive, kept_for_backward

ROWS, WIDTH = 700, 96  # enough for several threads, and for blocks that do not come out even


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that ran."""
    return recorded(
        monkeypatch,
        [
            ("forward", forward_loops, "forward"),
            *[("backward", backward_loops, name) for name in ("backward", "long_rows_backward")],
        ],
    )


def results(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """The output and every gradient."""
    leaf = x.clone().requires_grad_()
    y = norm(leaf) if mask is None else norm(leaf, mask)
    inputs = [leaf, *norm.parameters()]
    return [y, *torch.autograd.grad(y, inputs, randn(tuple(x.shape), 5, torch.float32).to(x.dtype))]


def made(layer: Callable[..., ns.Norm] = ns.LayerNorm, *args: Any, **kwargs: Any) -> ns.Norm:
    norm = layer(*(args or (WIDTH,)), **kwargs)
    scramble(norm)
    return norm


X = randn((ROWS, WIDTH), 1, torch.float32)

TAKEN: dict[str, tuple[Callable[[], ns.Norm], tuple[int, ...]]] = {
    "layer": (lambda: made(), (ROWS, WIDTH)),
    "layer-no-bias": (lambda: made(bias=False), (4, 5, WIDTH)),
    "layer-plain": (lambda: made(elementwise_affine=False), (WIDTH,)),
    "layer-image": (lambda: made(ns.LayerNorm, (3, 4, 5)), (2, 3, 4, 5)),
    "layer-long": (lambda: made(ns.LayerNorm, 9000), (5, 9000)),
    "rms": (lambda: made(ns.RMSNorm), (7, WIDTH)),
    "rms-plain": (lambda: made(ns.RMSNorm, WIDTH, elementwise_affine=False), (7, WIDTH)),
    "instance-plain": (lambda: made(ns.InstanceNorm2d, 6), (2, 6, 4, 5)),
    "group-plain": (lambda: made(ns.GroupNorm, 3, 6, affine=False), (2, 6, 4, 5)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_norm_over_rows_takes_the_kernel(name: str, calls: list[str]) -> None:
    make, shape = TAKEN[name]
    norm, x = make(), randn(shape, 1, torch.float32)
    fused = results(norm, x)
    assert calls == ["forward", "backward"]
    with reference_kernels():
        steps = results(norm, x)
    assert len(calls) == 2
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * shape[0])  # sums over so many rows


@pytest.fixture
def by_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry chooses the implementation, as it does for users; other tests here ask for the kernels."""
    monkeypatch.setattr(kernel_mode, "_contexts", [])


@pytest.mark.usefixtures("by_the_registry")
@pytest.mark.parametrize("name", [name for name in TAKEN if name != "group-plain"])  # which has no short call
def test_a_second_call_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm keeps what follows from the shape: later calls of plain tensors take a shorter way."""
    make, shape = TAKEN[name]
    norm, x = make(), randn(shape, 1, torch.float32)
    first = results(norm, x)
    monkeypatch.setattr("normscope.blocks.norm.base.normalize.normalize", None)  # the long way is closed
    assert all(torch.equal(one, other) for one, other in zip(first, results(norm, x), strict=True))


@pytest.mark.usefixtures("by_the_registry")
@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_a_kernel_that_fails_later_is_replaced(
    layer: Callable[..., ns.Norm], pass_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    norm = made(layer)
    expected = results(norm, X)
    monkeypatch.setattr(forward_loops if pass_ == "forward" else backward_loops, pass_, broken)
    monkeypatch.setattr(kernel_mode, "_enabled", True)  # it will be turned off, and back on after the test
    with pytest.warns(RuntimeWarning, match="no compiler"):
        found = results(norm, X)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * ROWS)


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        (ns.LayerNorm(WIDTH, dtype=torch.float64), X.double()),
        (ns.GroupNorm(3, 6), torch.ones(2, 6, 4)),
        (ns.BatchNorm1d(WIDTH), X),
        (ns.LayerNorm(WIDTH), torch.empty(0, WIDTH)),
    ],
    ids=["float64", "gain-of-channels", "batch", "empty"],
)
def test_what_the_kernel_does_not_take(norm: ns.Norm, x: Tensor, calls: list[str]) -> None:
    norm(x)
    assert calls == []


def test_what_does_not_lie_in_rows_is_copied(calls: list[str]) -> None:
    norm = made(ns.LayerNorm, ROWS)
    fused = results(norm, X.t())
    assert calls == ["forward", "backward"]
    assert fused[0].stride() == X.t().stride()
    for one, other in zip(fused, results(norm, X.t().contiguous()), strict=True):
        assert torch.equal(one, other)
    wide = randn((5, 2 * WIDTH), 1, torch.float32)[:, ::2]
    assert torch.equal(made()(wide), made()(wide.contiguous()))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_threads_do_not_change_a_bit(layer: Callable[..., ns.Norm], calls: list[str]) -> None:
    norm = made(layer)
    many = results(norm, X)
    assert calls == ["forward by 2", "backward by 2"]
    again = results(norm, X)
    torch.set_num_threads(1)
    single = results(norm, X)
    assert calls[-2:] == ["forward", "backward"]
    for one, other, third in zip(many, again, single, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_a_row_does_not_depend_on_the_others(layer: Callable[..., ns.Norm]) -> None:
    norm = made(layer)
    whole = norm(X)
    for count in (1, 2, 33, 500):
        assert torch.equal(norm(X[:count]), whole[:count])


@pytest.mark.usefixtures("two_threads")
def test_many_python_threads_at_once() -> None:
    norm = made()
    expected = results(norm, X)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: results(norm, X), range(12)):
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.usefixtures("by_the_registry")
@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_second_derivatives_are_those_of_the_steps(layer: Callable[..., ns.Norm]) -> None:
    norm, x = made(layer), randn((24, WIDTH), 2, torch.float32)

    def second() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(norm(leaf).pow(3).sum(), leaf, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [leaf, *norm.parameters()], materialize_grads=True))

    fused = [second(), second()]  # the second call is the short one
    with reference_kernels():
        steps = second()
    for found in fused:
        for one, other in zip(found, steps, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_parameters_that_torch_func_has_wrapped(calls: list[str]) -> None:
    """Gradients of the parameters of many models at once: the input is plain memory, the weight is not."""
    norm, x = made(), randn((3, WIDTH), 2, torch.float32)
    stacked = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in norm.named_parameters()}
    found = torch.func.vmap(lambda parameters: torch.func.functional_call(norm, parameters, (x,)))(stacked)
    assert calls == []
    torch.testing.assert_close(found[1], 2 * norm(x), rtol=1e-6, atol=1e-6)
    gradients = torch.func.grad(lambda p: torch.func.functional_call(norm, p, (x,)).sum())(
        dict(norm.named_parameters())
    )
    torch.testing.assert_close(gradients["bias"], torch.full((WIDTH,), 3.0))


def test_a_gain_on_another_device_is_left_to_torch(calls: list[str]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        ns.LayerNorm(WIDTH, device="meta")(X)
    assert calls == []


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 5)])
def test_rows_that_are_masked(shape: tuple[int, ...], calls: list[str]) -> None:
    norm, x = made(), randn((3, 5, WIDTH), 2, torch.float32)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    x[~mask.reshape(*shape, *[1] * (2 - len(shape))).expand(3, 5)] = torch.nan
    fused = results(norm, x, mask)
    assert calls == ["forward", "backward"]
    with reference_kernels():
        steps = results(norm, x, mask)
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_only_the_input_and_the_gain_are_kept() -> None:
    """No more than torch keeps: the input, the weight, and two numbers a row, which are taken again here."""

    def kept(norm: nn.Module) -> int:
        x = X.clone().requires_grad_()
        return sum(kept_for_backward(lambda: norm(x)).values())

    assert kept(ns.LayerNorm(WIDTH)) <= kept(nn.LayerNorm(WIDTH))
    assert kept(ns.RMSNorm(WIDTH)) <= kept(nn.RMSNorm(WIDTH))


def test_no_gradient_is_computed_that_nobody_asked_for() -> None:
    norm, x = made(), randn((5, WIDTH), 2, torch.float32).requires_grad_()
    assert norm.weight is not None
    norm.weight.requires_grad_(False)
    norm(x).sum().backward()
    assert norm.weight.grad is None
    assert norm.bias is not None
    assert norm.bias.grad is not None
    torch.testing.assert_close(norm.bias.grad, torch.full((WIDTH,), 5.0))


HARD: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "shifted": lambda x: x + 1.5,
    "far-off": lambda x: 1e4 + x * 1e-2,
    "tiny": lambda x: x * 1e-20,
    "huge": lambda x: x * 1e30,
    "outlier": lambda x: x.index_fill(1, torch.tensor([3]), 1e6),
    "constant": lambda x: torch.full_like(x, 3.1),
}


def equal_layers(layer: Any, peer: Any, width: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Our layer, torch's and torch's in float64, with the same weights."""
    ours, theirs, exact = layer(width, eps=1e-5), peer(width, eps=1e-5), peer(width, eps=1e-5).double()
    scramble(ours)
    theirs.load_state_dict(ours.state_dict())
    exact.load_state_dict(ours.state_dict())
    return ours, theirs, exact


@every_pair(
    layers={"layer": (ns.LayerNorm, nn.LayerNorm), "rms": (ns.RMSNorm, nn.RMSNorm)},
    width={str(width): width for width in (32, 64, 96, 768, 5000)},
    hard=list(HARD),
)
def test_errors_are_no_larger_than_torchs(layers: tuple[Any, Any], width: int, hard: str) -> None:
    """Over many rows, where chance does not decide: of the output, and of every gradient."""
    ours, theirs, exact = equal_layers(*layers, width)
    rows = 300 if is_exhaustive else min(300, 300_000 // width)
    x = HARD[hard](randn((rows, width), 3)).float()
    mine, others, truth = results(ours, x), results(theirs, x), results(exact, x.double())
    for one, other, true in zip(mine, others, truth, strict=True):
        assert_no_less_accurate(one, other, true)


def test_the_operator_is_sound() -> None:
    """What torch.compile is told of it is what it does."""
    weight, bias = (randn((WIDTH,), seed, torch.float32).requires_grad_() for seed in (1, 2))
    x, branch = (randn((5, WIDTH), seed, torch.float32).requires_grad_() for seed in (3, 4))
    for added in (None, branch):
        torch.library.opcheck(torch.ops.normscope.norm_rows.default, (x, added, weight, bias, None, WIDTH, 1e-5, True))
