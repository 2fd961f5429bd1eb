"""Two residuals a block beat one, and one beats none, the more so the deeper the model."""

from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import by_number, curves
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

WIRINGS = {"two": "pre", "one": "single", "none": "none"}


def depths(budget: Budget) -> tuple[int, ...]:
    """From one where even a model without residuals learns something, so that a gap has room to grow."""
    return budget.pick(quick=(1, 4, 24), full=(1, 4, 12, 24))


def name(residuals: str, depth: int) -> str:
    return f"{residuals}, {depth} {'block' if depth == 1 else 'blocks'}"


def variants(budget: Budget) -> Mapping[str, Settings]:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32}  # so that 24 blocks are affordable
    return {
        name(residuals, depth): {
            **SMALL_GPT,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=90, full=1200),
        }
        for depth in depths(budget)
        for residuals, wiring in WIRINGS.items()
    }


def questions(budget: Budget) -> list[Question]:
    shallowest, deepest = depths(budget)[0], depths(budget)[-1]

    def gap(runs: BySeed, fewer: str, more: str, depth: int) -> float:
        return float(runs[name(fewer, depth)]["loss"] - runs[name(more, depth)]["loss"])

    def beats(more: str, fewer: str) -> list[Question]:
        def at_the_deepest(runs: BySeed) -> float:
            return gap(runs, fewer, more, deepest)

        def growth(runs: BySeed) -> float:
            return gap(runs, fewer, more, deepest) - gap(runs, fewer, more, shallowest)

        wins = f"at {deepest} blocks the loss with {fewer} is more than {TEXT_MARGIN} nats above that with {more}"
        grows = f"that gap is wider at {deepest} blocks than at {shallowest}"
        return [
            Question(wins, at_the_deepest, TEXT_MARGIN, unit="nats"),
            Question(f"from {more} to {fewer}: {grows}", growth, unit="nats"),
        ]

    return beats("two", "one") + beats("one", "none")


def charts(runs: VariantRuns) -> list[Chart]:
    numbers = sorted({int(variant.split()[1]) for variant in runs.variants})
    lines = {residuals: {float(depth): name(residuals, depth) for depth in numbers} for residuals in WIRINGS}
    deepest = {residuals: name(residuals, numbers[-1]) for residuals in WIRINGS}
    title = "Loss on held-out text, by residuals a block"
    return [
        by_number(title, "blocks", "nats a byte", runs, "loss", lines, log_x=True),
        curves(f"While training, {numbers[-1]} blocks", "step", "nats a byte", runs, "curve", deepest, log_x=True),
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
        "GPTs of 1, 4 and 24 narrow pre-norm blocks on the text (with the full budget also of 12): x + A(N x) then "
        "x + M(N x); x + M(A(N x)); and M(A(N x)). The weights start alike and are as many, but for the "
        "gains of a norm; all else is Llama's."
    ),
    rule=(
        "Two gaps are looked at: by how much the loss with one is above that with two, and with none above that with "
        f"one. Supported if at 24 blocks the interval of each gap is above {TEXT_MARGIN} nats, and that of each gap's "
        "growth from the shallowest model to the deepest is above 0."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(
        lrs=budget.pick(quick=(2e-3, 6e-3, 2e-2, 6e-2), full=(6e-4, 2e-3, 6e-3, 2e-2, 6e-2)),
        seeds=budget.pick(quick=1, full=2),
    ),
    meaning={
        "supported": (
            "Give attention and the MLP a residual each, and do so all the more in a deep model. The growth is that "
            "from one block to 24 in a short training; the first chart says where most of it happens."
        ),
        "contradicted": (
            "Not all of it holds: the table says which gap is not there, or does not grow. A residual that brings "
            "nothing in so short a training may still be needed in a longer one."
        ),
        "inconclusive": "A part of it cannot be told from chance; the table says which.",
    },
    remark=(
        "The notes cite “Sanders et al. 2022” for what happens with a single residual. No such study could be found, "
        "so the claim rests on what is measured here. A gap can only grow where the worse of the two can get worse: "
        "in short training without residuals the deeper models learn no more than how often each byte occurs. So the "
        "growth is asked from a single block, where all three learn more than that, as was seen with seeds that are "
        "not among those judged; a version before this one began at four blocks."
    ),
    revised="without residuals nothing was learnt at the shallowest depth, so that no gap could grow",
)
