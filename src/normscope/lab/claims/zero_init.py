"""Zero as a start: of the head, for the first loss; of a branch's last projection, for a block that does nothing."""

import math
from collections.abc import Mapping

import torch

from normscope.blocks.block import Block, BlockConfig
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings
from normscope.lab.report.charts import OF_SEEDS
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.models.gpt import GPT, GPTConfig
from normscope.render.chart import Chart, ChartLine

STARTS = {"zero": "nanochat", "Glorot": "glorot-truncated", "GPT-2's": "gpt2"}
WIRINGS = ("pre", "sandwich", "parallel", "single")
"""Those that add to a stream which nothing else touches; post-norm normalizes the stream itself."""
SIZES = (16, 65, 256, 1024, 4096)
STEPS = 4
ROUNDING = 1e-5
"""Of a loss near eight in float32, summed over thousands of entries."""
CLEARLY_OFF = 0.1
"""Nats, or the share of the stream: what would be seen in the first line of a log."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    return {name: {"init": init, "width": 64, "heads": 4, "depth": 2} for name, init in STARTS.items()}


def measure(settings: Settings, seed: int) -> Metrics:
    """First losses by the size of the vocabulary, what blocks do at first, and who learns in the first steps."""
    torch.manual_seed(seed)
    losses = []
    for size in SIZES:
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


def _model(settings: Settings, vocabulary: int) -> GPT:
    return GPT(GPTConfig(vocab_size=vocabulary, context=32, **settings))


def _learning(model: GPT) -> list[tuple[int, float]]:
    """At each of the first steps, the share of the weight matrices that are given a gradient at all."""
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


def questions(budget: Budget) -> list[Question]:
    def excess(runs: BySeed) -> float:
        return max(float(abs(loss - math.log(size))) for size, loss in runs["zero"]["losses"])

    def excess_otherwise(runs: BySeed) -> float:
        return float(dict(map(tuple, runs["Glorot"]["losses"]))[65] - math.log(65))

    def change(runs: BySeed) -> float:
        return float(max(runs["zero"]["changes"]))

    def change_otherwise(runs: BySeed) -> float:
        return float(min(runs["Glorot"]["changes"]))

    def third(runs: BySeed) -> float:
        return float(dict(map(tuple, runs["zero"]["learning"]))[3])

    wirings = ", ".join(WIRINGS)
    return [
        Question(
            "a zero head: the first loss is ln V, from 16 to 4,096 tokens", excess, ROUNDING, "below", "nats", True
        ),
        Question("Glorot's head: it is not (65 tokens)", excess_otherwise, CLEARLY_OFF, "above", "nats", True),
        Question(
            f"last projections zero: a block changes nothing ({wirings})", change, ROUNDING, "below", every_seed=True
        ),
        Question("Glorot's projections: it does", change_otherwise, CLEARLY_OFF, "above", every_seed=True),
        Question("zero is left behind: in the third step every matrix learns", third, 0.999, "above", every_seed=True),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    theory = ChartLine("ln V", [(size, math.log(size)) for size in SIZES], "d", dashed=True)
    losses = [
        ChartLine(
            name,
            runs.curve(name, "losses"),
            colour,
            connected=False,
            interval=runs.band(name, "losses"),
            interval_label=OF_SEEDS,
        )
        for name, colour in zip(STARTS, "abc", strict=True)
    ]
    learning = [
        ChartLine(name, runs.curve(name, "learning"), c, dots=True) for name, c in zip(STARTS, "abc", strict=True)
    ]
    return [
        Chart("The first loss", "tokens in the vocabulary, V", "nats", [theory, *losses], log_x=True),
        Chart("Matrices that are given a gradient", "step", "share", learning, y_from_zero=True),
    ]


CLAIM = Claim(
    number=28,
    name="zero-init",
    kind="exact",
    statement=(
        "A model whose head starts at zero starts at a loss of ln V; blocks whose last projections start at zero start "
        "as the identity; and nothing is stuck there."
    ),
    source=(
        "Notes on residuals, which show nanochat's zero head without saying what it is for; Zhang, Dauphin and Ma "
        "2019, “Fixup Initialization”; Bachlechner et al. 2020, “ReZero is All You Need”."
    ),
    design=(
        "GPTs of two blocks with vocabularies of 16 to 4,096 tokens, and single blocks of every wiring that adds to "
        "the stream, started as nanochat does (head and last projections at zero), as Glorot and as GPT-2."
    ),
    rule="Supported if it holds for every seed, to rounding, for zero, and not for Glorot's start.",
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    meaning={
        "supported": (
            "A zero head makes the first loss a test: a model that does not start at ln V has a fault in its data or "
            "its loss. The price is two slow steps: in the first only the head is given a gradient, in the second all "
            "that is not behind a zero projection, and from the third on everything. Two zeros in a row would never "
            "learn, which is why normscope's blocks without residuals do not start so."
        ),
        "contradicted": "normscope's zero start is not what its name says; do not check the first loss against ln V.",
        "inconclusive": "An identity cannot be inconclusive; the runs are damaged.",
    },
)
