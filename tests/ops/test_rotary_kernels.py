"""Which form turns queries and keys: the kernels, their operators or the steps; and what happens where numba fails."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from normscope.ops import kernel_mode
from normscope.ops.fused import rotary as loops
from normscope.ops.rotary import apply_rotary, rms_norm_rotary
from tests.ops.rotary_cases import CASES, EPS, EVERY_LOOP, SHAPE, record_calls, result, single, tables


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return record_calls(monkeypatch)


LEFT_TO_THE_STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "float64": lambda x, cos, sin: (x.double(), cos, sin),
    "float64-tables": lambda x, cos, sin: (x, cos.double(), sin.double()),
    "learnt-tables": lambda x, cos, sin: (x, cos.clone().requires_grad_(), sin),
    "empty": lambda x, cos, sin: (x[:0], cos, sin),
    "meta": lambda x, cos, sin: (x.to("meta"), cos.to("meta"), sin.to("meta")),
    "long": lambda x, cos, sin: (single(1, 3, 1, 1026), *tables(3, 1026)),
    "tables-apart": lambda x, cos, sin: (x, cos.repeat(1, 1, 2)[..., ::2], sin),
}


@pytest.mark.parametrize("what", LEFT_TO_THE_STEPS)
def test_what_the_kernels_do_not_take(what: str, calls: list[str]) -> None:
    x, cos, sin = LEFT_TO_THE_STEPS[what](single(2, 3, 4, 32), *tables(3, 32))
    assert apply_rotary(x, cos, sin).shape == x.shape
    assert rms_norm_rotary(x, None, cos, sin, EPS).dtype == x.dtype
    assert calls == []


def test_a_gain_of_float64_is_left_to_the_steps(calls: list[str]) -> None:
    x, (cos, sin) = single(2, 3, 4, 32), tables(3, 32)
    rms_norm_rotary(x, torch.ones(32, dtype=torch.float64), cos, sin, EPS)
    assert calls == []


def test_rows_at_places_of_their_own_are_turned_by_the_kernels(calls: list[str]) -> None:
    x, weight, (cos, sin) = single(2, 3, 4, 32), single(32, seed=1), tables(9, 32)
    place = torch.tensor([[0, 1, 2], [6, 7, 8]])
    turned = apply_rotary(x, cos[place], sin[place])
    normed = rms_norm_rotary(x, weight, cos[place], sin[place], EPS)
    assert calls == ["apply_rotary", "rms_norm_rotary"]
    for i, start in enumerate((0, 6)):
        angles = cos[start : start + 3], sin[start : start + 3]
        assert torch.equal(turned[i : i + 1], apply_rotary(x[i : i + 1], *angles))
        assert torch.equal(normed[i : i + 1], rms_norm_rotary(x[i : i + 1], weight, *angles, EPS))


def both(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return apply_rotary(rms_norm_rotary(x, weight, cos, sin, EPS), cos, sin)


def computed(graph: torch.fx.GraphModule) -> list[str]:
    """What a graph calls, other than asking a tensor for what it is."""
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return [str(target) for target in targets if target is not getattr]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler calls what torch has deprecated
def test_a_compiler_sees_one_operator_each() -> None:
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(computed(graph))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    cos, sin = tables(SHAPE[1], SHAPE[3])
    found = []
    for function in (torch.compile(both, fullgraph=True, backend=backend), both):
        x, weight = single(*SHAPE).transpose(0, 1).contiguous().transpose(0, 1), single(SHAPE[3], seed=1)
        y = function(x.requires_grad_(), weight.requires_grad_(), cos, sin)
        found.append([y, *torch.autograd.grad(y, [x, weight], single(*SHAPE, seed=2))])
    assert graphs == [["normscope.rms_norm_rotary.default", "normscope.rotary.default"]]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_traced_graph_and_fake_tensors() -> None:
    x, weight, (cos, sin) = single(2, 3, 4, 32), single(32, seed=1), tables(3, 32)
    graph = make_fx(both)(x, weight, cos, sin)
    assert computed(graph) == ["normscope.rms_norm_rotary.default", "normscope.rotary.default"]
    assert torch.equal(graph(x, weight, cos, sin), both(x, weight, cos, sin))
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (x.transpose(0, 1), weight, cos[:2], sin[:2])]
    with mode:
        y = both(*fakes)
        assert (y.shape, y.dtype, y.is_contiguous()) == ((3, 2, 4, 32), torch.float32, True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where it loads its rules for derivatives
def test_torch_func_and_forward_derivatives_take_the_steps(calls: list[str]) -> None:
    x, weight, (cos, sin) = single(2, 3, 4, 32), single(32, seed=1), tables(3, 32)
    many = torch.func.vmap(lambda x: both(x, weight, cos, sin))(torch.stack([x, 2 * x]))
    tangent = torch.func.jvp(lambda x: apply_rotary(x, cos, sin), (x,), (x,))[1]
    assert calls == []
    torch.testing.assert_close(many[0], both(x, weight, cos, sin), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tangent, apply_rotary(x, cos, sin), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "failing"),
    [(case, EVERY_LOOP) for case in CASES] + [(case, EVERY_LOOP[-1:]) for case in CASES[1:]],
    ids=[*CASES, "normalized, backwards", "with a gain, backwards"],
)
def test_where_a_loop_fails_the_steps_take_over(case: str, failing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle: a forward pass by the kernel and a backward pass without it."""

    def broken(*_: Any) -> None:
        raise TypeError("no such instruction")

    x, (cos, sin) = single(2, 3, 4, 32).bfloat16(), tables(3, 32)
    wanted = result(case, x, cos, sin)
    monkeypatch.setattr(kernel_mode, "_enabled", True)  # it will be turned off, and back on after the test
    for name in failing:
        monkeypatch.setattr(loops, name, broken)
    with pytest.warns(RuntimeWarning, match="no such instruction"):
        found = result(case, x, cos, sin)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.exhaustive  # ops/test_kernel_mode.py has one such process in the default suite
def test_without_numba_the_steps_run_after_one_notice() -> None:
    code = """
import sys, warnings
sys.modules["numba"] = None
import torch, normscope
with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    rotary = normscope.Rotary(8, 4)
    ys = [rotary(torch.arange(16.0).reshape(1, 2, 1, 8), 0) for _ in range(3)]
print(len(notices), "not available" in str(notices[0].message), torch.equal(ys[0], ys[2]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "True", "True"], done.stderr
