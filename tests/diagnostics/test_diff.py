"""The difference of two x-rays: a planted one is named where it begins, and rounding is none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.fingerprints import Fingerprint
from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.diff.differences import RecordDiff
from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.diff import render_diff
from normscope.errors import ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from normscope.ops.kernel_mode import reference_kernels
from tests.pairs import chiefly
from tests.support import randn, random_tokens, safe_bfloat16, scramble

SIZES: dict[str, Any] = {"vocab_size": 31, "context": 24, "depth": 3, "width": 16, "heads": 2}
TOKENS = random_tokens(31, 3, 25)
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def new_gpt(name: str = "gpt2", **settings: Any) -> GPT:
    model = GPT(preset(name, **SIZES, **settings)).eval()
    scramble(model)
    return model


def whole(model: GPT, label: str = "") -> XrayRecord:
    """Forward and backward, on all the tokens at once."""
    model.zero_grad()
    with Xray(model, label=label) as x:
        model.loss(INPUTS, TARGETS).backward()
    return x.record


def in_pieces(model: GPT) -> XrayRecord:
    """The prompt, then token by token with a cache."""
    with Xray(model) as x, torch.no_grad():
        cache = model.new_cache(len(INPUTS))
        for part in INPUTS.split([19, *[1] * 5], dim=1):
            model(part, cache=cache, capped=False)
    return x.record


def names(found: RecordDiff) -> tuple[str | None, str | None]:
    forward, backward = found.forward, found.backward
    return None if forward is None else forward.module, None if backward is None else backward.module


class Reversed(nn.Module):
    """The same numbers in another order: no rms, mean or extreme tells."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


class Crooked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.1


class Straight(nn.Module):
    def __init__(self, crooked: bool = False) -> None:
        super().__init__()
        self.crooked = crooked

    def forward(self, x: Tensor) -> Tensor:
        return Crooked.apply(x) if self.crooked else x.clone()  # type: ignore[no-untyped-call]


def test_the_same_is_the_same() -> None:
    model = new_gpt()
    found = compare(whole(model), whole(model))
    assert not found.diverges
    assert all(not module.output and not module.gradient for module in found.modules)


@pytest.mark.parametrize(
    "name", chiefly(["embedding", "blocks.2.norms.1"], ["blocks.0.attention.v", "blocks.1.mlp.up"])
)
def test_a_weight_that_changed_is_named_first(name: str) -> None:
    model = new_gpt()
    before = whole(model)
    weight = model.get_parameter(f"{name}.weight").data
    if weight.dim() == 2:
        weight[INPUTS[0, 3] if name == "embedding" else 2] *= 1.01
    else:
        weight[2] *= 1.2
    found = compare(before, whole(model))
    assert found.forward is not None
    assert (found.forward.module, found.forward.why) == (name, "its weights differ")


@pytest.mark.parametrize("place", range(3))
def test_a_module_that_computes_something_else_is_named_though_no_figure_tells(place: int) -> None:
    x = randn(4, 6, 8, dtype=torch.float32)

    records = []
    for odd in (None, place):
        torch.manual_seed(0)
        chain = nn.Sequential()
        for i in range(3):
            chain.append(nn.Sequential(nn.Linear(8, 8), Reversed() if i == odd else Straight()))
        with Xray(chain) as look:
            chain(x)
        records.append(look.record)
    found = compare(*records)
    assert found.forward is not None
    assert found.forward.module == f"{place}.1"
    assert found.forward.why == "Straight vs Reversed; same input and same weights"
    before = [module for module in found.modules if module.name and module.name < str(place)]
    assert all(module.output == 0 for module in before)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gradient_that_is_made_wrong_is_named(place: int) -> None:
    x = randn(4, 6, 8, dtype=torch.float32)
    records = []
    for odd in (None, place):
        torch.manual_seed(0)
        chain = nn.Sequential(nn.Linear(8, 8))
        for i in range(3):
            chain.append(Straight(crooked=i == odd))
            chain.append(nn.Linear(8, 8))
        with Xray(chain) as look:
            chain(x).square().mean().backward()
        records.append(look.record)
    assert names(compare(*records)) == (None, str(2 * place + 1))


