"""Inference mode saves memory and time, and a model without biases has fewer parameters and about the same loss."""

from collections.abc import Callable, Mapping

import torch

from normscope.lab.budget import Budget, get_budget
from normscope.lab.claim import Claim, LRTuning, Settings
from normscope.lab.report.charts import differences, interval_dots
from normscope.lab.statistics import confidence_interval
from normscope.lab.trials.grad_modes import relative_kept, relative_peaks, relative_times
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, build_gpt, train_text
from normscope.lab.trials.text_sources import load_text
from normscope.lab.variant_runs import VariantRuns
from normscope.lab.verdict import BySeed, Metrics, Question
from normscope.render.chart import COLORS, Chart

MODELS = {"with biases": True, "without biases": False}
SEQUENCES = (1, 8, 32)
ASKED = 8
"""Sequences of the batch that is asked about, as many as in training."""
SAVES = 0.95
"""Of time or memory: what saves less than a twentieth is not worth a line of code."""


def variants(budget: Budget) -> Mapping[str, Settings]:
    common = {**SMALL_GPT, "preset": "gpt2", "steps": budget.pick(quick=260, full=4000)}
    return {name: {**common, "model": {**SMALL_GPT["model"], "bias": bias}} for name, bias in MODELS.items()}


def measure(settings: Settings, seed: int) -> Metrics:
    """Train; and put a model of the same kind through its modes."""
    text = load_text(settings["text"])
    model = build_gpt(settings, text, seed).eval()
    batches = [torch.randint(text.vocab_size, (sequences, model.config.context)) for sequences in SEQUENCES]
    return {
        **train_text(settings, seed),
        "times": [relative_times(model, tokens) for tokens in batches],
        "peaks": [relative_peaks(model, tokens) for tokens in batches],
        "kept": [relative_kept(model, tokens) for tokens in batches],
    }


def questions(budget: Budget) -> list[Question]:
    at = SEQUENCES.index(ASKED)

    def share(metric: str) -> Callable[[BySeed], float]:
        return lambda runs: sum(float(runs[name][metric][at]["inference_mode"]) for name in MODELS) / len(MODELS)

    def share_of_parameters(runs: BySeed) -> float:
        return float(runs["without biases"]["parameters"] / runs["with biases"]["parameters"])

    def lost(runs: BySeed) -> float:
        return float(runs["without biases"]["loss"] - runs["with biases"]["loss"])

    than = f"at most {SAVES} of that with gradients on"
    return [
        Question(f"in inference mode the time of a forward pass is {than}", share("times"), SAVES, "below"),
        # Memory is counted, not timed: it is the same every time, or something is wrong.
        Question(f"its peak of memory is {than}", share("peaks"), SAVES, "below", every_seed=True),
        Question(f"what it keeps in memory afterwards is {than}", share("kept"), SAVES, "below", every_seed=True),
        Question(
            "without biases there are fewer parameters, as a share", share_of_parameters, 1.0, "below", every_seed=True
        ),
        Question(
            f"without biases the loss is at most {TEXT_MARGIN} nats higher", lost, TEXT_MARGIN, "below", unit="nats"
        ),
    ]


def charts(runs: VariantRuns) -> list[Chart]:
    def chart(title: str, named: Mapping[str, tuple[str, str]]) -> Chart:
        """Figures in modes, by the names of their lines."""
        lines = []
        for i, (label, (metric, mode)) in enumerate(named.items()):
            found = [
                confidence_interval([metrics[metric][at][mode] for name in MODELS for metrics in runs.metrics[name]])
                for at in range(len(SEQUENCES))
            ]
            shifted = [(place + 0.12 * (i - (len(named) - 1) / 2), interval) for place, interval in enumerate(found)]
            lines.append(interval_dots(label, shifted, COLORS[i]))
        names = [f"{sequences} x {SMALL_GPT['model']['context']}" for sequences in SEQUENCES]
        levels = [("gradients on", 1.0)]
        return Chart(title, "sequences x tokens", "share", lines, levels, names, y_from_zero=True)

    both = ("no_grad", "inference_mode")
    words = {"peaks": "peak", "kept": "kept after it"}

    lost = {"difference": [("without biases", "with biases")]}
    return [
        chart("Time of a forward pass", {mode: ("times", mode) for mode in both}),
        chart("Memory", {f"{mode}, {words[metric]}": (metric, mode) for metric in words for mode in both}),
        differences(
            "Loss without biases minus loss with them, seed by seed",
            "model",
            "nats a byte",
            runs,
            "loss",
            lost,
            ["GPT-2 of two blocks"],
            asked=questions(get_budget("quick")),
            levels=[("the margin", TEXT_MARGIN)],
        ),
    ]


CLAIM = Claim(
    number=29,
    name="inference-mode-and-bias",
    kind="measured",
    statement=(
        f"Inference mode saves memory and time over a pass with gradients on; a model without biases has fewer "
        f"parameters and a loss that is at most {TEXT_MARGIN} nats a byte higher."
    ),
    source=(
        "Notes on residuals, which also say that training is more stable without biases, as in Llama and PaLM; "
        "Chowdhery et al. 2022, “PaLM: Scaling Language Modeling with Pathways”."
    ),
    design=(
        "A GPT-2 of two blocks on the text, with all biases and with none, the norms' included. Each is put through "
        "forward passes with gradients on, under no_grad and in inference mode, in turns, of which the least time "
        "counts. Of memory there are two figures, both without the parameters: the peak, from torch's profiler, which "
        "notes every piece that is taken and given back; and what is kept when the pass is done, logits and all that "
        "autograd holds for a backward pass. Asked about are batches as in training, of both models together."
    ),
    rule=(
        f"Supported if the interval of inference mode's time is below {SAVES} of that with gradients on, its peak of "
        f"memory and what it keeps always are, parameters are always fewer without biases, and the interval of what "
        f"that costs in loss is below {TEXT_MARGIN} nats."
    ),
    variants=variants,
    measure=measure,
    questions=questions,
    charts=charts,
    tuning=lambda budget: LRTuning(lrs=(1e-3, 3e-3, 1e-2), seeds=budget.pick(quick=1, full=3)),
    meaning={
        "supported": (
            "Evaluate and generate in inference mode. Above all it keeps nothing for a backward pass; at the peak it "
            "saves less than that, because the widest layer's numbers are needed in every mode. And biases can be left "
            f"out by whoever does not mind {TEXT_MARGIN} nats a byte: the loss without them is within "
            "that margin. By how "
            "much, and whether it can be told from none at all, is in the table."
        ),
        "contradicted": "A part of it does not hold; the table says which. The others are still good advice.",
        "inconclusive": "A part of it cannot be told from chance; the table says which.",
    },
    remark=(
        "The charts show no_grad as well, which differs from inference mode in the bookkeeping of views and versions "
        "only. How much time is saved depends on the machine and on the size of the batch. It is usually said that "
        "the loss is equal without biases; no experiment can show that, only that the difference is within a margin. "
        "That training is more stable without biases, as the notes say, is not tested here."
    ),
    revised="a part of its design",
)
