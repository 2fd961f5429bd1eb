"""normscope's own GPTs: presets, wirings and norms, at the start and after some training."""

from typing import Any

import torch

from normscope.models.gpt import GPT
from normscope.models.presets import preset
from tests.diagnostics.cases import Scene, running, steps, well
from tests.diagnostics.tasks import LENGTH, TOKENS, predict


def gpt(name: str, seed: int, **overrides: Any) -> GPT:
    sizes = {"vocab_size": TOKENS, "context": LENGTH, "width": (32, 48)[seed % 2], "depth": 3, "heads": 4}
    return GPT(preset(name, **{**sizes, **overrides}))


def _register(name: str, form: str, trained: int, **overrides: Any) -> None:
    def make(seed: int) -> Scene:
        model = gpt(form, seed, **overrides)
        return running(model, predict(model), trained=trained, lr=3e-3 if trained else 1e-3)

    make.__name__ = name
    well((0, 1))(make)


for _form in ("gpt2", "nanochat", "llama"):
    _register(f"{_form}_at_the_start", _form, 0)
    _register(f"{_form}_trained", _form, 50)
for _wiring in ("post", "sandwich", "parallel", "single"):
    _register(f"gpt2_wired_{_wiring}", "gpt2", 0, wiring=_wiring)
    _register(f"llama_wired_{_wiring}_trained", "llama", 25, wiring=_wiring)
_register("nanochat_wired_sandwich", "nanochat", 0, wiring="sandwich")
_register("nanochat_wired_parallel_trained", "nanochat", 25, wiring="parallel")
_register("llama_with_group_norm", "llama", 0, norm="group")
for _form in ("gpt2", "nanochat"):
    _register(f"{_form}_with_power_norm", _form, 0, norm="power")
    _register(f"{_form}_with_power_norm_trained", _form, 50, norm="power")
_register("gpt2_without_biases", "gpt2", 0, bias=False)
_register("nanochat_with_a_window", "nanochat", 20, window=4)
_register("llama_without_residuals_and_shallow", "llama", 0, wiring="none", depth=1)


@well((0, 1))
def nanochat_at_its_very_first_step(seed: int) -> Scene:
    """Head and projections are zero, so nearly all gradients are."""
    model = gpt("nanochat", seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, lambda: steps([predict(model)(0)], optimiser)


@well((0, 1))
def nanochat_before_any_step(seed: int) -> Scene:
    model = gpt("nanochat", seed)
    return model, lambda: predict(model)(0)().backward()


@well((0, 1))
def deep_llama(seed: int) -> Scene:
    model = gpt("llama", seed, width=32, depth=12)
    return running(model, predict(model), lr=1e-3)
