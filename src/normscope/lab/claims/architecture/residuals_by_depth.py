"""Two residuals per block beat one, and one beats none, increasingly with depth."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import NARROW, small_gpt, train_text

WIRINGS = {"two": "pre", "one": "single", "none": "none"}


def depths(budget: lab.Budget) -> tuple[int, ...]:
    """From one block, where even a model without residuals learns something, so that a gap can grow."""
    return budget.pick(quick=(1, 4, 24), full=(1, 4, 12, 24))


def name(residuals: str, depth: int) -> str:
    return f"{residuals}, {depth} {'block' if depth == 1 else 'blocks'}"


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=90, full=1200)
    return {
        name(residuals, depth): small_gpt(steps, NARROW, depth=depth, wiring=wiring)
        for depth in depths(budget)
        for residuals, wiring in WIRINGS.items()
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    shallowest, deepest = depths(budget)[0], depths(budget)[-1]

    def beats(more: str, fewer: str) -> list[lab.Question]:
        def gap(runs: lab.BySeed, depth: int) -> float:
            return float(runs[name(fewer, depth)]["loss"] - runs[name(more, depth)]["loss"])

        wins = f"at {deepest} blocks the loss with {fewer} is more than {lab.TEXT_MARGIN} nats above that with {more}"
        grows = f"from {more} to {fewer}: that gap is wider at {deepest} blocks than at {shallowest}"
        return [
            lab.difference(wins, name(fewer, deepest), name(more, deepest), threshold=lab.TEXT_MARGIN),
            lab.Question(grows, lambda runs: gap(runs, deepest) - gap(runs, shallowest), unit="nats"),
        ]

    return beats("two", "one") + beats("one", "none")


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({int(variant.split()[1]) for variant in runs.variants})
    lines = {residuals: {float(depth): name(residuals, depth) for depth in numbers} for residuals in WIRINGS}
    deepest = {residuals: name(residuals, numbers[-1]) for residuals in WIRINGS}
    losses, curves = lab.lines_by_number(runs, "loss", lines), lab.curves(runs, "curve", deepest)
    title, unit = "Loss on held-out text, by residuals per block", "nats per byte"
    return [
        lab.Chart(title, "blocks", unit, losses, log_x=True),
        lab.Chart(f"Training loss, {numbers[-1]} blocks", "step", unit, curves, log_x=True),
    ]


tuning = lab.lr_grid((2e-3, 6e-3, 2e-2, 6e-2), (6e-4, 2e-3, 6e-3, 2e-2, 6e-2), seeds=(1, 2))
EXPERIMENT = lab.Experiment(variants, train_text, questions, charts, tuning)
