"""Models that the fused decoder does not support run in torch, with the same text."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numba
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.blocks.activations import ACTIVATIONS, Activation
from normscope.blocks.block import Block
from normscope.blocks.linear import Linear
from normscope.blocks.norm import LayerNorm, RMSNorm
from normscope.blocks.norm.norm_spec import NoNorm, NormSpec
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary import Rotary
from normscope.generate import decoder
from normscope.generate.decoder import get_layout
from normscope.generate.decoder_support import can_decode
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from normscope.ops import kernel_mode
from normscope.ops.fused import decode_step as loops
from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.norm.statistic import STANDARDIZE
from tests.generate.writers import FORMS, VOCABULARY, writer
from tests.support import safe_bfloat16, scramble

PROMPTS = [[1, 2, 3], [4], [5, 6]]


def single(form: str = "llama", **options: Any) -> GPT:
    return writer(form, torch.float32, **options)


def texts(model: nn.Module) -> list[list[int]]:
    found = generate_tokens(model, PROMPTS, max_new_tokens=3)  # type: ignore[arg-type]
    return [text.tokens for text in found]


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("no-cache", "nanochat-2026-07")])
def test_supported_configs(form: str) -> None:
    model = single(form)
    assert can_decode(model)
    assert can_decode(model.train())
    assert can_decode(copy.deepcopy(model))
    assert can_decode(model.double().float())
    assert can_decode(model.requires_grad_(False))


CONFIGS: dict[str, dict[str, Any]] = {
    **{f"wiring-{name}": {"wiring": name} for name in ("post", "sandwich", "parallel", "single", "none")},
    "no-norm": {"norm": None},
    "group": {"norm": "group"},
    "power": {"norm": "power"},
    "batch": {"norm": "batch", "allow_future_leak": True},
    "remembers": {"norm": NormSpec("b s [d]", state="running")},
    "interleaved": {"norm": NormSpec("b s ([d] g)", affine=None, sizes={"g": 4})},
    "one-group": {"norm": NormSpec("b s (g [d])", affine=None, sizes={"g": 1})},
    "all-heads": {"qk_norm": "b s [h e]"},
    "the-rest": {"qk_norm": "b s [...]"},
    "along-heads": {"qk_norm": "b s [h] e"},
    "gain-of-heads": {"qk_norm": NormSpec("b s h [e]", affine="h e")},
    "gain-along-heads": {"qk_norm": NormSpec("b s h [e]", affine="h"), "head_dim": 2, "kv_heads": 2},
    "power-heads": {"qk_norm": NormSpec("[b s h] e", statistic="rms", state="power", affine="e")},
}


@pytest.mark.parametrize("config", CONFIGS)
def test_unsupported_configs(config: str) -> None:
    model = single(**CONFIGS[config]).eval()
    assert not can_decode(model)
    assert get_layout(model, "float32") is None
    with reference_kernels():
        wanted = texts(model)
    assert texts(model) == wanted


class OtherLinear(Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class OtherNorm(RMSNorm):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) * 2


class OtherBlock(Block):
    pass


class OtherGPT(GPT):
    pass


class OtherParameter(nn.Parameter):
    pass


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Counter(TorchDispatchMode):
    """Sees torch's own operations, as torch's counter of FLOPs does."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return operation(*args, **(kwargs or {}))


