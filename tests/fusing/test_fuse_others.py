"""Fusing the norms of other libraries: recognized by what they compute, verified, or skipped with a reason."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normscope
from normscope.fusing.fused_forward import FORMULA_ATTRIBUTE, FusedForward
from normscope.ops.kernel_mode import reference_kernels
from tests.fusing import foreign
from tests.fusing.foreign import MODELS, VOCABULARY, OtherNorm, logits, made
from tests.pairs import chiefly, every_value
from tests.support import randn, random_tokens, scramble

TOLERANCE = 2e-5
"""Of the largest value: a few ulps of float32, accumulated over two layers."""

TOKENS = random_tokens(VOCABULARY, 2, 8)
every_model = pytest.mark.parametrize("name", MODELS)
_SOME = ("gpt2", "olmo", "t5")  # with bias, without parameters, with a gain alone
some_models = pytest.mark.parametrize("name", chiefly(_SOME, [name for name in MODELS if name not in _SOME]))


def outcome(model: Any, tokens: Tensor = TOKENS) -> dict[str, Tensor]:
    """The logits and the gradients of all parameters."""
    model.zero_grad()
    y = logits(model, tokens)
    y.backward(randn(*y.shape, seed=5, dtype=torch.float32))
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": y.detach(), **found}


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    largest = max(float(value.abs().max()) for key, value in theirs.items() if key != "logits")
    for key, wanted in theirs.items():
        size = float(wanted.abs().max()) if key == "logits" else largest
        assert (ours[key] - wanted).abs().max() <= TOLERANCE * size, key


@every_model
def test_logits_and_gradients_match(name: str) -> None:
    model = made(name)
    wanted = outcome(model)
    report = normscope.fuse(model)
    norms = [entry for entry in report.fused if entry.what == "norm"]
    assert (len(norms), report.skipped) == (MODELS[name][1], ())
    close(outcome(model), wanted)
    modules = [module for module in model.modules() if "Norm" in type(module).__name__]
    assert all(isinstance(module, FusedForward | normscope.Norm) for module in modules)


@some_models
def test_undo_restores_objects_and_bits(name: str) -> None:
    model = made(name)
    before, wanted = [(m, type(m), set(vars(m))) for m in model.modules()], outcome(model)
    report = normscope.fuse(model)
    outcome(model)
    report.undo()
    assert [(m, type(m), set(vars(m))) for m in model.modules()] == before
    assert all(torch.equal(value, wanted[key]) for key, value in outcome(model).items())


@some_models
def test_the_state_dict_is_unchanged_and_a_saved_model_is_not_fused(name: str, tmp_path: Path) -> None:
    model = made(name)
    before, wanted = model.state_dict(keep_vars=True), logits(model, TOKENS)
    normscope.fuse(model)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in before)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert not any(isinstance(module, FusedForward | normscope.Norm) for module in again.modules())
    assert torch.equal(logits(again, TOKENS), wanted)


@pytest.mark.parametrize("name", ["gemma", "t5"])
def test_copied_and_pickled_models_stay_fused(name: str) -> None:
    model = made(name)
    normscope.fuse(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    wanted = logits(model, TOKENS)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(logits(twin, TOKENS), wanted)
        kinds = [type(m) for m in twin.modules() if isinstance(m, FusedForward)]
        assert kinds == [type(m) for m in model.modules() if isinstance(m, FusedForward)]
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


def test_a_fused_norm_keeps_its_class_and_attributes() -> None:
    model = made("llama")
    norm = model.model.norm
    kind, text = type(norm), norm.extra_repr()
    normscope.fuse(model)
    assert model.model.norm is norm
    assert isinstance(norm, kind)
    assert (type(norm).__name__, norm.extra_repr(), norm.variance_epsilon) == ("FusedLlamaRMSNorm", text, 1e-6)


def test_weight_initialization_of_transformers_finds_fused_norms() -> None:
    model = made("gemma")
    normscope.fuse(model)
    model._init_weights(model.model.norm)  # a gain that is added to one starts at zero
    assert not model.model.norm.weight.any()


def test_an_existing_optimizer_keeps_training_the_model() -> None:
    model, peer = made("gemma"), made("gemma")
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9) for m in (model, peer)]
    normscope.fuse(model)
    for _ in range(3):
        for m, optimizer in zip((model, peer), optimizers, strict=True):
            outcome(m)
            optimizer.step()
    close(outcome(model), outcome(peer))
    assert (model.model.norm.weight - made("gemma").model.norm.weight).abs().max() > 1e-3


def test_gradient_checkpointing_matches() -> None:
    model = made("llama")
    wanted = outcome(model)
    normscope.fuse(model)
    model.gradient_checkpointing_enable()
    model.train()
    close(outcome(model), wanted)


def test_fused_norms_follow_a_change_of_dtype() -> None:
    model, peer = made("llama").bfloat16().model.norm, made("llama").model.norm
    normscope.fuse(peer)
    fused = peer.to(torch.bfloat16)
    x = randn(3, 24, dtype=torch.float32)
    assert getattr(fused, FORMULA_ATTRIBUTE).dtypes == {torch.float32, torch.bfloat16, torch.float16}
    for kind in (torch.bfloat16, torch.float32):  # of the parameters
        for dtype in (torch.bfloat16, torch.float32, torch.float64):  # of the input
            y, wanted = fused.to(kind)(x.to(dtype)), model.to(kind)(x.to(dtype))
            assert y.dtype == wanted.dtype
            assert (y - wanted).abs().max() < 0.03


@pytest.mark.parametrize("backend", chiefly(["eager"], ["aot_eager"]))
def test_it_compiles(backend: str) -> None:
    norm = OtherNorm(foreign.rms_with_setting, "scale", my_epsilon=1e-4)
    scramble(norm)
    x = randn(2, 3, 16, dtype=torch.float32)
    wanted = norm(x)
    normscope.fuse(norm)
    compiled = torch.compile(norm, backend=backend, fullgraph=True)
    assert (compiled(x) - wanted).abs().max() < 1e-5


KNOWN: dict[str, tuple[Callable[[], OtherNorm], str]] = {
    "eps in its code": (lambda: OtherNorm(foreign.rms, "weight"), "rms, weight, eps=1e-05"),
    "eps in an attribute": (
        lambda: OtherNorm(foreign.rms_with_setting, "scale", my_epsilon=2e-3),
        "rms, scale, eps=0.002",
    ),
    "bias first": (lambda: OtherNorm(foreign.bias_first, "beta", "gamma"), "standardize, gamma, beta, eps=0.0003"),
    "no parameters": (lambda: OtherNorm(foreign.no_parameters), "rms, eps=0.001"),
    "one width": (lambda: OtherNorm(foreign.of_one_width, width_of_a_row=16), "standardize, eps=0.0001"),
}


@every_value(name=list(KNOWN), scale={"1": 1.0, "0.001": 1e-3, "0": 0.0})
def test_a_norm_is_recognized_by_what_it_computes(name: str, scale: float) -> None:
    make, text = KNOWN[name]
    norm = make()
    scramble(norm)
    x = scale * randn(2, 5, 16, dtype=torch.float32)
    wanted = norm(x).detach()
    (fused,) = normscope.fuse(norm).fused
    assert (fused.old, fused.new) == ("OtherNorm", text)
    vars(norm)["formula"] = None  # if the old forward were called, this would fail
    assert (norm(x) - wanted).abs().max() <= 1e-6 * max(1.0, float(wanted.abs().max()))


def test_a_later_change_of_eps_is_honored() -> None:
    norm = OtherNorm(foreign.rms_with_setting, "scale", my_epsilon=1e-5)
    normscope.fuse(norm)
    vars(norm)["my_epsilon"] = 0.5
    x = randn(2, 16, dtype=torch.float32)
    assert torch.allclose(norm(x), foreign.rms_with_setting(norm, x), atol=1e-6)


@pytest.mark.parametrize("name", ["gain", "eps"])
def test_a_later_change_of_an_attribute_is_honored(name: str) -> None:
    """Nothing was proven for it; and of two attributes that are equal, only the module knows which one is its eps."""

    def formula(module: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(foreign.mean_square(x) + module.eps) * module.weight * module.gain

    norm = OtherNorm(formula, "weight", other_eps=1e-5, eps=1e-5, gain=1.0)
    assert normscope.fuse(norm).fused
    setattr(norm, name, 0.5)
    x = randn(2, 16, dtype=torch.float32)
    assert torch.allclose(norm(x), formula(norm, x), atol=1e-6)
    assert torch.allclose(copy.deepcopy(norm)(x), formula(norm, x), atol=1e-6)


LEFT: dict[str, tuple[Callable[[], OtherNorm], str]] = {
    "eps outside": (lambda: OtherNorm(foreign.eps_outside, "weight"), "not for small ones"),
    "no root of d": (lambda: OtherNorm(foreign.no_root_of_d, "weight"), "neither rms nor standardize"),
    "unbiased": (lambda: OtherNorm(foreign.unbiased, "weight"), "neither rms nor standardize"),
    "clipped": (lambda: OtherNorm(foreign.clipped, "weight"), "neither rms nor standardize"),
    "gain without sign": (lambda: OtherNorm(foreign.gain_without_sign, "weight"), "neither rms nor standardize"),
    "gain with limits": (lambda: OtherNorm(foreign.gain_with_limits, "weight"), "neither rms nor standardize"),
    "huge inputs clamped": (lambda: OtherNorm(foreign.as_float16_allows, "weight"), "large inputs"),
    "without nan": (lambda: OtherNorm(foreign.without_nan, "weight"), "replaces NaN"),
    "half a gradient": (lambda: OtherNorm(foreign.half_a_gradient, "weight"), "input gradient differs"),
    "over the batch": (lambda: OtherNorm(foreign.over_the_batch, "weight"), "neither rms nor standardize"),
    "a rank of its own": (lambda: OtherNorm(foreign.by_rank, "weight"), "no fused version"),
    "noisy": (lambda: OtherNorm(foreign.noisy, "weight"), "no fused version"),
    "counting": (lambda: OtherNorm(foreign.counting, "weight", calls=0), "changes its state"),
    "raising": (lambda: OtherNorm(foreign.raising, "weight"), "LookupError: only on Sundays"),
    "no tensor": (lambda: OtherNorm(lambda module, x: (x, x), "weight"), "returned tuple"),
}


@pytest.mark.parametrize("name", LEFT)
def test_near_norms_are_skipped_with_a_reason(name: str) -> None:
    make, reason = LEFT[name]
    norm = make()
    state, before = torch.get_rng_state(), {**vars(norm)}
    report = normscope.fuse(nn.Sequential(norm))
    assert report.fused == ()
    assert reason in report.skipped[0].reason
    assert torch.equal(state, torch.get_rng_state())
    assert vars(norm) == before  # the calls were counted on a copy
    assert type(norm) is OtherNorm


def clamped(limit: float, *, gain: bool = True, half_only: bool = False) -> Callable[[Any, Tensor], Any]:
    def formula(module: Any, x: Tensor) -> Any:
        y = foreign.rms(module, x) if gain else foreign.no_parameters(module, x)
        return y if half_only and x.dtype != torch.float16 else y.clamp(-limit, limit)

    return formula


def clamped_unseen(module: Any, x: Tensor) -> Any:
    """As a compiled operator would: no torch function tells of it."""
    with torch._C.DisableTorchFunction():
        return foreign.rms(module, x).clamp(-1e6, 1e6)


@pytest.mark.parametrize("limit", [50.0, 1e3, 1e6, 1e20])
@pytest.mark.parametrize("gain", [True, False])
def test_a_norm_that_clamps_its_output_is_not_fused_at_any_limit(limit: float, gain: bool) -> None:
    report = normscope.fuse(OtherNorm(clamped(limit, gain=gain), *["weight"] * gain))
    assert report.fused == ()
    assert report.skipped[0].reason == "it clamps its values"


def test_clamps_in_half_precision_or_compiled_code_are_noticed() -> None:
    for formula in (clamped(6e4, half_only=True), clamped_unseen):
        report = normscope.fuse(OtherNorm(formula, "weight"))
        assert [skipped.reason for skipped in report.skipped] == ["it clamps its values"]


def test_a_clamped_variance_does_not_prevent_fusing() -> None:
    def formula(module: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(foreign.mean_square(x).clamp(min=0) + 1e-5) * module.weight

    assert normscope.fuse(OtherNorm(formula, "weight")).skipped == ()


def test_lists_of_a_norm_are_not_modified() -> None:
    norm = OtherNorm(foreign.noting, "weight", notes=[])
    (skipped,) = normscope.fuse(norm).skipped
    assert "changes its state" in skipped.reason
    assert norm.notes == []


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_are_verified_also_under_no_grad(context: Callable[[], Any]) -> None:
    with context():
        (skipped,) = normscope.fuse(OtherNorm(foreign.half_a_gradient, "weight")).skipped
    assert "input gradient differs" in skipped.reason


class OtherActivation(OtherNorm):
    """An activation whose forward is given, and may be taken away."""


ACTIVATIONS: dict[str, tuple[Callable[[Any, Tensor], Any], str | None]] = {
    "by sigmoid": (lambda _, x: x * torch.sigmoid(x), "silu"),
    "by tanh": (lambda _, x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))), "gelu-tanh"),
    "squared": (lambda _, x: x.clamp(min=0) ** 2, "relu2"),
    "capped": (lambda _, x: (x.clamp(min=0) ** 2).clamp(max=65504), None),
    "by erf": (lambda _, x: F.gelu(x), None),
    "quick": (lambda _, x: x * torch.sigmoid(1.702 * x), None),
    "no gradient": (lambda _, x: x * torch.sigmoid(x).detach(), None),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_recognized_by_what_it_computes(name: str) -> None:
    formula, known_as = ACTIVATIONS[name]
    module, x = OtherActivation(formula), 3 * randn(2, 5, 16, dtype=torch.float32)
    wanted = formula(None, leaf := x.clone().requires_grad_())
    wanted.sum().backward()
    report = normscope.fuse(module)
    assert [(entry.what, entry.new) for entry in report.fused] == [("activation", known_as)] * bool(known_as)
    assert report.skipped == ()
    if known_as is None:
        return
    assert str(report).startswith("fused 1 activation\n")
    vars(module)["formula"] = None  # if the old forward were called, this would fail
    y = module(other := x.clone().requires_grad_())
    y.sum().backward()
    assert torch.allclose(y, wanted, atol=1e-6)
    assert leaf.grad is not None
    assert other.grad is not None
    assert torch.allclose(other.grad, leaf.grad, atol=1e-5)


def test_activations_of_gpt2_are_fused_and_copied() -> None:
    model = made("gpt2")
    report = normscope.fuse(model)
    assert str(report).startswith("fused 5 of 5 norms and 2 activations")
    twin = copy.deepcopy(model)
    assert type(twin.transformer.h[0].mlp.act).__name__ == "FusedNewGELUActivation"
    assert torch.equal(logits(twin, TOKENS), logits(model, TOKENS))
    report.undo()
    assert type(model.transformer.h[0].mlp.act).__name__ == "NewGELUActivation"


def test_other_modules_are_not_reported() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    model = nn.Sequential(Gate(), nn.PReLU(8), nn.Dropout(), nn.GELU(), nn.Linear(8, 8), nn.Identity())
    report = normscope.fuse(model)
    assert (report.fused, report.skipped) == ((), ())


def test_unverified_inputs_use_the_original_forward() -> None:
    norm = OtherNorm(foreign.rms, "weight")
    scramble(norm)
    normscope.fuse(norm)
    seen: list[tuple[int, ...]] = []

    def watched(module: Any, x: Tensor) -> Any:
        seen.append(tuple(x.shape))
        return foreign.rms(module, x)

    vars(norm)["formula"] = watched
    x = randn(2, 3, 16, dtype=torch.float32)
    norm(x)
    assert seen == []
    norm(x[0, 0])  # another rank
    norm(x.double())  # another type
    norm(x.transpose(0, 1))  # another layout
    norm(x=x)  # another way to call
    with reference_kernels():
        norm(x)
    assert seen == [(16,), (2, 3, 16), (3, 2, 16), (2, 3, 16), (2, 3, 16)]
