"""How much the scale of the initialization matters, with pre-norm and with post-norm."""

import statistics

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text

USUAL = 1.0
WIRINGS = ("pre", "post")

FEW_LRS = (4e-3, 8e-3, 2e-2, 7e-2, 3e-1)
"""Denser where they are small: slightly above its best learning rate, post-norm learns almost nothing."""
MORE_LRS = (1e-3, 2e-3, *FEW_LRS, 1.0, 3.0)
"""Longer training needs smaller learning rates, larger weights need larger ones."""


def scales(budget: lab.Budget) -> tuple[float, ...]:
    """As far above the usual scale as below it."""
    return budget.pick(quick=(0.1, 0.3, 1.0, 3.0, 10.0), full=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0))


def name(wiring: str, scale: float) -> str:
    return f"{wiring} {scale:g}"


def variants(budget: lab.Budget) -> lab.Variants:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32}  # small enough to try every lr at every scale
    wide = {**SMALL_GPT["model"], "width": 48}
    depth, model = budget.pick(quick=(4, narrow), full=(6, wide))
    return {
        name(wiring, scale): {
            **SMALL_GPT,
            "model": {**model, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=130, full=800),
            "init_scale": scale,
        }
        for wiring in WIRINGS
        for scale in scales(budget)
    }


def rise(runs: lab.BySeed, wiring: str, wrong: tuple[float, ...]) -> float:
    """How far the mean loss over the wrong scales is above the loss at the usual scale."""
    losses = [float(runs[name(wiring, scale)]["loss"]) for scale in wrong]
    return statistics.fmean(losses) - float(runs[name(wiring, USUAL)]["loss"])


def questions(budget: lab.Budget) -> list[lab.Question]:
    def steeper(side: str, wrong: tuple[float, ...]) -> lab.Question:
        text = (
            f"initial weights too {side}, {min(wrong):g} to {max(wrong):g} times the usual scale: post-norm's loss "
            f"rises by at least {TEXT_MARGIN} nats more than pre-norm's, on average"
        )
        return lab.Question(
            text, lambda runs: rise(runs, "post", wrong) - rise(runs, "pre", wrong), TEXT_MARGIN, unit="nats"
        )

    above = tuple(scale for scale in scales(budget) if scale > USUAL)
    below = tuple(scale for scale in scales(budget) if scale < USUAL)
    return [steeper("large", above), steeper("small", below)]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({float(variant.split()[1]) for variant in runs.variants})
    lines = {f"{wiring}-norm": {scale: name(wiring, scale) for scale in numbers} for wiring in WIRINGS}
    x_label = "scale of all initial weights"
    lrs = [
        lab.ChartLine(label, [(scale, runs.lrs[variant]) for scale, variant in found.items()], color, dots=True)
        for (label, found), color in zip(lines.items(), "ab", strict=True)
    ]
    return [
        lab.by_number("Loss by initialization scale", x_label, "nats per byte", runs, "loss", lines, log_x=True),
        lab.Chart("Tuned learning rate", x_label, "learning rate", lrs, log_x=True, log_y=True),
    ]


CLAIM = lab.Claim(
    number=5,
    name="init-scale-sensitivity",
    kind="trained",
    statement="Pre-norm transformers are less sensitive to the scale of their initialization than post-norm ones.",
    source="""Notes on initialization, which say it of pre-norm; Xiong et al. 2020, “On Layer Normalization in the
        Transformer Architecture”.""",
    design="""A GPT of four narrow blocks on the text (six wider ones with the full budget) whose initial matrices,
        embedding and head included, are all multiplied by 0.1 to 10 (0.01 to 100). The learning rate is tuned for
        every scale, so that only what tuning cannot compensate is compared. The cost of a wrong scale is how far
        the loss is above that at the usual scale, averaged over the scales that are too large, and over those that
        are too small.""",
    rule=f"""Supported if the interval of post-norm's cost minus pre-norm's is above {TEXT_MARGIN} nats for weights
        that are too large and for weights that are too small.""",
    experiment=lab.Experiment(
        variants,
        train_text,
        questions,
        charts,
        lambda budget: lab.LRTuning(budget.pick(quick=FEW_LRS, full=MORE_LRS), seeds=2),
    ),
    supported="""In a model of this size a wrong initialization scale costs pre-norm less, whether it is too large
        or too small. Post-norm needs a more careful initialization.""",
    contradicted="""Pre-norm is not the more robust of the two on both sides: the table says on which side it is
        not, in a model of this size with the learning rate tuned for every scale. Weights that are too large and
        weights that are too small can behave differently.""",
    inconclusive="On at least one side seed noise is as large as the effect of the wiring; the table says which.",
    remark="""The two sides are separate questions because they are not alike. A post-norm block computes N(x +
        A(x)): with large weights the branch dominates the residual stream, and nothing of the residual is left;
        with small weights the block starts close to the identity. An earlier version averaged over both sides, with
        more scales below the usual one than above, and measured from the best scale of each seed.""",
    withdrawn="""With initial weights 3 and 10 times too large post-norm does not train at all: every seed ends at
        3.09 nats per byte, which byte frequencies alone achieve. That caps its cost there, and the verdict was
        decided by weights that are too small, where both train: the wiring that fails outright counted as the less
        sensitive one. The claim needs a metric that counts a failure to train as one.""",
    revised="""the cost was measured from the best scale of each seed, with more scales below than above: it passed
        its threshold by 0.0003""",
    first_verdict="supported",
)