def _set(place: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Put something else in a place of the model, such as `blocks.0.mlp`, made from what is there."""

    def change(model: Any) -> None:
        *path, name = place.split(".")
        parent = model.get_submodule(".".join(path))
        setattr(parent, name, make(getattr(parent, name)))

    return change


def _scrambled(module: nn.Module) -> nn.Module:
    scramble(module)
    return module


def _of_class(place: str, other: type) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.get_submodule(place).__class__ = other

    return change


def _double_tables(model: Any) -> None:
    rotary = model.blocks[0].attention.rotary
    rotary.cos, rotary.sin = rotary.cos.double(), rotary.sin.double()


def _fewer_blocks(model: Any) -> None:
    model.blocks = model.blocks[:1]


CHANGES: dict[str, Callable[[Any], None]] = {
    "float64": lambda model: model.double(),
    "order": _set("blocks.0.mlp.up.weight", lambda weight: nn.Parameter(weight.detach().t().contiguous().t())),
    "parameter-class": _set("head.weight", OtherParameter),
    "parametrized": _set("head", lambda head: parametrize.register_parametrization(head, "weight", Twice())),
    "forward": _set("blocks.1.mlp.forward", lambda forward: lambda x: 2 * forward(x)),
    "model-forward": _set("forward", lambda forward: lambda *args, **options: -forward(*args, **options)),
    "subclass-of-linear": _of_class("blocks.1.attention.q", OtherLinear),
    "subclass-of-block": _of_class("blocks.1", OtherBlock),
    "subclass-of-gpt": _of_class("", OtherGPT),
    "subclass-of-norm": _set("final_norm", lambda _: OtherNorm(12, eps=1e-5)),
    "torchs-linear": _set("head", lambda _: nn.Linear(12, VOCABULARY)),
    "another-module": _set("blocks.1.mlp.down", lambda _: nn.Sequential(Linear(20, 12), nn.Tanh())),
    "no-norm-here": lambda model: model.blocks[1].norms.__setitem__(0, NoNorm()),
    "another-norm-here": lambda model: model.blocks[1].norms.__setitem__(0, _scrambled(LayerNorm(12))),
    "eps": _set("blocks.1.norms.1.eps", lambda _: 0.3),
    "statistic": _set("final_norm.statistic", lambda _: STANDARDIZE),
    "wiring": _set("blocks.1.wiring", lambda _: WIRINGS["post"]),
    "window": _set("blocks.1.attention.window", lambda _: 2),
    "no-rotary-here": _set("blocks.1.attention.rotary", lambda _: None),
    "another-rotary-here": _set("blocks.1.attention.rotary", lambda _: Rotary(6, 16, base=3.0)),
    "rotary-in-doubles": _double_tables,
    "fewer-blocks": _fewer_blocks,
    "larger-head": _set("head", lambda _: _scrambled(Linear(12, 40, bias=False))),
    "larger-table": _set("embedding.weight", lambda weight: nn.Parameter(weight.detach().repeat(2, 1))),
    "max-norm": _set("embedding.max_norm", lambda _: 0.5),
    "dropout": _set("dropout", lambda _: nn.Tanh()),
    "another-activation": _set("blocks.1.mlp.activation", lambda _: single("gpt2").blocks[0].mlp.activation),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("change", CHANGES)
def test_unsupported_modules(change: str) -> None:
    model = single().eval()
    if change == "another-activation":  # one without a gate
        model = single(activation="silu", positions="none").eval()
    assert can_decode(model)
    CHANGES[change](model)
    assert not can_decode(model)
    assert get_layout(model, "float32") is None
    if change == "rotary-in-doubles":
        return  # the model itself mixes the types
    with reference_kernels():
        wanted = texts(model)
    assert texts(model) == wanted


def test_weights_on_the_meta_device() -> None:
    assert not can_decode(single().to("meta"))


def test_weights_in_bfloat16() -> None:
    model = writer("llama", torch.bfloat16).eval()
    assert not can_decode(model)
    with safe_bfloat16():
        assert [len(text) for text in texts(model)] == [3, 3, 3]


def test_a_wrapped_model() -> None:
    """As torch.compile makes one: it has all that the model has, and does it in its own way."""
    wrapped = nn.Sequential(single())
    wrapped.config = wrapped[0].config
    assert not can_decode(wrapped)


@pytest.mark.parametrize(
    "kind",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"],
)
def test_a_hook_on_any_module_is_called(kind: str) -> None:
    model = single("nanochat")
    for module in model.modules():
        handle = getattr(module, kind)(lambda *_: None)
        assert not can_decode(model)
        handle.remove()
        assert can_decode(model)


def test_hooks_see_every_token() -> None:
    model, seen = single(), []
    wanted = texts(model)
    for place in ("", "blocks.1", "blocks.0.attention.q"):
        handle = model.get_submodule(place).register_forward_hook(lambda *_: seen.append(1))
        found = generate_tokens(model, [[1, 2, 3]], max_new_tokens=6)
        handle.remove()
        assert len(found[0].tokens) == 6
        assert len(seen) == 6
        seen.clear()
    handle = register_module_forward_hook(lambda *_: seen.append(1))
    try:
        assert not can_decode(model)
        assert texts(model) == wanted
    finally:
        handle.remove()
    assert seen


@pytest.mark.parametrize(
    "environment",
    [reference_kernels, lambda: torch.autocast("cpu", dtype=torch.bfloat16), Counter],
    ids=["reference", "autocast", "counter"],
)
def test_autocast_and_other_contexts(environment: Callable[[], AbstractContextManager[Any]]) -> None:
    model = single().eval()
    with safe_bfloat16(), environment():
        assert not can_decode(model)
        assert [len(text) for text in texts(model)] == [3, 3, 3]
    assert can_decode(model)


@pytest.fixture
def kernels_on(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernel_mode, "_enabled", True)
    return monkeypatch


def test_kernels_can_be_disabled(kernels_on: pytest.MonkeyPatch) -> None:
    model = single()
    wanted = texts(model)
    kernels_on.setattr(kernel_mode, "_enabled", False)
    assert not can_decode(model)
    assert texts(model) == wanted


def test_a_kernel_that_fails_to_compile_falls_back_after_one_notice(kernels_on: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise numba.core.errors.TypingError("no such thing")

    model = single()
    wanted = texts(model)
    kernels_on.setattr(loops, "advance", broken)
    with pytest.warns(RuntimeWarning, match=r"not available \(TypingError: no such thing\)") as notices:
        found = texts(model)
    assert len(notices) == 1
    assert found == texts(model) == wanted
    assert model not in decoder._layouts


@pytest.mark.exhaustive  # ops/test_kernel_mode.py has one such process in the default suite
def test_without_numba() -> None:
    code = """
import sys, warnings
sys.modules["numba"] = None
from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT
from normscope.models.presets import llama
with warnings.catch_warnings(record=True) as notices:
    warnings.simplefilter("always")
    model = GPT(llama(vocab_size=9, context=16, depth=1, width=8, heads=2))
    found = [generate_tokens(model, [[1], [2]], max_new_tokens=5, weights="int8") for _ in range(2)]
print(len(notices), "not available" in str(notices[0].message), found[0] == found[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout.split() == ["1", "True", "True"], done.stderr


def test_activation_that_the_kernel_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "mish", Activation("mish", torch.nn.functional.mish))
    model = single(activation="mish")
    assert not can_decode(model)
    assert len(generate_tokens(model, PROMPTS, max_new_tokens=3)) == len(PROMPTS)
