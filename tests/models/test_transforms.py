"""Under torch's transforms every layer, block and model gives the same outputs and gradients as in eager mode.

Where the transform supports it, a module traced with one shape is called with another.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import normscope as ns
from normscope.errors import TransformError
from tests.models.transform_cases import (
    CASES,
    Case,
    Inputs,
    every_case,
    has_power_norm,
    has_state,
    may_be_one,
    updates_buffers,
)
from tests.support import randn, scramble

# torch's compiler and tracer call deprecated functions, and torch.jit.trace warns about every check of a size.
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


def weighted_loss(y: Tensor) -> Tensor:
    """A weighted sum: the sum of squares would be constant for the output of a norm."""
    return (y * torch.arange(y.numel()).cos().reshape(y.shape)).sum()


def run(call: Call, inputs: Inputs, module: nn.Module) -> Results:
    """Output, gradients of inputs and parameters, and the buffers after the call."""
    given = tuple(x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs)
    module.zero_grad()
    y = call(*given)
    weighted_loss(y).backward()
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


def same_as_recorded(found: Results, expected: Results) -> None:
    """A traced graph has no unused buffers."""
    same(found, {name: value for name, value in expected.items() if name in found or "gradient" in name})


def agree(case: Case, transform: Callable[[nn.Module, Inputs], Call], others: bool = True) -> None:
    """Compare the transformed module with a copy, on the example's shape and on another one."""
    module = case.module()
    plain = copy.deepcopy(module)
    call = transform(module, case.inputs(0))
    for i in (0, 1) if others else (0,):
        same(run(call, case.inputs(i), module), run(plain, case.inputs(i), plain))


exhaustive = pytest.mark.exhaustive
FEW = ("LayerNorm", "BatchNorm", "Linear", "Attention with all options", "Block pre rms")


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=exhaustive)])
@pytest.mark.parametrize(
    "sizes", ["dynamic", pytest.param("static", marks=exhaustive), pytest.param("marked", marks=exhaustive)]
)
@every_case(quick=("LayerNorm", "GroupNorm"))
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


@exhaustive
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", [case for case in CASES if case.short], ids=lambda case: case.name)
def test_inductor(case: Case, dynamic: bool) -> None:
    agree(case, lambda module, _: torch.compile(module, dynamic=dynamic, fullgraph=True))


def exported(case: Case, module: nn.Module, inputs: Inputs, strict: bool) -> nn.Module:
    shapes = [dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for dims in case.dynamic]
    program = torch.export.export(module, inputs, dynamic_shapes=tuple(shapes), strict=strict)
    return program.module()


def with_other_layout(x: Tensor) -> Tensor:
    """The same values in another memory layout: channels last for images, first dimension innermost otherwise."""
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.transpose(0, -1).contiguous().transpose(0, -1)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=exhaustive)], ids=["free", "strict"])
@every_case(lambda case: not has_power_norm(case), quick=("LayerNorm", "GroupNorm", "Attention with all options"))
def test_export(case: Case, strict: bool) -> None:
    module = case.module()
    plain = copy.deepcopy(module)
    program = exported(case, module, case.inputs(0), strict)
    first = case.dynamic[0][0]
    for inputs in (
        case.inputs(0),
        case.inputs(1),
        tuple(with_other_layout(x) for x in case.inputs(1)),
        tuple(x.narrow(first, 0, 1) for x in case.inputs(1)) if may_be_one(case) else case.inputs(1),
    ):
        same_as_recorded(run(program, inputs, program), run(plain, inputs, plain))


@every_case(lambda case: not has_power_norm(case), quick=FEW)
def test_jit_trace(case: Case) -> None:
    module = case.module()
    plain = copy.deepcopy(module)
    traced: Any = torch.jit.trace(module, case.inputs(0), check_trace=False)
    module.load_state_dict(plain.state_dict())  # tracing runs the module and shares its buffers
    for i in (0, 1):
        same_as_recorded(run(traced, case.inputs(i), traced), run(plain, case.inputs(i), plain))


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers(remove_duplicate=False))}


