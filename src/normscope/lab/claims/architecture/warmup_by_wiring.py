"""Pre-norm trains without a warmup where post-norm needs one, and ends no worse."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import NARROW, small_gpt, train_text

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
    steps, same = budget.pick(quick=320, full=900), {"norm": "layer", "activation": "relu"}
    return {
        name(wiring, warmup, depth): {
            **small_gpt(steps, NARROW, **same, depth=depth, wiring=wiring),
            "warmup": share,
            "grad_clip": None,  # clipping acts like a warmup: it limits the first steps
        }
        for depth in depths(budget)
        for wiring in WIRINGS
        for warmup, share in WARMUPS.items()
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    def cost(wiring: str, depth: int) -> lab.Question:
        much = "at most" if wiring == "pre" else "more than"
        text = f"{depth} blocks: without the warmup {wiring}-norm loses {much} {lab.TEXT_MARGIN} nats, at the same lr"
        pair = name(wiring, "without", depth), name(wiring, "with", depth)
        return lab.difference(text, *pair, threshold=lab.TEXT_MARGIN, side="below" if wiring == "pre" else "above")

    def no_worse(depth: int) -> lab.Question:
        text = f"{depth} blocks: with a warmup pre-norm's loss is at most {lab.TEXT_MARGIN} nats above post-norm's"
        pair = name("pre", "with", depth), name("post", "with", depth)
        return lab.difference(text, *pair, threshold=lab.TEXT_MARGIN, side="below")

    return [asked for depth in depths(budget) for asked in (cost("pre", depth), cost("post", depth), no_worse(depth))]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({int(variant.split()[-2]) for variant in runs.variants})
    models = [(wiring, depth) for wiring in WIRINGS for depth in numbers]
    names = [f"{wiring}, {depth} blocks" for wiring, depth in models]
    lines = {f"{warmup} warmup": [name(wiring, warmup, depth) for wiring, depth in models] for warmup in WARMUPS}
    deepest = {f"{wiring}, {warmup}": name(wiring, warmup, numbers[-1]) for wiring in WIRINGS for warmup in WARMUPS}
    losses, curves = lab.mean_lines(runs, "loss", lines), lab.curves(runs, "curve", deepest)
    return [
        lab.Chart("Loss on held-out text", "model", "nats per byte", losses, categories=names),
        lab.Chart(f"Training loss, {numbers[-1]} blocks", "step", "nats per byte", curves, log_x=True),
    ]


# Each wiring is tuned with the warmup, and trained without at the same learning rate.
tuning = lab.lr_grid(FEW_LRS, MORE_LRS, seeds=(2, 2), shared=lambda name: name.replace("without", "with"))
EXPERIMENT = lab.Experiment(variants, train_text, questions, charts, tuning)
