"""The fused activations against their formulas in torch: values, gradients, NaN, layouts, threads and memory."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.blocks.mlp import MLP
from normscope.ops.activations import REFERENCE_ACTIVATIONS, activate
from normscope.ops.fused import activations as loops
from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.threads import ThreadPool
from tests.accuracy import assert_no_less_accurate
from tests.pairs import chiefly
from tests.support import kept_for_backward, randn

GATED = ("swiglu", "reglu", "geglu")
every_activation = pytest.mark.parametrize("name", REFERENCE_ACTIVATIONS)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of threads of each loop that ran."""
    threads: list[int] = []

    def recording(loop: Callable[..., Any]) -> Callable[..., Any]:
        def run(pool: ThreadPool, *arguments: Any) -> None:
            threads.append(pool[0])
            loop(pool, *arguments)

        return run

    for name in ("forward", "backward"):
        monkeypatch.setattr(loops, name, recording(getattr(loops, name)))
    return threads


def inputs(name: str, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 2.0) -> list[Tensor]:
    return [scale * randn(*shape, seed=seed, dtype=dtype) for seed in range(2 if name in GATED else 1)]


def results(function: Callable[..., Tensor], given: list[Tensor], g: Tensor) -> list[Tensor]:
    """The value, and the gradient of every input."""
    leaves = [x.detach().requires_grad_() for x in given]  # not copied: they keep their layout
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, g.to(y.dtype))]


def fused(name: str) -> Callable[..., Tensor]:
    return lambda *given: activate(name, *given)


def test_the_fused_and_the_formulas_have_the_same_names() -> None:
    assert list(loops.KINDS) == list(REFERENCE_ACTIVATIONS)


@every_activation
def test_errors_are_no_larger_than_torchs(name: str, runs: list[int]) -> None:
    given, g = inputs(name, 100, 333), randn(100, 333, seed=9, dtype=torch.float32)
    ours = results(fused(name), given, g)
    assert runs == [1, 1]
    theirs = results(REFERENCE_ACTIVATIONS[name], given, g)
    exact = results(REFERENCE_ACTIVATIONS[name], [x.double() for x in given], g)
    for found, torchs, wanted in zip(ours, theirs, exact, strict=True):
        assert_no_less_accurate(found, torchs, wanted)


@pytest.mark.parametrize("name", ["silu", "swiglu", "geglu"])
def test_the_tail_keeps_its_digits(name: str) -> None:
    """Far below zero the smooth ones are tiny, but not lost: torch subtracts them from one first."""
    x = torch.linspace(-9, -3, 101)
    given = [x, torch.ones_like(x)][: 2 if name in GATED else 1]
    wanted = x.double() * (torch.erfc(-x.double() / 2**0.5) / 2 if name == "geglu" else torch.sigmoid(x.double()))
    torch.testing.assert_close(activate(name, *given).double(), wanted, rtol=1e-6, atol=0)


SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-42, -1e-42, 5.0, -5.0, 1.0])
LARGE = torch.tensor([30.0, -30.0, 150.0, -150.0, 1e10, -1e10, 1e18, -1e18])


@every_activation
def test_nan_and_infinity_go_through_as_in_torch(name: str) -> None:
    """As in float64: in float32 torch's GELU of infinity is NaN where it runs in vectors."""
    ups = SPECIAL if name in GATED else SPECIAL[:1]
    x, up = (t.flatten() for t in torch.meshgrid(SPECIAL, ups, indexing="ij"))
    given = [x, up] if name in GATED else [x]
    for g in (1.0, torch.inf, torch.nan):
        gradient = torch.full_like(x, g)
        ours = results(fused(name), given, gradient)
        theirs = results(REFERENCE_ACTIVATIONS[name], [t.double() for t in given], gradient)
        for found, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, wanted.float(), rtol=2e-6, atol=1e-7, equal_nan=True)


@every_activation
def test_large_numbers(name: str) -> None:
    given = [LARGE, torch.ones_like(LARGE)][: 2 if name in GATED else 1]
    ours = results(fused(name), given, torch.ones_like(LARGE))
    theirs = results(REFERENCE_ACTIVATIONS[name], [t.double() for t in given], torch.ones_like(LARGE))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=1e-11)


@every_activation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_computed_in_float32(name: str, dtype: torch.dtype, runs: list[int]) -> None:
    given, g = inputs(name, 7, 33, dtype=dtype), randn(7, 33, seed=9, dtype=dtype)
    ours = results(fused(name), given, g)
    assert len(runs) == 2
    exact = results(REFERENCE_ACTIVATIONS[name], [x.double() for x in given], g)
    for found, wanted in zip(ours, exact, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, wanted.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1),
    "channels-last": lambda x: x.reshape(3, 5, 4, 11).to(memory_format=torch.channels_last),
    "every-second": lambda x: x[:, ::2],
    "every-second-transposed": lambda x: x[:, ::2].transpose(0, 1),
    "expanded": lambda x: x[:, :1].expand(-1, 9),
    "one-number": lambda x: x[0, 0],
}


@every_activation
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
def test_layouts(name: str, layout: str, mixed: bool) -> None:
    given = [LAYOUTS[layout](x) for x in inputs(name, 15, 44)]
    g = randn(*given[0].shape, seed=9, dtype=torch.float32)
    if not mixed:
        g = torch.empty_like(given[0]).copy_(g)
    elif name in GATED:
        given[1] = given[1].contiguous()
    for found, wanted in zip(
        results(fused(name), given, g), results(REFERENCE_ACTIVATIONS[name], given, g), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=5e-6)


def test_dense_memory_is_not_copied(runs: list[int]) -> None:
    x = randn(6, 7, dtype=torch.float32).t()
    assert activate("relu2", x).stride() == x.stride()


