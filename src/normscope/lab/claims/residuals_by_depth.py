"""Two residuals a block beat one, and one beats none, the more so the deeper the model."""

from collections.abc import Mapping

from normscope.display.chart import Chart
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import by_number, curves
from normscope.lab.runs import Runs
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.verdict import BySeed, Question

WIRINGS = {"two": "pre", "one": "single", "none": "none"}
DEPTHS = (4, 12, 24)
SHALLOWEST, DEEPEST = DEPTHS[0], DEPTHS[-1]
MARGIN = 0.03
"""Nats a byte: less is not a win that anyone would change a wiring for."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32}  # so that 24 blocks are affordable
    return {
        f"{residuals}, {depth} blocks": {
            **SMALL,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=100, full=1200),
        }
        for depth in DEPTHS
        for residuals, wiring in WIRINGS.items()
    }


def questions(budget: Budget) -> list[Question]:
    def gap(runs: BySeed, fewer: str, more: str, depth: int) -> float:
        return float(runs[f"{fewer}, {depth} blocks"]["loss"] - runs[f"{more}, {depth} blocks"]["loss"])

    def beats(more: str, fewer: str) -> list[Question]:
        def deepest(runs: BySeed) -> float:
            return gap(runs, fewer, more, DEEPEST)

        def growth(runs: BySeed) -> float:
            return gap(runs, fewer, more, DEEPEST) - gap(runs, fewer, more, SHALLOWEST)

        wins = f"at {DEEPEST} blocks the loss with {fewer} is more than {MARGIN} nats above that with {more}"
        grows = f"that gap is wider at {DEEPEST} blocks than at {SHALLOWEST}"
        return [
            Question(wins, deepest, MARGIN, unit="nats"),
            Question(f"from {more} to {fewer}: {grows}", growth, unit="nats"),
        ]

    return beats("two", "one") + beats("one", "none")


def charts(runs: Runs) -> list[Chart]:
    lines = {residuals: {float(depth): f"{residuals}, {depth} blocks" for depth in DEPTHS} for residuals in WIRINGS}
    deepest = {residuals: f"{residuals}, {DEEPEST} blocks" for residuals in WIRINGS}
    return [
        by_number("Loss on held-out text, by residuals a block", "blocks", "nats a byte", runs, "loss", lines),
        curves(f"While training, {DEEPEST} blocks", "step", "nats a byte", runs, "curve", deepest, log_x=True),
    ]


CLAIM = Claim(
    number=23,
    name="residuals-by-depth",
    kind="trained",
    statement=(
        "Two residuals a block, one round attention and one round the MLP, beat one round both, and one beats none; "
        "the more so the deeper the model."
    ),
    source="Notes on residuals, which name a “Sanders et al. 2022”.",
    design=(
        "GPTs of 4, 12 and 24 narrow pre-norm blocks on the text: x + A(N x) then x + M(N x); x + M(A(N x)); and "
        "M(A(N x)). The weights start alike and are as many, but for the gains of a norm; all else is Llama's."
    ),
    rule=(
        f"Supported if at {DEEPEST} blocks the interval of each step down, from two to one and from one to none, is "
        f"above {MARGIN} nats, and wider there than at {SHALLOWEST} blocks."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(rates=(1e-3, 3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=2)),
    meaning={
        "supported": "Give attention and the MLP a residual each, and do so all the more in a deep model.",
        "contradicted": (
            "Not all of it holds: the table says which step. A residual that brings nothing at these depths may still "
            "be needed in longer training."
        ),
        "inconclusive": (
            "Part of it cannot be told from chance; the table says which. A gap can only widen with depth if the worse "
            "of the two still learns something in the shallowest model: one that has learnt no more than how often "
            "each byte occurs has nowhere to fall."
        ),
    },
    remark=(
        "The notes cite “Sanders et al. 2022” for what happens with a single residual. No such study could be found, "
        "so the claim rests on what is measured here."
    ),
)
