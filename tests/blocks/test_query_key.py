"""Queries and keys: when the norm and the turn are one pass, and that nobody can tell but by the time."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import normscope as ns
from normscope.blocks.attention import Attention
from normscope.blocks.cache import Positions
from normscope.blocks.fused_norms import norm_and_rotate
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.blocks.rotary import Rotary
from normscope.errors import ShapeError
from normscope.ops.kernel_mode import reference_kernels
from tests.ops.rotary_cases import record_calls
from tests.support import gradients, randn, real_tokens, scramble

WIDTH, HEADS, E = 32, 4, 8


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return record_calls(monkeypatch)


def made(qk_norm: NormSpec | str | None = "rms", **options: Any) -> Attention:
    attention = Attention(WIDTH, HEADS, kv_heads=2, rotary=Rotary(E, 12), qk_norm=qk_norm, **options)
    scramble(attention)
    return attention


def x() -> Tensor:
    return randn(2, 7, WIDTH, dtype=torch.float32)


def run(attention: Attention, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The output and every gradient."""
    attention.zero_grad()
    leaf = x().requires_grad_()
    y = attention(leaf, mask)
    y.backward(randn(2, 7, WIDTH, seed=1, dtype=torch.float32))
    assert leaf.grad is not None
    return {"y": y.detach(), "x": leaf.grad, **gradients(attention)}


def same_as_steps(attention: Attention, mask: Tensor | None = None) -> None:
    """The same as the two modules give, called one after the other because a hook waits, and in plain torch."""
    found = run(attention, mask)
    assert attention.rotary is not None
    handle = attention.rotary.register_forward_hook(lambda *_: None)
    with reference_kernels():
        wanted = run(attention, mask)
    handle.remove()
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


ONE_PASS: dict[str, NormSpec | str] = {
    "gain": "rms",
    "plain": "rms-plain",
    "scope": NormSpec("b s h [e]", statistic="rms", affine="e", bias=False),
    "scope-plain": NormSpec("b s h [e]", statistic="rms", affine=None, eps=1e-2),
}


@pytest.mark.parametrize("name", ONE_PASS)
def test_an_rms_norm_of_each_head_and_the_turn_are_one_pass(name: str, calls: list[str]) -> None:
    attention = made(ONE_PASS[name])
    same_as_steps(attention)
    # Queries and keys.
    assert calls == ["rms_norm_rotary"] * 2 + ["rms_norm_rotary_backward"] * 2


ONE_AFTER_THE_OTHER: dict[str, NormSpec | str | None] = {
    "none": None,
    "layer": "layer",
    "layer-plain": NormSpec("b s h [e]", affine=None),
    "bias": NormSpec("b s h [e]", statistic="rms", affine="e"),
    "gain-of-heads": NormSpec("b s h [e]", statistic="rms", affine="h", bias=False),
    "gain-of-all": NormSpec("b s h [e]", statistic="rms", affine="h e", bias=False),
    "across-heads": NormSpec("b s [h e]", statistic="rms", affine=None),
    "groups": NormSpec("b s h (g [e])", statistic="rms", affine=None, sizes={"g": 2}),
    "other-groups": NormSpec("b s h ([e] g)", statistic="rms", affine=None, sizes={"g": 2}),
    "memory": NormSpec("b s h [e]", statistic="rms", state="running", affine=None),
}


@pytest.mark.parametrize("name", ONE_AFTER_THE_OTHER)
def test_other_norms_come_one_after_the_other(name: str, calls: list[str]) -> None:
    attention = made(ONE_AFTER_THE_OTHER[name])
    same_as_steps(attention)
    assert calls == ["apply_rotary"] * 4


def test_with_a_mask_too(calls: list[str]) -> None:
    same_as_steps(made(bias=True), real_tokens([7, 4], 7))
    assert set(calls) == {"apply_rotary"}


class _Doubled(ns.Norm):
    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return 2 * super().forward(input, mask)


class _Still(Rotary):
    def forward(self, x: Tensor, start: Positions) -> Tensor:
        return x


def test_what_was_put_in_the_place_of_a_norm_is_called(calls: list[str]) -> None:
    heads, rotary = randn(2, 3, HEADS, E, dtype=torch.float32), Rotary(E, 12)
    ours = ns.Norm("b s h [e]", statistic="rms", e=E)
    doubled = _Doubled("b s h [e]", statistic="rms", e=E)
    replaced = copy.deepcopy(ours)
    replaced.forward = lambda input, mask=None: 2 * ours(input)  # type: ignore[method-assign]
    wanted = 2 * norm_and_rotate(heads, ours, rotary, None, 0)
    assert calls.pop() == "rms_norm_rotary"
    for norm in (doubled, replaced):
        torch.testing.assert_close(norm_and_rotate(heads, norm, rotary, None, 0), wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(norm_and_rotate(heads, ours, _Still(E, 12), None, 0), ours(heads))
    assert calls == ["apply_rotary", "apply_rotary"]
    norm_and_rotate(heads, ns.RMSNorm(E), rotary, None, 0)
    assert calls[2:] == ["rms_norm_rotary"]


Hook = Callable[[nn.Module, Callable[..., None]], Any]
HOOKS: dict[str, Hook] = {
    "forward": lambda module, hook: module.register_forward_hook(hook),
    "forward-pre": lambda module, hook: module.register_forward_pre_hook(hook),
    "backward": lambda module, hook: module.register_full_backward_hook(hook),
    "backward-pre": lambda module, hook: module.register_full_backward_pre_hook(hook),
    "any-forward": lambda _, hook: torch_module.register_module_forward_hook(hook),
    "any-forward-pre": lambda _, hook: torch_module.register_module_forward_pre_hook(hook),
    "any-backward": lambda _, hook: torch_module.register_module_full_backward_hook(hook),
    "any-backward-pre": lambda _, hook: torch_module.register_module_full_backward_pre_hook(hook),
}


@pytest.mark.parametrize("place", ["q_norm", "k_norm", "rotary"])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_see_both_modules(name: str, place: str, calls: list[str]) -> None:
    attention, seen = made(), []
    unwatched = run(attention)
    assert "apply_rotary" not in calls
    watched = getattr(attention, place)
    handle = HOOKS[name](watched, lambda module, *_: seen.append(module))
    try:
        found = run(attention)
    finally:
        handle.remove()
    assert any(module is watched for module in seen)
    assert "apply_rotary" in calls
    for key, value in found.items():
        torch.testing.assert_close(value, unwatched[key], rtol=1e-4, atol=1e-5, msg=key)
    calls.clear()
    run(attention)
    assert "apply_rotary" not in calls  # once nobody watches any more


def test_a_place_that_is_not_there_is_refused() -> None:
    with pytest.raises(ShapeError, match="position 12 is out of range: expected 0 to 11"):
        made()(randn(1, 13, WIDTH, dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler calls what torch has deprecated
def test_a_compiler_sees_one_pass() -> None:
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if "normscope" in str(node.target)])
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    attention = made()
    wanted = run(attention)
    found = run(torch.compile(attention, fullgraph=True, backend=backend))  # type: ignore[arg-type]
    assert graphs == [["normscope.rms_norm_rotary.default"] * 2 + ["normscope.attend.default"]]
    for name, value in wanted.items():
        other = found[name] if name in found else found[f"_orig_mod.{name}"]
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6, msg=name)
