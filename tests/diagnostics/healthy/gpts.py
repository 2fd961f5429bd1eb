"""normscope GPTs: presets, wirings and norms, at initialization and after some training."""

from typing import Any

import torch

from normscope.models.gpt import GPT
from normscope.models.presets import preset
from tests.diagnostics.cases import Setup, healthy, run_steps, two_training_steps
from tests.diagnostics.tasks import CONTEXT, VOCAB_SIZE, predict_next


def gpt(name: str, seed: int, **overrides: Any) -> GPT:
    sizes = {"vocab_size": VOCAB_SIZE, "context": CONTEXT, "width": (32, 48)[seed % 2], "depth": 3, "heads": 4}
    return GPT(preset(name, **{**sizes, **overrides}))


_BY_DEFAULT = (
    "nanochat_at_init", "nanochat-2026-07_at_init", "llama_post_wiring_trained", "gpt2_sandwich_wiring",
    "gpt2_parallel_wiring", "gpt2_single_wiring", "llama_with_groupnorm", "gpt2_with_powernorm", "gpt2_without_biases",
    "shallow_llama_without_residuals",
)  # fmt: skip
"""What the default suite includes: each wiring, norm and preset once, one of them after some training."""


def _register(name: str, preset_name: str, after: int, **overrides: Any) -> None:
    def make(seed: int) -> Setup:
        model = gpt(preset_name, seed, **overrides)
        return two_training_steps(model, predict_next(model), after=after, lr=3e-3 if after else 1e-3)

    make.__name__ = name
    healthy((0, 1), quick=name in _BY_DEFAULT)(make)


for _preset in ("gpt2", "nanochat", "nanochat-2026-07", "llama"):
    _register(f"{_preset}_at_init", _preset, 0)
    _register(f"{_preset}_trained", _preset, 50)
for _wiring in ("post", "sandwich", "parallel", "single"):
    _register(f"gpt2_{_wiring}_wiring", "gpt2", 0, wiring=_wiring)
    _register(f"llama_{_wiring}_wiring_trained", "llama", 25, wiring=_wiring)
_register("nanochat_sandwich_wiring", "nanochat", 0, wiring="sandwich")
_register("nanochat_parallel_wiring_trained", "nanochat", 25, wiring="parallel")
_register("llama_with_groupnorm", "llama", 0, norm="group")
for _preset in ("gpt2", "nanochat"):
    _register(f"{_preset}_with_powernorm", _preset, 0, norm="power")
    _register(f"{_preset}_with_powernorm_trained", _preset, 50, norm="power")
_register("gpt2_without_biases", "gpt2", 0, bias=False)
_register("nanochat_with_sliding_window", "nanochat", 20, window=4)
_register("shallow_llama_without_residuals", "llama", 0, wiring="none", depth=1)


@healthy((0, 1))
def nanochat_first_optimizer_step(seed: int) -> Setup:
    """The head and output projections are zero, so nearly all gradients are."""
    model = gpt("nanochat", seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, lambda: run_steps([predict_next(model)(0)], optimizer)


@healthy((0, 1))
def nanochat_first_backward(seed: int) -> Setup:
    model = gpt("nanochat", seed)
    return model, lambda: predict_next(model)(0)().backward()


@healthy((0, 1), quick=False)
def deep_llama(seed: int) -> Setup:
    model = gpt("llama", seed, width=32, depth=12)
    return two_training_steps(model, predict_next(model), lr=1e-3)
