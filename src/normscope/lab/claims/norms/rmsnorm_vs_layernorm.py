"""RMSNorm is as good as LayerNorm in a GPT, whatever the activation."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import small_gpt, train_text

ACTIVATIONS = ("relu", "gelu", "swiglu", "relu2")
NORMS = ("layer", "rms")


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=170, full=2000)
    return {
        f"{norm} {activation}": small_gpt(steps, norm=norm, activation=activation)
        for activation in ACTIVATIONS
        for norm in NORMS
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    def excess(activation: str) -> lab.Question:
        text = f"with {activation} RMSNorm's loss is at most {lab.TEXT_MARGIN} nats above LayerNorm's"
        return lab.difference(text, f"rms {activation}", f"layer {activation}", threshold=lab.TEXT_MARGIN, side="below")

    return [excess(activation) for activation in ACTIVATIONS]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    pairs = {"difference": [(f"rms {activation}", f"layer {activation}") for activation in ACTIVATIONS]}
    lines = {norm: [f"{norm} {activation}" for activation in ACTIVATIONS] for norm in NORMS}
    differences, losses = lab.difference_lines(runs, pairs, questions), lab.mean_lines(runs, "loss", lines)
    title, margin = "RMSNorm's loss minus LayerNorm's, paired by seed", [("the margin", lab.TEXT_MARGIN)]
    return [
        lab.Chart(title, "activation", "nats per byte", differences, margin, ACTIVATIONS, y_from_zero=True),
        lab.Chart("Loss on held-out text", "activation", "nats per byte", losses, categories=ACTIVATIONS),
    ]


tuning = lab.lr_grid((3e-3, 1e-2, 3e-2))
EXPERIMENT = lab.Experiment(variants, train_text, questions, charts, tuning)
