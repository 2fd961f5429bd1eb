"""Two residuals per block beat one, and one beats none, increasingly with depth."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, train_text

WIRINGS = {"two": "pre", "one": "single", "none": "none"}


def depths(budget: lab.Budget) -> tuple[int, ...]:
    """From one block, where even a model without residuals learns something, so that a gap can grow."""
    return budget.pick(quick=(1, 4, 24), full=(1, 4, 12, 24))


def name(residuals: str, depth: int) -> str:
    return f"{residuals}, {depth} {'block' if depth == 1 else 'blocks'}"


def variants(budget: lab.Budget) -> lab.Variants:
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


def tuning(budget: lab.Budget) -> lab.LRTuning:
    lrs = budget.pick(quick=(2e-3, 6e-3, 2e-2, 6e-2), full=(6e-4, 2e-3, 6e-3, 2e-2, 6e-2))
    return lab.LRTuning(lrs, seeds=budget.pick(quick=1, full=2))


def questions(budget: lab.Budget) -> list[lab.Question]:
    shallowest, deepest = depths(budget)[0], depths(budget)[-1]

    def beats(more: str, fewer: str) -> list[lab.Question]:
        def gap(runs: lab.BySeed, depth: int) -> float:
            return float(runs[name(fewer, depth)]["loss"] - runs[name(more, depth)]["loss"])

        wins = f"at {deepest} blocks the loss with {fewer} is more than {TEXT_MARGIN} nats above that with {more}"
        grows = f"from {more} to {fewer}: that gap is wider at {deepest} blocks than at {shallowest}"
        return [
            lab.difference(wins, name(fewer, deepest), name(more, deepest), threshold=TEXT_MARGIN),
            lab.Question(grows, lambda runs: gap(runs, deepest) - gap(runs, shallowest), unit="nats"),
        ]

    return beats("two", "one") + beats("one", "none")


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    numbers = sorted({int(variant.split()[1]) for variant in runs.variants})
    lines = {residuals: {float(depth): name(residuals, depth) for depth in numbers} for residuals in WIRINGS}
    deepest = {residuals: name(residuals, numbers[-1]) for residuals in WIRINGS}
    title, unit = "Loss on held-out text, by residuals per block", "nats per byte"
    return [
        lab.by_number(title, "blocks", unit, runs, "loss", lines, log_x=True),
        lab.curves(f"Training loss, {numbers[-1]} blocks", "step", unit, runs, "curve", deepest, log_x=True),
    ]


CLAIM = lab.Claim(
    number=23,
    name="residuals-by-depth",
    kind="trained",
    statement="""Two residuals per block, one around attention and one around the MLP, beat one around both, and one
        beats none; increasingly so in deeper models.""",
    source="Notes on residuals, which name a “Sanders et al. 2022”.",
    design="""GPTs of 1, 4 and 24 narrow pre-norm blocks on the text (with the full budget also of 12): x + A(N x)
        then x + M(N x); x + M(A(N x)); and M(A(N x)). Initialization and number of weights are the same, except for
        the gains of one norm; all else is Llama's.""",
    rule=f"""There are two gaps: how far the loss with one residual is above that with two, and with none above that
        with one. Supported if at 24 blocks the interval of each gap is above {TEXT_MARGIN} nats, and that of each
        gap's growth from the shallowest model to the deepest is above 0.""",
    experiment=lab.Experiment(variants, train_text, questions, charts, tuning),
    supported="""Give attention and the MLP a residual each, especially in a deep model. The growth is from one
        block to 24 in a short training; the first chart shows where most of it happens.""",
    contradicted="""Not all of it holds: the table says which gap does not exist, or does not grow. A residual that
        brings nothing in so short a training may still be needed in a longer one.""",
    inconclusive="Part of it cannot be distinguished from seed noise; the table says which.",
    remark="""The notes cite “Sanders et al. 2022” for what happens with a single residual. No such study could be
        found, so the claim rests on what is measured here. A gap can grow only if the worse model can get worse: in
        a short training without residuals the deeper models learn byte frequencies only. So growth is measured from
        a single block, where all three learn more than that, as was seen with seeds other than those used here; an
        earlier version began at four blocks.""",
    revised="without residuals nothing was learned at the shallowest depth, so that no gap could grow",
)