def test_a_gradient_of_weights_alone() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, Crooked.apply(self.weight), self.bias)  # type: ignore[no-untyped-call]

    x, records = randn(4, 8, dtype=torch.float32), []
    for kind in (nn.Linear, Scaled):
        torch.manual_seed(0)
        chain = nn.Sequential(nn.Linear(8, 8), kind(8, 8), nn.Tanh())
        with Xray(chain) as look:
            chain(x).square().mean().backward()
        records.append(look.record)
    found = compare(*records)
    assert names(found) == (None, "1")
    assert found.backward is not None
    assert "the gradient of its weights differs" in found.backward.why


def test_what_is_made_between_the_modules_is_said_to_be() -> None:
    class Odd(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.factor = nn.Linear(8, 8), nn.Linear(8, 8), factor

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x) * self.factor)
            return y

    records = []
    for factor in (1.0, 1.1):
        model = nn.Sequential(Odd(factor))
        with Xray(model) as look:
            model(randn(4, 8, dtype=torch.float32))
        records.append(look.record)
    found = compare(*records)
    assert found.forward is not None
    assert found.forward.module == "0.second"
    assert found.forward.why == "the input of this module differs; it is computed earlier in 0"


@pytest.mark.parametrize("name", chiefly(["nanochat"], [name for name in PRESETS if name != "nanochat"]))
def test_fused_kernels_and_readable_steps_do_not_diverge(name: str) -> None:
    model = new_gpt(name)
    fused = whole(model)
    with reference_kernels():
        steps = whole(model)
    found = compare(fused, steps)
    assert not found.diverges
    assert (found.dtype, found.tolerance) == ("float32", 2**-11.5)
    assert any(module.output for module in found.modules)  # they do round differently


@pytest.mark.parametrize("name", chiefly(["llama"], [name for name in PRESETS if name != "llama"]))
def test_with_a_cache_and_without_do_not_diverge(name: str) -> None:
    model = new_gpt(name)
    found = compare(whole(model), in_pieces(model))
    assert not found.diverges
    assert "batches: 1 vs 6" in found.remarks
    by_name = {module.name: module for module in found.modules}
    assert "1 vs 6 calls" in by_name["blocks.1.mlp"].remarks


def test_a_cache_that_is_one_place_off_is_caught() -> None:
    model = new_gpt("llama")
    before = whole(model)
    with Xray(model) as x, torch.no_grad():
        cache = model.new_cache(len(INPUTS))
        model(INPUTS[:, :19], cache=cache, capped=False)
        for layer in cache.layers:
            layer.keys[:, :, 5] = layer.keys[:, :, 6]
        for i in range(19, 24):
            model(INPUTS[:, i : i + 1], cache=cache, capped=False)
    found = compare(before, x.record)
    assert names(found)[0] == "blocks.0.attention.out"


@pytest.mark.parametrize("name", chiefly(["gpt2"], [name for name in PRESETS if name != "gpt2"]))
def test_float32_and_bfloat16_do_not_diverge_at_the_tolerance_of_bfloat16(name: str) -> None:
    model = new_gpt(name)
    exact = whole(model)
    with safe_bfloat16(), torch.autocast("cpu", torch.bfloat16):
        rounded = whole(model)
    found = compare(exact, rounded)
    assert (found.dtype, found.tolerance) == ("bfloat16", 2**-3.5)
    assert not found.diverges
    assert compare(exact, rounded, tolerance=1e-4).diverges


