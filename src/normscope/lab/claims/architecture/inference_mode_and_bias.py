"""Inference mode saves memory and time, and a model without biases has fewer parameters and about the same loss."""

import torch

from normscope.lab import toolkit as lab
from normscope.lab.trials.grad_modes import relative_kept, relative_peaks, relative_times
from normscope.lab.trials.text import SMALL_GPT, build_gpt, small_gpt, train_text
from normscope.lab.trials.text_sources import load_text

MODELS = {"with biases": True, "without biases": False}
SEQUENCES = (1, 8, 32)
ASKED = 8
"""Batch size of the questions, as in training."""
SAVES = 0.95
"""Of time or memory: saving less than 5% is not worth a line of code."""


def variants(budget: lab.Budget) -> lab.Variants:
    steps = budget.pick(quick=260, full=4000)
    return {name: {**small_gpt(steps, bias=bias), "preset": "gpt2"} for name, bias in MODELS.items()}


def measure(settings: lab.Settings, seed: int) -> lab.Metrics:
    """Train, and run a model of the same kind in each gradient mode."""
    text = load_text(settings["text"])
    model = build_gpt(settings, text, seed).eval()
    batches = [torch.randint(text.vocab_size, (sequences, model.config.context)) for sequences in SEQUENCES]
    return {
        **train_text(settings, seed),
        "times": [relative_times(model, tokens) for tokens in batches],
        "peaks": [relative_peaks(model, tokens) for tokens in batches],
        "kept": [relative_kept(model, tokens) for tokens in batches],
    }


def questions(budget: lab.Budget) -> list[lab.Question]:
    at = SEQUENCES.index(ASKED)

    def share(text: str, metric: str, every_seed: bool) -> lab.Question:
        def effect(runs: lab.BySeed) -> float:
            return sum(float(runs[name][metric][at]["inference_mode"]) for name in MODELS) / len(MODELS)

        than = f"at most {SAVES} of that with gradients enabled"
        return lab.Question(f"{text} is {than}", effect, SAVES, "below", every_seed=every_seed)

    def parameters(runs: lab.BySeed) -> float:
        return float(runs["without biases"]["parameters"] / runs["with biases"]["parameters"])

    fewer, loss = "without biases there are fewer parameters, as a share", "without biases the loss is at most"
    pair = "without biases", "with biases"
    return [
        share("in inference mode the time of a forward pass", "times", False),
        # Memory is counted, not timed: it is the same every time, or something is wrong.
        share("its peak memory", "peaks", True),
        share("the memory it keeps afterwards", "kept", True),
        lab.Question(fewer, parameters, 1.0, "below", every_seed=True),
        lab.difference(f"{loss} {lab.TEXT_MARGIN} nats higher", *pair, threshold=lab.TEXT_MARGIN, side="below"),
    ]


def charts(runs: lab.VariantRuns) -> list[lab.Chart]:
    def chart(title: str, named: dict[str, tuple[str, str]]) -> lab.Chart:
        """Metrics in gradient modes, by legend entry."""
        values = {
            label: [
                [run[metric][at][mode] for name in MODELS for run in runs.metrics[name]] for at in range(len(SEQUENCES))
            ]
            for label, (metric, mode) in named.items()
        }
        names = [f"{sequences} x {SMALL_GPT['model']['context']}" for sequences in SEQUENCES]
        axes, enabled = ("sequences x tokens", "share"), [("gradients enabled", 1.0)]
        return lab.interval_categories(title, *axes, values, names, reference_lines=enabled, y_from_zero=True)

    both = ("no_grad", "inference_mode")
    words = {"peaks": "peak", "kept": "kept afterwards"}
    pair = {"difference": [("without biases", "with biases")]}
    title, margin = "Loss without biases minus loss with them, paired by seed", [("the margin", lab.TEXT_MARGIN)]
    model = ["GPT-2 of two blocks"]
    return [
        chart("Time of a forward pass", {mode: ("times", mode) for mode in both}),
        chart("Memory", {f"{mode}, {words[metric]}": (metric, mode) for metric in words for mode in both}),
        lab.differences(title, "model", "nats per byte", runs, "loss", pair, model, questions, reference_lines=margin),
    ]


tuning = lab.lr_grid((1e-3, 3e-3, 1e-2))
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning)
