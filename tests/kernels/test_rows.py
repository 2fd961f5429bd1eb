"""The fused row kernels: when they run, and that threads, batches, forks and second derivatives change nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.kernels.fused import compiler
from normscope.kernels.fused import rows as forward_loops
from normscope.kernels.fused import rows_backward as backward_loops
from normscope.kernels.switch import only_steps
from tests.blocks.norm.cases import randn, scramble

ROWS, WIDTH = 700, 96  # enough for several threads, and for blocks that do not come out even


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that ran."""
    names: list[str] = []

    def recording(name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        def run(threads: int, *arguments: Any) -> None:
            names.append(f"{name} by {threads}" if threads > 1 else name)
            loop(threads, *arguments)

        return run

    for loops, name in ((forward_loops, "forward"), (backward_loops, "backward")):
        monkeypatch.setattr(loops, name, recording(name, getattr(loops, name)))
    return names


def results(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """The output and every gradient."""
    leaf = x.clone().requires_grad_()
    y = norm(leaf) if mask is None else norm(leaf, mask)
    inputs = [leaf, *norm.parameters()]
    return [y, *torch.autograd.grad(y, inputs, randn(tuple(x.shape), 5, torch.float32))]


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
    with only_steps():
        steps = results(norm, x)
    assert len(calls) == 2
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * shape[0])  # sums over so many rows


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        (ns.LayerNorm(WIDTH, dtype=torch.float64), X.double()),
        (ns.LayerNorm(ROWS), X.t()),
        (ns.GroupNorm(3, 6), torch.ones(2, 6, 4)),
        (ns.BatchNorm1d(WIDTH), X),
        (ns.LayerNorm(WIDTH), torch.empty(0, WIDTH)),
    ],
    ids=["float64", "transposed", "gain-of-channels", "batch", "empty"],
)
def test_what_the_kernel_does_not_take(norm: ns.Norm, x: Tensor, calls: list[str]) -> None:
    norm(x)
    assert calls == []


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


@pytest.mark.parametrize("layer", [ns.LayerNorm, ns.RMSNorm])
def test_second_derivatives_are_those_of_the_steps(layer: Callable[..., ns.Norm]) -> None:
    norm, x = made(layer), randn((5, WIDTH), 2, torch.float32)

    def second() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(norm(leaf).pow(3).sum(), leaf, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [leaf, *norm.parameters()], materialize_grads=True))

    fused = second()
    with only_steps():
        steps = second()
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_parameters_that_torch_func_has_wrapped(calls: list[str]) -> None:
    """Gradients of the parameters of many models at once: the input is plain memory, the gain is not."""
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
    with only_steps():
        steps = results(norm, x, mask)
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_only_the_input_and_the_gain_are_kept() -> None:
    """No more than torch keeps: the input, the gain, and two numbers a row, which are taken again here."""

    def kept(norm: nn.Module) -> int:
        sizes: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            norm(X.clone().requires_grad_())
        return sum(sizes)

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


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_computes_the_same() -> None:
    """As a DataLoader's workers are: the parent's pool of threads does not run in them.

    Only a few numbers are compared, because torch's own operations on many would wait for torch's pool for ever.
    """
    code = """
import os, torch, normscope
torch.set_num_threads(2)
norm, x = normscope.LayerNorm(96), torch.randn(700, 96)
few = lambda y: y[::100, ::10].tolist()
expected = few(norm(x))
child = os.fork()
if child == 0:
    os._exit(0 if few(norm(x)) == expected else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), few(norm(x)) == expected)
"""
    assert in_a_new_process(code).split() == ["0", "True"]


def test_without_numba_the_steps_run_after_one_notice() -> None:
    code = """
import sys, warnings
sys.modules["numba"] = None
import torch, normscope
with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    norm = normscope.LayerNorm(8)
    ys = [norm(torch.arange(16.0).reshape(2, 8)) for _ in range(3)]
print(len(notices), "not available" in str(notices[0].message), torch.equal(ys[0], ys[2]))
"""
    assert in_a_new_process(code).split() == ["1", "True", "True"]


def test_where_nothing_can_be_written_the_code_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []
    njit = numba.njit

    def no_cache(function: Callable[..., Any], cache: bool = False, **options: Any) -> Any:
        tried.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(function, **options)

    monkeypatch.setattr(numba, "njit", no_cache)

    def twice(x: float) -> float:
        return 2 * x

    assert compiler.compiled(twice)(3.0) == 6.0
    assert tried == [True, False]


def test_the_switch_in_the_environment() -> None:
    code = "import normscope.kernels.switch as s; print(s._on)"
    assert in_a_new_process(f"import os; os.environ['NORMSCOPE_KERNELS'] = 'steps'; {code}").strip() == "False"
    assert in_a_new_process(f"import os; os.environ.pop('NORMSCOPE_KERNELS', None); {code}").strip() == "True"
