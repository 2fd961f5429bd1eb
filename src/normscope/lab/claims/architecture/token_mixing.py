"""Which outputs change when a token is replaced: in an MLP, in attention, in a causal model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.attention import Attention
from normscope.blocks.mlp import MLP
from normscope.lab import toolkit as lab
from normscope.lab.trials.layers import rms
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset

TOKENS, WIDTH, HEADS, VOCAB = 12, 32, 4, 50
LEAKING = "a norm over time"
ROUNDING = 1e-6
"""Relative to the output's rms, in float32. An output that does not depend on a token stays identical."""
VISIBLE = 1e-4
"""What counts as changed: a hundred times as much."""
ALL = 0.99


def variants(budget: lab.Budget) -> lab.Variants:
    models = {name: {"preset": name} for name in PRESETS}
    leak = {"preset": "llama", "more": {"norm": "batch", "allow_future_leak": True}}
    return {"MLP": {"block": "mlp"}, "attention": {"block": "attention"}, **models, LEAKING: leak}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Replace one token after the other, and measure how far the output at every position moves."""
    torch.manual_seed(seed)
    run, x, other = _build(settings)
    with torch.no_grad():
        before = run(x)
        moved = torch.zeros(TOKENS, TOKENS)  # replaced token, output position
        for j in range(TOKENS):
            replaced = x.clone()
            replaced[:, j] = other[:, j]
            moved[j] = (run(replaced) - before).square().mean((0, 2)).sqrt() / rms(before)
    changed, others = moved > VISIBLE, ~torch.eye(TOKENS, dtype=torch.bool)
    from_there_on = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu()
    return {
        "others": moved[others].max().item(),
        "earlier": moved[~from_there_on].max().item(),
        "share_of_others": changed[others].double().mean().item(),
        "share_from_there_on": changed[from_there_on].double().mean().item(),
        "changed": changed.nonzero().tolist(),
    }


def _build(settings: lab.Settings) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """The module, its input, and the replacement tokens."""
    module: Any
    if "block" in settings:
        module = MLP(WIDTH) if settings["block"] == "mlp" else Attention(WIDTH, HEADS, causal=False)
        x, other = torch.randn(2, 1, TOKENS, WIDTH)
    else:
        small = {"vocab_size": VOCAB, "context": TOKENS, "width": WIDTH, "heads": HEADS, "depth": 2}
        module = GPT(preset(settings["preset"], **small, **settings.get("more", {})))
        x = torch.randint(VOCAB, (1, TOKENS))
        other = (x + torch.randint(1, VOCAB, x.shape)) % VOCAB  # never the same token
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() >= 2:  # some are initialized to zero, which would hide every dependency
                weight.normal_(std=weight.shape[1] ** -0.5)
    return module, x, other


def questions(budget: lab.Budget) -> list[lab.Question]:
    models, named = list(PRESETS), ", ".join(PRESETS)
    still, moving = "no logits change when a later token is replaced", "all logits from that token on change"
    share, leaks = "(share of pairs)", "with a norm over time, logits change when a later token is replaced"
    return [
        lab.largest("MLP: no token's output changes when another token is replaced", "others", ROUNDING, ["MLP"]),
        lab.smallest(f"attention: every token's output does {share}", "share_of_others", ALL, ["attention"]),
        lab.largest(f"{named}: {still}", "earlier", ROUNDING, models),
        lab.smallest(f"{named}: {moving} {share}", "share_from_there_on", ALL, models),
        lab.smallest(leaks, "earlier", VISIBLE, [LEAKING]),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def dots(label: str, variant: str, color: str) -> lab.ChartLine:
        """Of the first seed; the others look the same."""
        return lab.ChartLine(label, [(j, t) for j, t in runs.metrics[variant][0]["changed"]], color, connected=False)

    def chart(title: str, *lines: lab.ChartLine) -> lab.Chart:
        return lab.Chart(title, "replaced token", "outputs that change", lines, height=300)

    return [
        chart("Attention and MLP", dots("attention", "attention", "a"), dots("MLP", "MLP", "b")),
        chart("A GPT: the token itself and later ones", dots("Llama", "llama", "c")),
        chart("The same GPT with BatchNorm, in training: all", dots("Llama with BatchNorm", LEAKING, "d")),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
