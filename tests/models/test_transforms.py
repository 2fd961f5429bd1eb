"""Under torch's transforms every layer, block and model gives the numbers, and the gradients, that it gives by itself.

What was traced with one shape is called with another, wherever the transform claims that this is possible.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.models.transform_cases import CASES, Case, Inputs, every_case

# torch's own compiler and tracer call what torch itself has deprecated; torch.jit.trace warns of every question that
# is asked of a size, checks included.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

Results = dict[str, Tensor]
Call = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _forget_graphs() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def run(call: Call, inputs: Inputs, module: nn.Module) -> Results:
    """The output, the gradients of the inputs and of the parameters, and the buffers after it."""
    given = tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
    module.zero_grad()
    y = call(*given)
    y.square().sum().backward()
    results = {"output": y.detach()}
    results |= {f"gradient of input {i}": x.grad for i, x in enumerate(given) if x.grad is not None}
    results |= {f"gradient of {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    results |= {name: buffer.clone() for name, buffer in module.named_buffers()}
    return results


def same(found: Results, expected: Results) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        wanted = expected[name]
        scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        torch.testing.assert_close(
            value,
            wanted,
            rtol=0,
            atol=2e-5 * scale,
            msg=lambda text, name=name: f"{name}: {text}",  # type: ignore[misc]
        )


def agree(case: Case, transform: Callable[[nn.Module, Inputs], Call], others: bool = True) -> None:
    """The transformed module beside a copy of it, with the example's shape and with another one."""
    module = case.module()
    plain = copy.deepcopy(module)
    call = transform(module, case.inputs(0))
    for i in (0, 1) if others else (0,):
        same(run(call, case.inputs(i), module), run(plain, case.inputs(i), plain))


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.exhaustive), "aot_eager"])
@pytest.mark.parametrize("sizes", ["static", "dynamic", "marked"])
@every_case()
def test_compile(case: Case, sizes: str, backend: str) -> None:
    def transform(module: nn.Module, inputs: Inputs) -> Call:
        compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=True if sizes == "dynamic" else None)

        def call(*given: Tensor) -> Tensor:
            if sizes == "marked":
                for x, dims in zip(given, case.dynamic, strict=True):
                    torch._dynamo.mark_dynamic(x, dims)
            y: Tensor = compiled(*given)
            return y

        return call

    agree(case, transform)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", [case for case in CASES if case.short], ids=lambda case: case.name)
def test_inductor(case: Case, dynamic: bool) -> None:
    agree(case, lambda module, _: torch.compile(module, dynamic=dynamic, fullgraph=True))


def exported(case: Case, module: nn.Module, inputs: Inputs, strict: bool) -> nn.Module:
    shapes = [{dim: torch.export.Dim.DYNAMIC for dim in dims} for dims in case.dynamic]
    program = torch.export.export(module, inputs, dynamic_shapes=tuple(shapes), strict=strict)
    return program.module()


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["free", "strict"])
@every_case()
def test_export(case: Case, strict: bool) -> None:
    module = case.module()
    plain = copy.deepcopy(module)
    program = exported(case, module, case.inputs(0), strict)
    for i in (0, 1):
        same(run(program, case.inputs(i), program), run(plain, case.inputs(i), plain))


@pytest.mark.parametrize("others", [True])
@every_case()
def test_jit_trace(case: Case, others: bool) -> None:
    def transform(module: nn.Module, inputs: Inputs) -> Call:
        traced: Any = torch.jit.trace(copy.deepcopy(module), inputs, check_trace=False)
        traced.load_state_dict(module.state_dict())
        return traced

    module = case.module()
    plain = copy.deepcopy(module)
    traced = transform(module, case.inputs(0))
    for i in (0, 1):
        same(run(traced, case.inputs(i), traced), run(plain, case.inputs(i), plain))


@pytest.mark.parametrize("mode", ["symbolic", *[pytest.param(m, marks=pytest.mark.exhaustive) for m in ("real", "fake")]])
@every_case()
def test_make_fx(case: Case, mode: str) -> None:
    module = case.module()
    plain = copy.deepcopy(module)
    names, parameters = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())

    def results(parameters: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(names, parameters, strict=True))
        y = torch.func.functional_call(module, state, inputs)
        wanted = [x for x in (*inputs, *parameters) if x.requires_grad]
        return y, *torch.autograd.grad(y.square().sum(), wanted)

    def given(i: int) -> Inputs:
        return tuple(x.requires_grad_() if x.is_floating_point() else x for x in case.inputs(i))

    graph = make_fx(results, tracing_mode=mode)(parameters, *given(0))
    module.load_state_dict(plain.state_dict())
    for i in (0, 1) if mode == "symbolic" else (0,):
        y, *found = graph(parameters, *given(i))
        expected = run(plain, case.inputs(i), plain)
        wanted = {name: value for name, value in expected.items() if "gradient" in name or name == "output"}
        same(dict(zip(wanted, (y.detach(), *found), strict=True)), wanted)