def functional(module: nn.Module, state: dict[str, Tensor], inputs: Inputs, grad: Callable[..., Any]) -> Results:
    """The result of `run`, with functional_call and torch.func."""
    params = {name: value for name, value in state.items() if value.requires_grad}
    rest = {name: value.clone() for name, value in state.items() if name not in params}
    floats = [i for i, x in enumerate(inputs) if x.is_floating_point()]

    def loss(params: dict[str, Tensor], given: list[Tensor], rest: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        everything = list(inputs)
        for i, x in zip(floats, given, strict=True):
            everything[i] = x
        y = torch.func.functional_call(module, {**params, **rest}, tuple(everything))
        return weighted_loss(y), y

    found, y = grad(loss, argnums=(0, 1), has_aux=True)(params, [inputs[i] for i in floats], rest)
    results = {"output": y}
    results |= {f"gradient of input {i}": x for i, x in zip(floats, found[1], strict=True)}
    results |= {f"gradient of {name}": value for name, value in found[0].items()}
    return results | {name: value for name, value in rest.items() if name in dict(module.named_buffers())}


@every_case(lambda case: not has_power_norm(case))
def test_functional_call_and_grad(case: Case) -> None:
    module = case.module()
    plain = copy.deepcopy(module)
    for i in (0, 1):
        same(functional(module, state_of(module), case.inputs(i), torch.func.grad), run(plain, case.inputs(i), plain))
        module.load_state_dict(plain.state_dict())


@every_case(lambda case: not updates_buffers(case) and case.inputs(0)[0].is_floating_point())
def test_jvp(case: Case) -> None:
    """Forward-mode and reverse-mode derivatives agree."""
    module = case.module().requires_grad_(False)
    inputs = case.inputs(0)
    x, rest, direction = inputs[0], inputs[1:], randn(*inputs[0].shape, seed=9, dtype=torch.float32)
    _, found, *_ = torch.func.jvp(lambda v: weighted_loss(module(v, *rest)), (x,), (direction,))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(weighted_loss(module(x, *rest)), x)
    steps = gradient * direction
    torch.testing.assert_close(found, steps.sum(), rtol=0, atol=2e-5 * float(steps.abs().sum()))


@every_case(lambda case: not updates_buffers(case), quick=FEW)
def test_vmap(case: Case) -> None:
    """Over a batch of input batches."""
    module = case.module().requires_grad_(False)
    calls = [case.inputs(0), tuple(x.flip(0) for x in case.inputs(0))]
    found = torch.func.vmap(module)(*[torch.stack(given) for given in zip(*calls, strict=True)])
    for y, inputs in zip(found, calls, strict=True):
        same({"output": y}, {"output": module(*inputs)})


@every_case(lambda case: has_state(case) and not has_power_norm(case))
def test_ensemble(case: Case) -> None:
    """Model ensembling as in torch's tutorial: vmap over stacked states, with gradients."""
    models = [case.module() for _ in range(2)]
    scramble(models[1], seed=5)
    inputs = case.inputs(0)
    parameters, buffers = torch.func.stack_module_state(models)
    parameters = {name: value.detach() for name, value in parameters.items()}
    skeleton = copy.deepcopy(models[0]).to("meta")

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        y = torch.func.functional_call(skeleton, (parameters, buffers), inputs)
        return weighted_loss(y), y

    gradients, y = torch.func.vmap(torch.func.grad(loss, has_aux=True))(parameters, buffers)
    for i, model in enumerate(models):
        found = {"output": y[i]} | {f"gradient of {name}": value[i] for name, value in gradients.items()}
        found |= {name: value[i] for name, value in buffers.items()}
        expected = run(model, inputs, model)
        same(found, {name: value for name, value in expected.items() if "of input" not in name})


@pytest.mark.parametrize(
    "mode", ["symbolic", pytest.param("real", marks=exhaustive), pytest.param("fake", marks=exhaustive)]
)
@every_case(quick=("BatchNorm",))
def test_make_fx(case: Case, mode: Literal["real", "fake", "symbolic"]) -> None:
    """Forward and backward in one graph."""
    module = case.module()
    plain = copy.deepcopy(module)
    names = list(state_of(module))

    def results(state: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        y = torch.func.functional_call(module, dict(zip(names, state, strict=True)), inputs)
        wanted = [x for x in (*inputs, *state) if x.requires_grad]
        return y, *torch.autograd.grad(weighted_loss(y), wanted)

    def given(i: int) -> Inputs:
        return tuple(x.requires_grad_() if x.is_floating_point() else x for x in case.inputs(i))

    example = [x.detach().clone().requires_grad_(x.requires_grad) for x in state_of(module).values()]
    graph = make_fx(results, tracing_mode=mode)(example, *given(0))
    for i in (0, 1) if mode == "symbolic" else (0,):
        y, *found = graph(list(state_of(module).values()), *given(i))
        expected = run(plain, case.inputs(i), plain)
        wanted = {name: value for name, value in expected.items() if "gradient" in name or name == "output"}
        same(dict(zip(wanted, (y.detach(), *found), strict=True)), wanted)
        same(dict(module.named_buffers()), dict(plain.named_buffers()))


def func_derivatives(module: nn.Module, inputs: Inputs) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """torch.func: a gradient, vmapped gradients of two inputs, and a forward-mode derivative."""
    rest, direction = inputs[1:], randn(*inputs[0].shape, seed=9, dtype=torch.float32)

    def loss(x: Tensor) -> Tensor:
        return weighted_loss(module(x, *rest))

    def results(x: Tensor) -> tuple[Tensor, ...]:
        both = torch.func.vmap(torch.func.grad(loss))(torch.stack((x, direction)))
        return torch.func.grad(loss)(x), both, torch.func.jvp(loss, (x,), (direction,))[1]

    return results


FUNCTIONS: dict[str, Callable[[Callable[..., Any], Tensor], Callable[..., Any]]] = {
    "compile": lambda function, _: torch.compile(function, backend="eager", fullgraph=True),
    "make_fx": lambda function, x: make_fx(function)(x),
}


QUICK = {"compile": ("LayerNorm",), "make_fx": ("Block pre rms",)}


@pytest.mark.parametrize(
    ("case", "tool"),
    [
        pytest.param(case, tool, id=f"{case.name}-{tool}", marks=() if case.name in QUICK[tool] else exhaustive)
        for tool in FUNCTIONS
        for case in CASES
        if not updates_buffers(case) and case.inputs(0)[0].is_floating_point()
    ],
)
def test_torch_func_inside_graph(case: Case, tool: str) -> None:
    """A kernel operator has no derivative for torch.func; forward mode would silently give zero."""
    module, inputs = case.module().requires_grad_(False), case.inputs(0)
    function = func_derivatives(module, inputs)
    found, wanted = FUNCTIONS[tool](function, inputs[0])(inputs[0]), function(inputs[0])
    same({str(i): x for i, x in enumerate(found)}, {str(i): x for i, x in enumerate(wanted)})


@every_case(
    lambda case: not updates_buffers(case) and case.inputs(0)[0].is_floating_point(),
    quick=("LayerNorm", "MLP swiglu"),
)
def test_compiled_module_inside_torch_func(case: Case) -> None:
    module, inputs = case.module().requires_grad_(False), case.inputs(0)
    compiled = torch.compile(module, backend="eager")
    compiled(*inputs)  # code compiled without a transform must not be reused with one
    direction = randn(*inputs[0].shape, seed=9, dtype=torch.float32)
    found, wanted = (
        torch.func.jvp(lambda x, call=call: call(x, *inputs[1:]), (inputs[0],), (direction,))[1]
        for call in (compiled, module)
    )
    same({"tangent": found}, {"tangent": wanted})


@every_case(lambda case: not has_power_norm(case) and case.inputs(0)[0].is_floating_point(), quick=FEW)
def test_forward_mode_of_exported_program(case: Case) -> None:
    """The correct derivative or an error: torch silently takes the tangent of an operator as zero.

    An exported attention may have torch's own operator for the CPU, which raises a NotImplementedError.
    """
    module, inputs = case.module().eval().requires_grad_(False), case.inputs(0)
    program = exported(case, module, inputs, strict=False)
    direction = randn(*inputs[0].shape, seed=9, dtype=torch.float32)

    def derivative(call: Call) -> Tensor:
        tangent: Tensor = torch.func.jvp(lambda x: call(x, *inputs[1:]), (inputs[0],), (direction,))[1]
        return tangent

    try:
        found = derivative(program)
    except (TransformError, NotImplementedError) as error:  # one of two valid outcomes
        expected = "does not support forward-mode differentiation", "Trying to use forward AD with _scaled_dot_product"
        assert any(text in str(error) for text in expected)  # noqa: PT017
    else:
        same({"tangent": found}, {"tangent": derivative(module)})


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda norm, x: torch.func.grad(lambda v: norm(v).sum())(x), id="grad"),
        pytest.param(lambda norm, x: torch.func.jvp(norm, (x,), (x,)), id="jvp"),
        pytest.param(lambda norm, x: torch.func.vmap(norm)(x[None]), id="vmap"),
        pytest.param(lambda norm, x: torch.jit.trace(norm, x), id="trace"),
        pytest.param(lambda norm, x: torch.export.export(norm, (x,)), id="export"),
    ],
)
def test_losing_custom_backward_raises(use: Callable[[nn.Module, Tensor], object]) -> None:
    x = randn(3, 4, dtype=torch.float32)
    for warmup in (0, 1):
        with pytest.raises(TransformError, match=r"(?s)custom backward pass.*fix: call eval"):
            use(ns.PowerNorm(4, warmup=warmup), x)
    use(ns.PowerNorm(4).eval(), x)


@pytest.mark.exhaustive
def test_graph_break_inside_norm() -> None:
    """The warmup reads the batch counter, which breaks the graph; the plan made before it must survive."""
    module = ns.PowerNorm(16, warmup=1)
    plain = copy.deepcopy(module)
    compiled = torch.compile(module, backend="eager", dynamic=True)
    for i in range(3):
        inputs = (randn(3 + i, 5, 16, seed=i, dtype=torch.float32),)
        same(run(compiled, inputs, module), run(plain, inputs, plain))
