"""How much of the gradient reaches the first block, with and without residuals and norms."""

from collections.abc import Mapping

import torch

from normscope.blocks.block import Block, BlockConfig, final_norm
from normscope.lab import toolkit as lab

MLP_GAIN = 0.4 * 0.5 * 1.6
"""The factor of an MLP of four times the width on a variance, forward or backward: Glorot's 2 d/(d + 4d) up, a half by
the ReLU, Glorot's 2 4d/(d + 4d) down. Attention to a single token is two square maps, with a factor of one."""
BOTH = "norm, two residuals"
STACKS: Mapping[str, tuple[str, str, float]] = {
    "no residual": ("none", "none", MLP_GAIN),
    "one residual": ("single", "none", 1 + MLP_GAIN),
    "two residuals": ("pre", "none", (1 + 1) * (1 + MLP_GAIN)),
    # With a norm before each branch, a branch's share of the gradient is its share of the residual stream: the stream's
    # variance v grows to v + gain, the gradient's by 1 + gain/v, and the last norm divides by the growth of the stream.
    "norm, no residual": ("none", "rms", 1.0),
    BOTH: ("pre", "rms", 1.0),
}
"""Stacks of blocks: wiring, norm, and the theoretical factor per block on the variance of the gradient."""
TWICE = 2.0
"""Allowed factor between a norm and its theory, at any depth. Theory is for wide blocks; these are off by some percent
per block, which accumulates; where it explains the effect of residuals, the norms differ by thousands."""
VANISHED = 1e-3
SEQUENCE = 32
"""Tokens that attend to each other, for which the theory of single tokens does not hold."""


def variants(budget: lab.Budget) -> lab.Variants:
    width, depths = budget.pick(quick=(128, [1, 4, 14]), full=(256, [1, 2, 4, 8, 16, 32]))
    common = {"width": width, "heads": 4, "vectors": 64, "depths": depths}
    return {name: {**common, "wiring": wiring, "norm": norm} for name, (wiring, norm, _) in STACKS.items()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Send random vectors through stacks of blocks and a random gradient back; return the share that arrives."""
    torch.manual_seed(seed)
    chosen = {name: settings[name] for name in ("width", "heads", "norm", "wiring")}
    config = BlockConfig(**chosen, activation="relu", init="glorot-corrected")
    last = final_norm(config)
    blocks = [Block(config).requires_grad_(False) for _ in range(max(settings["depths"]))]

    def arriving(tokens: int) -> list[tuple[int, float]]:
        x = start = torch.randn(settings["vectors"] // tokens, tokens, settings["width"], requires_grad=True)
        shares = []
        for depth, block in enumerate(blocks, start=1):
            x = block(x)
            if depth in settings["depths"]:  # the last norm and back, from this depth
                y = last(x)
                gradient = torch.randn_like(y)
                (found,) = torch.autograd.grad(y, start, gradient, retain_graph=True)
                shares.append((depth, (found.norm() / gradient.norm()).item()))
        return shares

    return {"arrives": arriving(1), "in_company": arriving(SEQUENCE) if settings["norm"] != "none" else []}


def questions(budget: lab.Budget) -> list[lab.Question]:
    def theory(name: str) -> lab.Question:
        factor = STACKS[name][2] ** 0.5
        text = f"{name}: at every depth the gradient norm is {factor:.3g}^depth, within a factor of {TWICE:g}"
        return lab.largest(text, lambda run: _worst_factor(run["arrives"], factor), TWICE, [name], unit="times")

    vanishes = "no residual, no norm: less than a thousandth arrives from the deepest stack"
    constant = f"{BOTH}, {SEQUENCE} tokens: at every depth it is that of one block, within a factor of 2"
    return [
        *(theory(name) for name in STACKS),
        lab.largest(vanishes, lambda run: run["arrives"][-1][1], VANISHED, ["no residual"]),
        lab.largest(constant, lambda run: _worst_factor(run["in_company"]), TWICE, [BOTH], unit="times"),
    ]


def _worst_factor(found: list[tuple[int, float]], a_block: float | None = None) -> float:
    """The largest factor between a norm and its theory, or the norm of the smallest depth if there is none."""
    theory = [(norm, found[0][1] if a_block is None else a_block**depth) for depth, norm in found]
    return max(max(norm / expected, expected / norm) for norm, expected in theory)


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def theory(label: str, factor: float, color: str) -> lab.ChartLine:
        points = [(depth, factor ** (depth / 2)) for depth, _ in runs.curve("no residual", "arrives")]
        return lab.ChartLine(label, points, color, dashed=True)

    single: list[lab.ChartLine] = []
    for (name, (_, _, factor)), color in zip(STACKS.items(), lab.COLORS, strict=False):
        if name != "norm, no residual":
            single.append(lab.seed_band(name, runs, name, "arrives", color, connected=False))
            single.append(theory(f"{name}, theory", factor, color))
    dots = {  # side by side
        "no residual, single token": ("norm, no residual", "arrives", "d", -9.0),
        f"no residual, {SEQUENCE} tokens": ("norm, no residual", "in_company", "a", -3.0),
        "two residuals, single token": (BOTH, "arrives", "e", 3.0),
        f"two residuals, {SEQUENCE} tokens": (BOTH, "in_company", "b", 9.0),
    }
    sequence = [
        lab.seed_band(label, runs, name, metric, color, connected=False, offset=offset)
        for label, (name, metric, color, offset) in dots.items()
    ]
    sequence.append(theory("theory, single token", 1.0, "h"))
    return [
        lab.Chart("Gradient norm at the first block", "blocks", "first / last", single, log_y=True),
        lab.Chart("The same with norms", "blocks", "first / last", sequence, y_from_zero=True),
    ]


EXPERIMENT = lab.Experiment(variants, measure, questions, charts)
