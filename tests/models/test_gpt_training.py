"""Every GPT learns: each preset, wiring, activation and norm; compiled and under autocast, too."""

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.blocks.residual import WIRINGS
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS
from tests.models.tiny import CONTEXT, FORMS, VOCABULARY, every_preset, made, tiny
from tests.pairs import chiefly, every_value
from tests.support import close_all, gradients, random_tokens, safe_bfloat16

ROUND = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6]).repeat(2)[: CONTEXT + 1].expand(4, -1)
TOKENS, TARGETS = ROUND[:, :-1], ROUND[:, 1:]


def losses(model: GPT, steps: int = 25, rate: float = 1e-2) -> list[float]:
    """A few steps on the same few tokens, over and over."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    found = []
    for _ in range(steps):
        loss = model.loss(TOKENS, TARGETS)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


# Other tests here have the other wirings and norms.
LEARNING = (*PRESETS, "nanochat-window", "gpt2-grouped", "no-positions", "no-norm")


@pytest.mark.parametrize("form", chiefly(LEARNING, [form for form in FORMS if form not in LEARNING]))
def test_every_preset_learns(form: str) -> None:
    name, overrides = FORMS[form]
    curve = losses(GPT(tiny(name, **overrides)))
    assert curve[-1] < 0.6 * curve[0]


@every_value(wiring=list(WIRINGS), name=list(PRESETS))
def test_every_wiring_learns(name: str, wiring: str) -> None:
    """With the preset's own start; and all of it learns, which two projections at zero in a row would not."""
    model = GPT(tiny(name, wiring=wiring))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    curve = losses(model)
    assert curve[-1] < 0.8 * curve[0]
    gradless = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert gradless == []
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_learns(activation: str) -> None:
    curve = losses(GPT(tiny("llama", activation=activation, depth=1)))
    assert curve[-1] < 0.6 * curve[0]


@every_value(norm=[*TEXT_NORMS, "none"], wiring=list(WIRINGS))
def test_every_norm_takes_a_step(norm: str, wiring: str) -> None:
    model = GPT(tiny("llama", norm=norm, wiring=wiring, allow_future_leak=True))
    tokens = random_tokens(VOCABULARY, 4, CONTEXT)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.loss(tokens, tokens.roll(-1, 1)).backward()
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert not torch.equal(parameter, before[name]), name
    assert model.loss(tokens, tokens).isfinite()
    assert model.eval().loss(tokens, tokens).isfinite()


def test_training_is_deterministic() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(11)
        runs.append(losses(GPT(tiny("nanochat", dropout=0.1)), steps=5))
    assert runs[0] == runs[1]


@every_preset
def test_autocast_is_close(name: str) -> None:
    model = made(name)
    exact = model.loss(TOKENS, TARGETS)
    with safe_bfloat16(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(TOKENS).dtype == torch.bfloat16
        loss = model.loss(TOKENS, TARGETS)
        loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@every_preset
def test_a_model_in_bfloat16_runs(name: str) -> None:
    model = made(name, torch.bfloat16)
    with safe_bfloat16():
        loss = model.loss(TOKENS, TARGETS)
        loss.backward()
    assert model(TOKENS[:, :0]).dtype == torch.float32  # on the CPU only the weights are in bfloat16
    assert loss.item() == pytest.approx(made(name).loss(TOKENS, TARGETS).item(), rel=0.05)


def step(model: GPT, run: Any) -> dict[str, Tensor]:
    model.zero_grad()
    loss = run(TOKENS, TARGETS)
    loss.backward()
    return {"loss": loss.detach(), **gradients(model)}


@pytest.mark.slow
@pytest.mark.parametrize("form", chiefly(["nanochat"], ["gpt2", "llama", "group-norm"]))
def test_it_compiles_without_graph_breaks(form: str) -> None:
    """No graph break anywhere: not in the checks, not in the norms."""
    torch.compiler.reset()
    model = made(form, depth=1)
    traced = torch.compile(model.loss, backend="aot_eager", fullgraph=True)
    close_all(step(model, traced), step(model, model.loss), 1e-5)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own compiler still uses it
def test_a_compiled_model_matches() -> None:
    torch.compiler.reset()
    model = made("nanochat")
    close_all(step(model, torch.compile(model.loss)), step(model, model.loss), 1e-4)