def test_gradients_that_only_rounding_keeps_from_zero_do_not_count() -> None:
    model = new_gpt()  # the gradient of the keys' bias is zero but for rounding
    fused = whole(model)
    with reference_kernels():
        steps = whole(model)
    sizes = {p.name: p.gradient.rms for p in fused["blocks.0.attention.k"].parameters if p.gradient is not None}
    assert sizes["bias"] < 1e-5 * sizes["weight"]
    assert not compare(fused, steps).diverges


def test_other_shapes_and_modules_of_one_alone() -> None:
    def chain(*layers: nn.Module) -> XrayRecord:
        model = nn.Sequential(*layers)
        with Xray(model) as look:
            model(torch.ones(2, 4))
        return look.record

    torch.manual_seed(0)
    first = nn.Linear(4, 4)
    found = compare(chain(first, nn.Linear(4, 3)), chain(first, nn.Linear(4, 5), nn.ReLU()))
    assert found.forward is not None
    assert found.forward.module == "1"
    assert "output shape (2, 3) vs (2, 5)" in found.forward.why
    assert [module.name for module in found.modules if module.only_in == 1] == ["2"]


def test_a_tolerance_must_be_one() -> None:
    record = whole(new_gpt())
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="tolerance="):
            compare(record, record, tolerance=wrong)


def test_prints_see_a_change_of_any_number_they_look_at() -> None:
    def prints(x: Tensor) -> tuple[float, ...]:
        found = Fingerprint()
        found.add(x)
        return found.finish()

    x = randn(3, 12, 8)
    before = prints(x)
    for row, place, feature in ((0, 0, 0), (2, 11, 7), (1, 5, 3)):
        changed = x.clone()
        changed[row, place, feature] += 1
        gaps = [abs(p - q) * x.numel() ** 0.5 for p, q in zip(before, prints(changed), strict=True)]
        assert gaps == pytest.approx([1.0] * 4)
    assert prints(x.to(memory_format=torch.contiguous_format)) == before
    assert prints(torch.zeros(0, 3)) == ()


@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (2, 300, 4), (9, 2, 70, 70), (2, 3, 4, 5, 6)])
def test_prints_of_any_shape_are_about_as_large_as_the_rms(shape: tuple[int, ...]) -> None:
    found = Fingerprint()
    found.add(randn(*shape))
    prints = found.finish()
    assert len(prints) == 4
    assert all(abs(value) < 5 for value in prints)


@pytest.mark.parametrize("change", [lambda model: None, lambda model: model.blocks[1].mlp.up.weight.data.mul_(1.5)])
def test_it_is_rendered_in_the_room_there_is(change: Callable[[GPT], object]) -> None:
    model = new_gpt()
    before = whole(model, "before")
    change(model)
    found = compare(before, whole(model, "after"))
    for width in (60, 80, 120):
        text = render_diff(found, width=width).plain
        assert all(len(line) <= width for line in text.splitlines())
        assert text.startswith("before vs after\n")
        assert "half the digits of float32" in text.replace("\n", " ")
        assert ("first differs in blocks.1.mlp.up" in text.replace("\n", " ")) == found.diverges
        assert ("No differences" in text) != found.diverges


def test_from_outside_only_the_whole_is_seen_and_compared() -> None:
    model = new_gpt()
    inside = whole(model)

    def outside() -> XrayRecord:
        model.zero_grad()
        with Xray(model, submodules=False) as x:
            model.loss(INPUTS, TARGETS).backward()
        return x.record

    record = outside()
    assert [module.name for module in record.ran] == [""]
    assert record["blocks.0.mlp.up"].parameters[0].gradient is not None
    assert record.notices
    found = compare(inside, record)
    assert not found.diverges
    assert "recorded only in first" in "; ".join(found.remarks)

    def bend(_: nn.Module, given: Any, __: Any) -> tuple[Tensor]:
        return (given[0] * 1.5,)

    model.blocks[1].register_full_backward_hook(bend)
    assert names(compare(inside, outside())) == (None, "blocks.0.mlp.down")
