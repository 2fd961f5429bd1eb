"""Pre-norm trains without a warm-up where post-norm does not."""

from collections.abc import Mapping

from normscope.display.chart import COLOURS, Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import by_number, curves
from normscope.lab.runs import Runs
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.verdict import BySeed, Question

WIRINGS = ("pre", "post")
WARMUPS = {"with": 0.2, "without": 0.0}
DEEP = 12
"""Where the claim has to hold; below, it is only shown."""
MARGIN = 0.1
"""Nats a byte, about a twentieth of the loss: whoever gives up this much by leaving the warm-up out, needs it."""


def depths(budget: Budget) -> tuple[int, ...]:
    return budget.pick(quick=(6, 12), full=(6, 12, 24))


def name(wiring: str, warmup: str, depth: int) -> str:
    return f"{wiring} {warmup} warm-up, {depth} blocks"


def variants(budget: Budget) -> Mapping[str, Settings]:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32, "norm": "layer", "activation": "relu"}
    return {
        name(wiring, warmup, depth): {
            **SMALL,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=145, full=900),
            "warmup": share,
            "clip": None,  # a clip is a warm-up of its own: it holds the first steps back
        }
        for depth in depths(budget)
        for wiring in WIRINGS
        for warmup, share in WARMUPS.items()
    }


def questions(budget: Budget) -> list[Question]:
    def missed(wiring: str, depth: int) -> Question:
        def effect(runs: BySeed) -> float:
            return float(runs[name(wiring, "without", depth)]["loss"] - runs[name(wiring, "with", depth)]["loss"])

        trains = "at most" if wiring == "pre" else "more than"
        text = f"{depth} blocks: without a warm-up, {wiring}-norm's loss is {trains} {MARGIN} nats above that with one"
        return Question(text, effect, MARGIN, "below" if wiring == "pre" else "above", unit="nats")

    return [missed(wiring, depth) for depth in depths(budget) if depth >= DEEP for wiring in WIRINGS]


def charts(runs: Runs) -> list[Chart]:
    numbers = sorted({int(variant.split()[-2]) for variant in runs.variants})
    found = {f"{wiring}, {warmup}": (wiring, warmup) for wiring in WIRINGS for warmup in WARMUPS}
    lines = {label: {float(depth): name(*which, depth) for depth in numbers} for label, which in found.items()}
    rates = [
        Line(label, [(depth, runs.rates[variant]) for depth, variant in lines[label].items()], colour, dots=True)
        for label, colour in zip(found, COLOURS, strict=False)
        if runs.rates
    ]
    deepest = {label: name(*which, numbers[-1]) for label, which in found.items()}
    return [
        by_number("Loss on held-out text, with and without a warm-up", "blocks", "nats a byte", runs, "loss", lines),
        Chart("The learning rate that was best", "blocks", "rate", rates, log_y=True),
        curves(f"While training, {numbers[-1]} blocks", "step", "nats a byte", runs, "curve", deepest, log_x=True),
    ]


CLAIM = Claim(
    number=25,
    name="warmup-by-wiring",
    kind="trained",
    statement="With twelve blocks or more, pre-norm trains without a warm-up, and post-norm does not.",
    source=("Notes on residuals; Xiong et al. 2020, “On Layer Normalization in the Transformer Architecture”."),
    design=(
        "GPTs of narrow blocks with LayerNorm and ReLU on the text, pre-norm and post-norm, with a warm-up over a "
        "fifth of the steps and without. Gradients are not clipped, for a clip would do a part of the warm-up's "
        "work. Each of them has the learning rate that is best for it: post-norm may go slowly if that is all it needs."
    ),
    rule=(
        f"To train without a warm-up is to lose at most {MARGIN} nats against the same model with one. Supported if "
        f"from {DEEP} blocks on the interval of what is lost is below that for pre-norm and above it for post-norm. "
        "Which of the two is better in the end with a warm-up is not asked, and shown in the first chart."
    ),
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), seeds=budget.pick(quick=1, full=2)),
    meaning={
        "supported": "Post-norm needs a warm-up, whatever its rate; with pre-norm it can be left out.",
        "contradicted": (
            "At these depths it is not so: with a learning rate of its own, either post-norm does without a warm-up "
            "or pre-norm does not. The second chart shows what rate it takes."
        ),
        "inconclusive": "How much is lost without a warm-up depends on the seed. A warm-up is cheap: keep it.",
    },
    remark=(
        "Xiong et al. compare at fixed learning rates, where leaving the warm-up out was a catastrophe for post-norm, "
        "and found that a smaller rate softens it; here each model has its own, which is kinder to post-norm."
    ),
)
