"""Zero initialization: of the head, for the initial loss; of a branch's last projection, for an identity block."""

import math

import torch

from normscope.blocks.block import Block, BlockConfig
from normscope.lab import toolkit as lab
from normscope.models.gpt import GPT, GPTConfig

INITS = {"zero": "nanochat", "Glorot": "glorot-truncated", "GPT-2's": "gpt2"}
WIRINGS = ("pre", "sandwich", "parallel", "single")
"""Wirings that only add to the residual stream; post-norm normalizes the stream itself."""
VOCAB_SIZES = (16, 65, 256, 1024, 4096)
STEPS = 4
ROUNDING = 1e-5
"""Of a loss near eight in float32, summed over thousands of entries."""
CLEARLY_OFF = 0.1
"""Nats, or relative to the residual stream: visible in the first line of a training log."""


def variants(budget: lab.Budget) -> lab.Variants:
    return {name: {"init": init, "width": 64, "heads": 4, "depth": 2} for name, init in INITS.items()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Measure initial losses by vocabulary size, the effect of initial blocks, and which weights get gradients."""
    torch.manual_seed(seed)
    losses = []
    for size in VOCAB_SIZES:
        model = _model(settings, size)
        tokens = torch.randint(size, (2, 33))
        with torch.no_grad():
            losses.append((size, model.loss(tokens[:, :-1], tokens[:, 1:]).item()))
    changes = []
    for wiring in WIRINGS:
        config = BlockConfig(width=settings["width"], heads=settings["heads"], wiring=wiring, init=settings["init"])
        x = torch.randn(2, 32, settings["width"])
        with torch.no_grad():
            changes.append(((Block(config)(x) - x).norm() / x.norm()).item())
    return {"losses": losses, "changes": changes, "learning": _learning(_model(settings, 65))}


def _model(settings: lab.Settings, vocab_size: int) -> GPT:
    return GPT(GPTConfig(vocab_size=vocab_size, context=32, **settings))


def _learning(model: GPT) -> list[tuple[int, float]]:
    """The share of the weight matrices that get a nonzero gradient, at each of the first steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    shares = []
    for step in range(1, STEPS + 1):
        tokens = torch.randint(model.config.vocab_size, (2, 33))
        optimizer.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        given = [weight.grad is not None and bool(weight.grad.abs().max() > 0) for weight in matrices]
        shares.append((step, sum(given) / len(given)))
        optimizer.step()
    return shares


def questions(budget: lab.Budget) -> list[lab.Question]:
    def excesses(run: lab.Metrics) -> dict[int, float]:
        return {size: loss - math.log(size) for size, loss in run["losses"]}

    zero, other = ["zero"], ["Glorot"]
    identity = f"last projections zero: a block is the identity ({', '.join(WIRINGS)})"
    uniform, off = "zero head: the initial loss is ln V, from 16 to 4,096 tokens", "Glorot's head: it is not"
    trap = "zero is not a trap: in the third step every matrix gets a gradient"
    return [
        lab.largest(uniform, lambda run: max(map(abs, excesses(run).values())), ROUNDING, zero, unit="nats"),
        lab.smallest(f"{off} (65 tokens)", lambda run: excesses(run)[65], CLEARLY_OFF, other, unit="nats"),
        lab.largest(identity, lambda run: max(run["changes"]), ROUNDING, zero),
        lab.smallest("Glorot's projections: it is not", lambda run: min(run["changes"]), CLEARLY_OFF, other),
        lab.smallest(trap, lambda run: dict(run["learning"])[3], 0.999, zero),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    named = {name: name for name in INITS}
    theory = lab.ChartLine("ln V", [(size, math.log(size)) for size in VOCAB_SIZES], "d", dashed=True)
    losses = [theory, *lab.curves(runs, "losses", named, connected=False)]
    learning = lab.lines({name: runs.curve(name, "learning") for name in INITS})
    return [
        lab.Chart("Initial loss", "vocabulary size, V", "nats", losses, log_x=True),
        lab.Chart("Matrices that get a gradient", "step", "share", learning, y_from_zero=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
