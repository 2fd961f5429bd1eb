"""BatchNorm in a language model is worse than LayerNorm, and PowerNorm closes part of the gap."""

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import small_gpt, train_text

NORMS = {"LayerNorm": "layer", "BatchNorm": "batch", "PowerNorm": "power"}
NORM_WARMUP = 0.2
"""The share of the steps in which PowerNorm still divides by the batch's own statistic."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=340, full=4000)
    return {
        label: {
            # Batch statistics leak later tokens into earlier ones, which a GPT refuses unless this is set.
            **small_gpt(steps, norm=norm, activation="gelu", allow_future_leak=norm != "layer"),
            "norm_warmup": round(NORM_WARMUP * steps) if norm == "power" else 0,
        }
        for label, norm in NORMS.items()
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    above = "BatchNorm's loss on held-out text is above"
    gap = f"{above} LayerNorm's by more than {lab.TEXT_MARGIN} nats"
    part = f"{above} PowerNorm's, which closes part of any gap"
    return [
        lab.difference(gap, "BatchNorm", "LayerNorm", threshold=lab.TEXT_MARGIN),
        lab.difference(part, "BatchNorm", "PowerNorm"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    unit, names = "nats per byte", list(NORMS)
    both = {
        "at the end of training": [[run["curve"][-1][1] for run in runs.metrics[norm]] for norm in NORMS],
        "on held-out text": [runs.values(norm, "loss") for norm in NORMS],
    }
    others = {"LayerNorm": lab.TEXT_MARGIN, "PowerNorm": 0.0}
    lines = lab.difference_lines(runs, {"difference": [("BatchNorm", other) for other in others]}, questions)
    title, thresholds = "BatchNorm's held-out loss minus another norm's", ("threshold", list(others.values()))
    return [
        lab.Chart("Loss in training and on held-out text", "norm", unit, lab.interval_lines(both), categories=names),
        lab.Chart(title, "other norm", unit, lines, categories=[*others], y_from_zero=True, category_lines=thresholds),
    ]


tuning = lab.lr_grid((3e-3, 1e-2, 3e-2, 1e-1))
EXPERIMENT = lab.Experiment(variants, train_text, questions, charts, tuning)
