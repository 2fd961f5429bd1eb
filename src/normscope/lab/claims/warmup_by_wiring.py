"""Pre-norm trains without a warmup where post-norm needs one, and ends no worse."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text

WIRINGS = ("pre", "post")
WARMUPS = {"with": 0.2, "without": 0.0}
FEW_LRS = (2e-3, 3.5e-3, 6e-3, 1e-2, 1.7e-2)
"""Closely spaced: slightly above its best learning rate post-norm learns almost nothing, which a coarse grid misses."""
MORE_LRS = (3e-4, 6e-4, 1.1e-3, *FEW_LRS)
"""Deeper models need smaller ones."""


def depths(budget: lab.Budget) -> tuple[int, ...]:
    return budget.pick(quick=(6,), full=(6, 12, 24))


def name(wiring: str, warmup: str, depth: int) -> str:
    return f"{wiring} {warmup} warmup, {depth} blocks"


def variants(budget: lab.Budget) -> lab.Variants:
    narrow = {"width": 32, "heads": 2, "kv_heads": 2, "context": 32, "norm": "layer", "activation": "relu"}
    return {
        name(wiring, warmup, depth): {
            **SMALL_GPT,
            "model": {**narrow, "depth": depth, "wiring": wiring},
            "steps": budget.pick(quick=320, full=900),
            "warmup": share,
            "grad_clip": None,  # clipping acts like a warmup: it limits the first steps
        }
        for depth in depths(budget)
        for wiring in WIRINGS
        for warmup, share in WARMUPS.items()
    }


def tuning(budget: lab.Budget) -> lab.LRTuning:
    """Tune each wiring with the warmup, and train it without at the same learning rate."""
    models = [(wiring, depth) for depth in depths(budget) for wiring in WIRINGS]
    return lab.LRTuning(
        lrs=budget.pick(quick=FEW_LRS, full=MORE_LRS),
        seeds=2,
        shared={name(wiring, "without", depth): name(wiring, "with", depth) for wiring, depth in models},
    )


def questions(budget: lab.Budget) -> list[lab.Question]:
    def cost(wiring: str, depth: int) -> lab.Question:
        much = "at most" if wiring == "pre" else "more than"
        text = f"{depth} blocks: without the warmup {wiring}-norm loses {much} {TEXT_MARGIN} nats, at the same lr"
        pair = name(wiring, "without", depth), name(wiring, "with", depth)
        return lab.difference(text, *pair, threshold=TEXT_MARGIN, side="below" if wiring == "pre" else "above")

    def no_worse(depth: int) -> lab.Question:
        text = f"{depth} blocks: with a warmup pre-norm's loss is at most {TEXT_MARGIN} nats above post-norm's"
        pair = name("pre", "with", depth), name("post", "with", depth)
        return lab.difference(text, *pair, threshold=TEXT_MARGIN, side="below")

    return [asked for depth in depths(budget) for asked in (cost("pre", depth), cost("post", depth), no_worse(depth))]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({int(variant.split()[-2]) for variant in runs.variants})
    models = [(wiring, depth) for wiring in WIRINGS for depth in numbers]
    names = [f"{wiring}, {depth} blocks" for wiring, depth in models]
    lines = {f"{warmup} warmup": [name(wiring, warmup, depth) for wiring, depth in models] for warmup in WARMUPS}
    deepest = {f"{wiring}, {warmup}": name(wiring, warmup, numbers[-1]) for wiring in WIRINGS for warmup in WARMUPS}
    unit = "nats per byte"
    return [
        lab.categories("Loss on held-out text", "model", unit, runs, "loss", lines, names),
        lab.curves(f"Training loss, {numbers[-1]} blocks", "step", unit, runs, "curve", deepest, log_x=True),
    ]


CLAIM = lab.Claim(
    number=25,
    name="warmup-by-wiring",
    kind="trained",
    statement="Pre-norm trains without a warmup where post-norm needs one, and ends no worse.",
    source="""Xiong et al. 2020, “On Layer Normalization in the Transformer Architecture”; the notes on residuals
        call pre-norm the standard, and do not mention the warmup.""",
    design="""GPTs of six narrow blocks (with the full budget also of 12 and 24) with LayerNorm and ReLU on the
        text, pre-norm and post-norm, with a warmup over a fifth of the steps and without. Each wiring has its best
        learning rate with the warmup, and keeps it without: only the warmup changes. Gradients are not clipped,
        because clipping would do part of the warmup's work.""",
    rule=f"""To need a warmup is to lose more than {TEXT_MARGIN} nats without it. Supported if the interval of that
        loss is below the margin for pre-norm and above it for post-norm, and the interval of pre-norm's loss minus
        post-norm's, both with a warmup, is below {TEXT_MARGIN} nats too, at each depth that is run.""",
    experiment=lab.Experiment(variants, train_text, questions, charts, tuning),
    supported="""At its best learning rate post-norm needs the warmup; with pre-norm it can be omitted, and in a
        model of this size pre-norm costs no noticeable loss. Whether post-norm at a lower learning rate works
        without is not tested.""",
    contradicted="""Part of it does not hold in a model of this size; the table says which. If post-norm learns
        almost nothing even with a warmup, which the first chart shows, the warmup is not what it lacks.""",
    inconclusive="""Part of it cannot be distinguished from seed noise; the table says which. A warmup is cheap: if
        the loss without one depends on the seed, keep it.""",
    remark="""Earlier versions asked something else. One used twelve blocks after 145 steps, where post-norm had
        learned byte frequencies only, with a warmup and without. Another gave each of the four its own learning
        rate, from a grid with factors of three: post-norm's best with a warmup lay between two of them, and whether
        the same training needs a warmup was not asked at all. That post-norm trains in these steps was seen with
        seeds other than those used here.""",
    revised="""each variant had its own learning rate, on a grid with factors of three, where post-norm's best lay
        between two; the claim is about one learning rate""",
    first_verdict="contradicted",
)
