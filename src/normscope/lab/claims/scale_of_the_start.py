"""How much the scale of the first weights matters, with pre-norm and with post-norm."""

from collections.abc import Mapping

from normscope.display.chart import Chart, Line
from normscope.lab.budget import Budget
from normscope.lab.claim import Claim, Settings, Tuning
from normscope.lab.report.charts import by_number
from normscope.lab.runs import Runs
from normscope.lab.trials.text import SMALL, train_text
from normscope.lab.verdict import BySeed, Question

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Three decades around the usual one."""
WIRINGS = ("pre", "post")
MARGIN = 0.03
"""Nats a byte, on average over the scales: whoever chooses a wiring would not notice less."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    depth, width = budget.pick(quick=(4, 32), full=(6, 48))
    return {
        f"{wiring} {scale:g}": {
            **SMALL,
            "model": {**SMALL["model"], "depth": depth, "width": width, "wiring": wiring},
            "steps": budget.pick(quick=120, full=800),
            "scale": scale,
        }
        for wiring in WIRINGS
        for scale in SCALES
    }


def price(runs: BySeed, wiring: str) -> float:
    """What a wrong scale costs: by how much the loss is above that of the wiring's best scale, on average over all."""
    losses = [float(runs[f"{wiring} {scale:g}"]["loss"]) for scale in SCALES]
    return sum(losses) / len(losses) - min(losses)


def questions(budget: Budget) -> list[Question]:
    def dearer(runs: BySeed) -> float:
        return price(runs, "post") - price(runs, "pre")

    text = f"a wrong scale costs post-norm at least {MARGIN} nats more than pre-norm, on average over three decades"
    return [Question(text, dearer, line=MARGIN, unit="nats")]


def charts(runs: Runs) -> list[Chart]:
    places = {wiring: {scale: f"{wiring} {scale:g}" for scale in SCALES} for wiring in WIRINGS}
    lines = {f"{wiring}-norm": variants for wiring, variants in places.items()}
    x_label = "all first weights, times"
    rates = [
        Line(f"{wiring}-norm", [(scale, runs.rates[name]) for scale, name in variants.items()], colour, dots=True)
        for (wiring, variants), colour in zip(places.items(), "ab", strict=True)
    ]
    return [
        by_number("Loss by the scale of the first weights", x_label, "nats a byte", runs, "loss", lines, log_x=True),
        Chart("The learning rate that suits it best", x_label, "rate", rates, log_x=True, log_y=True),
    ]


CLAIM = Claim(
    number=5,
    name="scale-of-the-start",
    kind="trained",
    statement="Pre-norm transformers are less sensitive to the scale of their first weights than post-norm ones.",
    source=(
        "Notes on initialisation, which say it of pre-norm; Xiong et al. 2020, “On Layer Normalization in the "
        "Transformer Architecture”."
    ),
    design=(
        "A GPT of four blocks on the text (six with the full budget), all of whose first matrices, embedding and head "
        "included, are multiplied by a hundredth to ten. Every scale finds its own learning rate, so that what is "
        "compared is what cannot be tuned away. The price of a wrong scale is the mean loss over all scales, less the "
        "loss at the best one."
    ),
    rule=f"Supported if the interval of post-norm's price minus pre-norm's is above {MARGIN} nats.",
    variants=variants,
    measure=train_text,
    questions=questions,
    charts=charts,
    tuning=lambda budget: Tuning(rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1), seeds=budget.pick(quick=1, full=2)),
    meaning={
        "supported": (
            "Averaged over three decades, a first scale that is off costs pre-norm less; on which side, the chart "
            "shows. Whoever takes post-norm has to take its initialisation with it."
        ),
        "contradicted": (
            "At this size pre-norm is not the more forgiving of the two, once each scale has its own learning rate: "
            "choose the wiring for other reasons, and the scale with care for both."
        ),
        "inconclusive": "Whatever difference there is in forgiveness, another seed makes as much.",
    },
    remark=(
        "An average over all scales hides that there are two sides. A post-norm block computes N(x + A(x)): with large "
        "weights the branch drowns the stream, and nothing of the residual is left; with small ones the block starts "
        "as little more than the identity. The chart shows both."
    ),
)
