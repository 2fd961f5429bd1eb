"""Pre-norm trains without a warm-up where post-norm does not."""

from collections.abc import Mapping

from normscope.display.chart import COLOURS, Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import categories, curves
from normscope.lab.runs import Runs
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.verdict import BySeed, Question

WIRINGS = ("pre", "post")
WARMUPS = {"with": 0.2, "without": 0.0}
MARGIN = 0.1
"""Nats a byte, about a twentieth of the loss: whoever gives up this much by leaving the warm-up out, needs it."""


def depths(budget: Budget) -> tuple[int, ...]:
    return budget.pick(quick=(6,), full=(6, 12, 24))


def name(wiring: str, warmup: str, depth: int) -> str:
    return f"{wiring} {warmup} warm-up, {depth} blocks"


def variants(budget: Budget) -> Mapping[str, Settings]:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32, "norm": "layer", "activation": "relu"}
    return {
        name(wiring, warmup, depth): {
            **SMALL,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=400, full=900),
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

    return [missed(wiring, depth) for depth in depths(budget) for wiring in WIRINGS]


def charts(runs: Runs) -> list[Chart]:
    numbers = sorted({int(variant.split()[-2]) for variant in runs.variants})
    models = [(wiring, depth) for wiring in WIRINGS for depth in numbers]
    names = [f"{wiring}, {depth} blocks" for wiring, depth in models]
    lines = {f"{warmup} a warm-up": [name(wiring, warmup, depth) for wiring, depth in models] for warmup in WARMUPS}
    rates = []
    for label, shift, colour in zip(lines, (-0.06, 0.06), COLOURS, strict=False):
        found = [(place + shift, runs.rates[variant]) for place, variant in enumerate(lines[label]) if runs.rates]
        rates.append(Line(label, found, colour, joined=False))
    deepest = {f"{wiring}, {warmup}": name(wiring, warmup, numbers[-1]) for wiring in WIRINGS for warmup in WARMUPS}
    return [
        categories("Loss on held-out text", "model", "nats a byte", runs, "loss", lines, names),
        Chart("The learning rate that was best", "model", "rate", rates, names=names, log_y=True),
        curves(f"While training, {numbers[-1]} blocks", "step", "nats a byte", runs, "curve", deepest, log_x=True),
    ]


CLAIM = Claim(
    number=25,
    name="warmup-by-wiring",
    kind="trained",
    statement="Pre-norm trains without a warm-up where post-norm needs one.",
    source=(
        "Xiong et al. 2020, “On Layer Normalization in the Transformer Architecture”; the notes on residuals have "
        "pre-norm as the standard, without a word on the warm-up."
    ),
    design=(
        "GPTs of six narrow blocks (with the full budget also of 12 and 24) with LayerNorm and ReLU on the text, "
        "pre-norm and post-norm, with a warm-up over a fifth of the steps and without. Gradients are not clipped, for "
        "a clip would do a part of the warm-up's work. Each of them has the learning rate that is best for it: "
        "post-norm may go slowly if that is all it needs."
    ),
    rule=(
        f"To do without a warm-up is to lose at most {MARGIN} nats against the same model with one. Supported if at "
        "every depth the interval of what is lost is below that for pre-norm and above it for post-norm. "
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
            "It is not so at every depth that was tried: with a learning rate of its own, either post-norm does as "
            "well without a warm-up, or pre-norm does not. Where post-norm has learnt nothing with a warm-up either, "
            "which the first chart shows, the warm-up is not what it lacks."
        ),
        "inconclusive": "How much is lost without a warm-up depends on the seed. A warm-up is cheap: keep it.",
    },
    remark=(
        "Xiong et al. compare at fixed learning rates, where leaving the warm-up out was a catastrophe for post-norm; "
        "here each model has its own best rate, which is kinder to post-norm. A first version asked about twelve "
        "blocks after 145 steps. There post-norm had learnt no more than how often each byte occurs, with a warm-up "
        "and without, so that it said nothing of the warm-up. Six blocks and more steps were then chosen, after a try "
        "with a seed that is not among these had shown that post-norm does train there, and better with a warm-up."
    ),
)
