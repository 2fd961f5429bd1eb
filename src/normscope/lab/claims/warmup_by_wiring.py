"""Pre-norm trains without a warm-up where post-norm needs one, and ends no worse."""

from collections.abc import Mapping

from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import categories, curves
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Question
from normscope.render.chart import Chart

WIRINGS = ("pre", "post")
WARMUPS = {"with": 0.2, "without": 0.0}
FEW_RATES = (2e-3, 3.5e-3, 6e-3, 1e-2, 1.7e-2)
"""Close to one another: a little above post-norm's best rate it learns next to nothing, which wide steps would miss."""
MORE_RATES = (3e-4, 6e-4, 1.1e-3, *FEW_RATES)
"""Deeper models want smaller ones."""


def depths(budget: Budget) -> tuple[int, ...]:
    return budget.pick(quick=(6,), full=(6, 12, 24))


def name(wiring: str, warmup: str, depth: int) -> str:
    return f"{wiring} {warmup} warm-up, {depth} blocks"


def variants(budget: Budget) -> Mapping[str, Settings]:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32, "norm": "layer", "activation": "relu"}
    return {
        name(wiring, warmup, depth): {
            **SMALL_GPT,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=320, full=900),
            "warmup": share,
            "grad_clip": None,  # a clip is a warm-up of its own: it holds the first steps back
        }
        for depth in depths(budget)
        for wiring in WIRINGS
        for warmup, share in WARMUPS.items()
    }


def tuning(budget: Budget) -> LRTuning:
    """Each wiring looks for its rate with the warm-up; without, it is trained at that very rate."""
    models = [(wiring, depth) for depth in depths(budget) for wiring in WIRINGS]
    return LRTuning(
        lrs=budget.pick(quick=FEW_RATES, full=MORE_RATES),
        seeds=2,
        shared={name(wiring, "without", depth): name(wiring, "with", depth) for wiring, depth in models},
    )


def questions(budget: Budget) -> list[Question]:
    def loss(runs: BySeed, wiring: str, warmup: str, depth: int) -> float:
        return float(runs[name(wiring, warmup, depth)]["loss"])

    def lost(wiring: str, depth: int) -> Question:
        def effect(runs: BySeed) -> float:
            return loss(runs, wiring, "without", depth) - loss(runs, wiring, "with", depth)

        much = "at most" if wiring == "pre" else "more than"
        text = f"{depth} blocks: without the warm-up {wiring}-norm loses {much} {TEXT_MARGIN} nats, at the same rate"
        return Question(text, effect, TEXT_MARGIN, "below" if wiring == "pre" else "above", unit="nats")

    def no_worse(depth: int) -> Question:
        def effect(runs: BySeed) -> float:
            return loss(runs, "pre", "with", depth) - loss(runs, "post", "with", depth)

        text = f"{depth} blocks: with a warm-up pre-norm's loss is at most {TEXT_MARGIN} nats above post-norm's"
        return Question(text, effect, TEXT_MARGIN, "below", unit="nats")

    return [asked for depth in depths(budget) for asked in (lost("pre", depth), lost("post", depth), no_worse(depth))]


def charts(runs: VariantRuns) -> list[Chart]:
    numbers = sorted({int(variant.split()[-2]) for variant in runs.variants})
    models = [(wiring, depth) for wiring in WIRINGS for depth in numbers]
    names = [f"{wiring}, {depth} blocks" for wiring, depth in models]
    lines = {f"{warmup} a warm-up": [name(wiring, warmup, depth) for wiring, depth in models] for warmup in WARMUPS}
    deepest = {f"{wiring}, {warmup}": name(wiring, warmup, numbers[-1]) for wiring in WIRINGS for warmup in WARMUPS}
    return [
        categories("Loss on held-out text", "model", "nats a byte", runs, "loss", lines, names),
        curves(f"While training, {numbers[-1]} blocks", "step", "nats a byte", runs, "curve", deepest, log_x=True),
    ]


CLAIM = Claim(
    number=25,
    name="warmup-by-wiring",
    kind="trained",
    statement="Pre-norm trains without a warm-up where post-norm needs one, and ends no worse.",
    source=(
        "Xiong et al. 2020, “On Layer Normalization in the Transformer Architecture”; the notes on residuals have "
        "pre-norm as the standard, without a word on the warm-up."
    ),
    design=(
        "GPTs of six narrow blocks (with the full budget also of 12 and 24) with LayerNorm and ReLU on the text, "
        "pre-norm and post-norm, with a warm-up over a fifth of the steps and without. Each wiring has the learning "
        "rate that is best for it with the warm-up, and keeps it without: the warm-up is all that changes. Gradients "
        "are not clipped, for a clip would do a part of the warm-up's work."
    ),
    rule=(
        f"To need a warm-up is to lose more than {TEXT_MARGIN} nats without it. Supported if the interval "
        "of what is lost "
        "is below that for pre-norm and above it for post-norm, and the interval of pre-norm's loss minus post-norm's, "
        f"both with a warm-up, is below {TEXT_MARGIN} nats too, at each depth that is run."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=tuning,
    meaning={
        "supported": (
            "At the rate that suits it post-norm needs the warm-up; with pre-norm it can be left out, and in a model "
            "of this size pre-norm costs no loss that would be noticed. Whether a slower post-norm does without is "
            "not asked."
        ),
        "contradicted": (
            "A part of it does not hold in a model of this size; the table says which. Where post-norm has learnt "
            "next to nothing with a warm-up either, which the first chart shows, the warm-up is not what it lacks."
        ),
        "inconclusive": (
            "A part of it cannot be told from chance; the table says which. A warm-up is cheap: where what is lost "
            "without one depends on the seed, keep it."
        ),
    },
    remark=(
        "Versions before this one asked something else. One asked about twelve blocks after 145 steps, where post-norm "
        "had learnt no more than how often each byte occurs, with a warm-up and without. Another gave each of the four "
        "a rate of its own, a third or three times the next: post-norm's best with a warm-up lay between two of "
        "them, and whether one and the same training needs a warm-up was not asked at all. That post-norm trains in "
        "these steps was seen with seeds that are not among those judged."
    ),
    revised=(
        "each variant had its own rate, on a grid of threes, where post-norm's best lay between two; the claim is "
        "about one rate"
    ),
    first_verdict="contradicted",
)