@pytest.mark.usefixtures("two_threads")
@every_activation
def test_threads_and_neighbours_do_not_change_a_bit(name: str, runs: list[int]) -> None:
    given, g = inputs(name, 40_001), randn(40_001, seed=9, dtype=torch.float32)
    many = results(fused(name), given, g)
    assert runs == [2, 2]
    torch.set_num_threads(1)
    single = results(fused(name), given, g)
    part = results(fused(name), [x[:77] for x in given], g[:77])
    for one, other, few in zip(many, single, part, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one[:77], few)


@every_activation
def test_second_derivatives_are_those_of_the_formula(name: str) -> None:
    given = inputs(name, 5, 9)

    def second(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in given]
        firsts = torch.autograd.grad(function(*leaves).pow(3).sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(f.square().sum() for f in firsts), leaves))  # type: ignore[arg-type]

    for one, other in zip(second(fused(name)), second(REFERENCE_ACTIVATIONS[name]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@every_activation
def test_only_the_inputs_are_kept(name: str) -> None:
    def kept(function: Callable[..., Tensor]) -> int:
        given = [x.requires_grad_() for x in inputs(name, 6, 7)]
        return sum(kept_for_backward(lambda: function(*given)).values())

    assert kept(fused(name)) == sum(x.nbytes for x in inputs(name, 6, 7))
    assert kept(fused(name)) <= kept(REFERENCE_ACTIVATIONS[name])


def test_only_gradients_that_were_asked_for() -> None:
    gate, up = inputs("swiglu", 3, 4)
    (found,) = torch.autograd.grad(activate("swiglu", gate, up.requires_grad_()).sum(), up)
    torch.testing.assert_close(found, torch.nn.functional.silu(gate))
    assert gate.grad is None
    assert not activate("swiglu", gate, up.detach()).requires_grad


@every_activation
def test_what_is_left_to_the_formula(name: str, runs: list[int]) -> None:
    for given in (inputs(name, 3, dtype=torch.float64), inputs(name, 0), [x.to("meta") for x in inputs(name, 3)]):
        activate(name, *given)
    with reference_kernels():
        steps = activate(name, *inputs(name, 50))
    with torch.device("cpu"), torch._subclasses.FakeTensorMode():
        assert activate(name, *(torch.empty(3, 4) for _ in inputs(name, 1))).shape == (3, 4)
    assert runs == []
    torch.testing.assert_close(activate(name, *inputs(name, 50)), steps, rtol=1e-5, atol=1e-6)
    torch.func.vmap(lambda *given: activate(name, *given))(*inputs(name, 2, 3))
    assert len(runs) == 1


COMPILED = ("relu2", "swiglu")  # one without a gate and one with it: torch sees no other difference


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler calls what torch has deprecated
@pytest.mark.parametrize("name", chiefly(COMPILED, [name for name in REFERENCE_ACTIVATIONS if name not in COMPILED]))
@pytest.mark.parametrize("layout", chiefly(["every-second-transposed"], ["as it is", "transposed"]))
def test_torch_compile_sees_one_operator(name: str, layout: str) -> None:
    given, g = inputs(name, 8, 12), randn(8, 12, seed=9, dtype=torch.float32)
    if layout != "as it is":
        given, g = [LAYOUTS[layout](x) for x in given], LAYOUTS[layout](g)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        called = (node for node in graph.graph.nodes if node.op == "call_function" and len(node.users))
        seen.extend(str(node.target) for node in called)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(fused(name), fullgraph=True, backend=backend)(*given)
    assert seen == ["normscope.activation.default"]
    compiled = torch.compile(fused(name), fullgraph=True, backend="aot_eager")
    for one, other in zip(results(compiled, given, g), results(fused(name), given, g), strict=True):
        assert torch.equal(one, other)
    torch.library.opcheck(torch.ops.normscope.activation.default, (given[0], [*given, None][1], name))


@every_activation
def test_the_mlp_takes_them(name: str, runs: list[int]) -> None:
    mlp, x = MLP(6, 10, name), randn(3, 6, dtype=torch.float32)
    found = mlp(x)
    assert len(runs) == 1
    with reference_kernels():
        torch.testing.assert_close(found, mlp(x), rtol=1e-5, atol=1e-6)


@every_activation
def test_where_a_loop_fails_the_formula_runs_after_one_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    given, g = inputs(name, 3, 4), randn(3, 4, seed=9, dtype=torch.float32)
    with reference_kernels():
        wanted = results(fused(name), given, g)
    leaves = [x.clone().requires_grad_() for x in given]
    y = activate(name, *leaves)
    monkeypatch.setattr("normscope.ops.kernel_mode._enabled", True)  # for what follows turns it off
    for pass_ in ("forward", "backward"):
        monkeypatch.setattr(loops, pass_, broken)
    with pytest.warns(RuntimeWarning, match="not available"):
        gradients = torch.autograd.grad(y, leaves, g)
    monkeypatch.setattr("normscope.ops.kernel_mode._enabled", True)
    with pytest.warns(RuntimeWarning, match="not available"):
        torch.testing.assert_close(activate(name, *given), wanted[0])
    for found, gradient in zip(gradients, wanted[1:], strict=True):
        torch.testing.assert_close(found, gradient)


@pytest.mark.exhaustive  # ops/test_kernel_mode.py has one such process in the default suite
def test_without_numba_there_is_one_notice() -> None:
    code = """
import sys, warnings
sys.modules["numba"] = None
import torch
from normscope.blocks.activations import relu2
with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    ys = [relu2(torch.tensor([-1.0, 3.0])) for _ in range(3)]
print(len(notices), ys[2].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "1 [0.0, 9.0]"
