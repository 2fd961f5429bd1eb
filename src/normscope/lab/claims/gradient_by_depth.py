"""How much of the gradient arrives at the first block, with and without residuals and norms."""

from collections.abc import Mapping

import torch

from normscope.blocks.block import Block, BlockConfig, final_norm
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import OF_SEEDS
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart, ChartLine

MLP_GAIN = 0.4 * 0.5 * 1.6
"""What an MLP of four times the width does to a variance, forward or backward: Glorot's 2 d/(d + 4d) up, a half by the
ReLU, Glorot's 2 4d/(d + 4d) down. Attention to a lone token is two square maps, with a gain of one."""
STACKS: Mapping[str, tuple[str, str, float]] = {
    "no residual": ("none", "none", MLP_GAIN),
    "one residual": ("single", "none", 1 + MLP_GAIN),
    "two residuals": ("pre", "none", (1 + 1) * (1 + MLP_GAIN)),
    # With a norm before each branch, a branch's share of the gradient is its share of the stream: the stream's variance
    # v grows to v + gain, the gradient's by 1 + gain/v, and the last norm divides by all that the stream has grown.
    "norm, no residual": ("none", "rms", 1.0),
    "norm, two residuals": ("pre", "rms", 1.0),
}
"""Stacks of blocks: wiring, norm, and what theory says that a block multiplies the gradient's variance by."""
TWICE = 2.0
"""How far a length may be off, either way, at any depth. Theory is of wide blocks; these are off by some hundredths a
block, by their width and by chance, which adds up; where it explains what residuals do, lengths differ by thousands."""
VANISHED = 1e-3
COMPANY = 32
"""Tokens that attend to each other, for which the theory of the lone one does not speak."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    width, depths = budget.pick(quick=(128, [1, 4, 14]), full=(256, [1, 2, 4, 8, 16, 32]))
    common = {"width": width, "heads": 4, "vectors": 64, "depths": depths}
    return {name: {**common, "wiring": wiring, "norm": norm} for name, (wiring, norm, _) in STACKS.items()}


def measure(settings: Settings, seed: int) -> Metrics:
    """Random vectors through stacks of blocks, a random gradient back: its length at the start, as a share."""
    torch.manual_seed(seed)
    config = BlockConfig(
        width=settings["width"],
        heads=settings["heads"],
        activation="relu",
        norm=settings["norm"],
        wiring=settings["wiring"],
        init="glorot-corrected",
    )
    last = final_norm(config)
    blocks = [Block(config) for _ in range(max(settings["depths"]))]
    for weight in (weight for block in blocks for weight in block.parameters()):
        weight.requires_grad_(False)

    def arrives(tokens: int) -> list[tuple[int, float]]:
        x = start = torch.randn(settings["vectors"] // tokens, tokens, settings["width"], requires_grad=True)
        lengths = []
        for depth, block in enumerate(blocks, start=1):
            x = block(x)
            if depth in settings["depths"]:  # this deep, and no deeper: the last norm and back
                y = last(x)
                gradient = torch.randn_like(y)
                (found,) = torch.autograd.grad(y, start, gradient, retain_graph=True)
                lengths.append((depth, (found.norm() / gradient.norm()).item()))
        return lengths

    return {"arrives": arrives(1), "in_company": arrives(COMPANY) if settings["norm"] != "none" else []}


def questions(budget: Budget) -> list[Question]:
    def as_theory(name: str) -> Question:
        factor = STACKS[name][2] ** 0.5

        def off(runs: BySeed) -> float:
            return max(_apart(got, factor**depth) for depth, got in runs[name]["arrives"])

        text = f"{name}: at every depth the gradient's length is {factor:.3g}^depth, within a factor of {TWICE:g}"
        return Question(text, off, TWICE, "below", "times", every_seed=True)

    def deepest(runs: BySeed) -> float:
        return float(runs["no residual"]["arrives"][-1][1])

    def alike(runs: BySeed) -> float:
        lengths = [float(length) for _, length in runs["norm, two residuals"]["in_company"]]
        return max(_apart(length, lengths[0]) for length in lengths)

    return [
        *(as_theory(name) for name in STACKS),
        Question(
            "no residual, no norm: of the deepest stack less than a thousandth arrives",
            deepest,
            VANISHED,
            "below",
            every_seed=True,
        ),
        Question(
            f"norm, two residuals, {COMPANY} tokens: at every depth it is as in a single block, within a factor of 2",
            alike,
            TWICE,
            "below",
            "times",
            every_seed=True,
        ),
    ]


def _apart(one: float, other: float) -> float:
    """How many times as large the larger one is."""
    return max(one / other, other / one)


def charts(runs: VariantRuns) -> list[Chart]:
    def theory(factor: float) -> list[tuple[float, float]]:
        return [(depth, factor ** (depth / 2)) for depth, _ in runs.curve("no residual", "arrives")]

    def dots(name: str, metric: str, label: str, colour: str, beside: float = 0.0) -> ChartLine:
        points, reach = runs.curve(name, metric), runs.band(name, metric)
        return ChartLine(label, points, colour, connected=False, interval=reach, interval_label=OF_SEEDS, offset=beside)

    alone: list[ChartLine] = []
    company: list[ChartLine] = []
    for (name, (_, norm, factor)), colour in zip(STACKS.items(), COLORS, strict=False):
        if norm == "none" or name == "norm, two residuals":
            alone.append(dots(name, "arrives", name, colour))
            alone.append(ChartLine(f"{name}, theory", theory(factor), colour, dashed=True))
        if norm != "none":
            label = name.removeprefix("norm, ")
            place = len(company)  # side by side
            company.append(dots(name, "arrives", f"{label}, lone", colour, 6.0 * place - 9))
            company.append(dots(name, "in_company", f"{label}, {COMPANY} tokens", "ab"[place // 2], 6.0 * place - 3))
    company.append(ChartLine("theory, lone", theory(1.0), "h", dashed=True))
    return [
        Chart("Length of the gradient at the first block", "blocks", "first / last", alone, log_y=True),
        Chart("The same with norms", "blocks", "first / last", company, y_from_zero=True),
    ]


CLAIM = Claim(
    number=24,
    name="gradient-by-depth",
    kind="exact",
    statement=(
        "Without residuals and norms the gradient that reaches the first block vanishes exponentially with depth. "
        "Residuals alone make it grow exponentially. Norms keep it alike at every depth, with residuals and, for lone "
        "tokens, without."
    ),
    source=(
        "Notes on residuals, which say that with two of them a block the gradient stays strong through hundreds of "
        "layers; He et al. 2016, “Identity Mappings in Deep Residual Networks”; Xiong et al. 2020, “On Layer "
        "Normalization in the Transformer Architecture”."
    ),
    design=(
        "normscope's blocks with ReLU and Glorot's weights, one to fourteen deep (32 with the full budget): random "
        "vectors in, a random gradient back from behind the last norm, and how long it is at the first block's input. "
        "Lone tokens first, of which theory knows the factor a block; then 32 that attend to each other, where it does "
        "not."
    ),
    rule=(
        f"Supported if, for every seed and at every depth, the length is within a factor of {TWICE:g} of theory's in "
        f"every stack of lone tokens, and of a single block's in pre-norm blocks with {COMPANY} tokens; and if less "
        "than a thousandth is left by the deepest stack without residuals and norms."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "Residuals keep the gradient from vanishing, but alone they make it explode, more slowly with one a block "
            "than with two. It takes a norm too, and pre-norm has both. With norms, the length of the gradient is no "
            "reason for residuals as far as a lone token goes: whatever its deep stack suffers from without them, it "
            "is not that. For tokens that attend to each other this was not asked; see the second chart."
        ),
        "contradicted": "Blocks do not treat gradients as the theory of random weights says; see which part fails.",
        "inconclusive": "The blocks are too small to tell.",
    },
    remark=(
        "The notes write the gradient through a block as 1 + f′, and conclude that it cannot vanish. By the same "
        f"formula it can explode; what prevents that is the norm. What {COMPANY} tokens get with norms and without "
        "residuals is in the second chart and in no question, since neither the notes nor theory say what it should be."
    ),
    revised="10% a block allows a factor of 3.8",
)
