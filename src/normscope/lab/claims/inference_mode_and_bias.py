"""Inference mode saves memory and time, and a model without biases has fewer parameters and about the same loss."""

import torch

from normscope.lab import toolkit as lab
from normscope.lab.trials.grad_modes import relative_kept, relative_peaks, relative_times
from normscope.lab.trials.text import SMALL_GPT, TEXT_MARGIN, build_gpt, train_text
from normscope.lab.trials.text_sources import load_text

MODELS = {"with biases": True, "without biases": False}
SEQUENCES = (1, 8, 32)
ASKED = 8
"""Batch size of the questions, as in training."""
SAVES = 0.95
"""Of time or memory: saving less than 5% is not worth a line of code."""


def variants(budget: lab.Budget) -> lab.Variants:
    common = {**SMALL_GPT, "preset": "gpt2", "steps": budget.pick(quick=260, full=4000)}
    return {name: {**common, "model": {**SMALL_GPT["model"], "bias": bias}} for name, bias in MODELS.items()}


def tuning(budget: lab.Budget) -> lab.LRTuning:
    return lab.LRTuning((1e-3, 3e-3, 1e-2), seeds=budget.pick(quick=1, full=3))


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
        lab.difference(f"{loss} {TEXT_MARGIN} nats higher", *pair, threshold=TEXT_MARGIN, side="below"),
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
    title, margin = "Loss without biases minus loss with them, paired by seed", [("the margin", TEXT_MARGIN)]
    model = ["GPT-2 of two blocks"]
    return [
        chart("Time of a forward pass", {mode: ("times", mode) for mode in both}),
        chart("Memory", {f"{mode}, {words[metric]}": (metric, mode) for metric in words for mode in both}),
        lab.differences(title, "model", "nats per byte", runs, "loss", pair, model, questions, reference_lines=margin),
    ]


CLAIM = lab.Claim(
    number=29,
    name="inference-mode-and-bias",
    kind="measured",
    statement=f"""Inference mode saves memory and time over a pass with gradients enabled; a model without biases
        has fewer parameters and a loss that is at most {TEXT_MARGIN} nats per byte higher.""",
    source="""Notes on residuals, which also say that training is more stable without biases, as in Llama and PaLM;
        Chowdhery et al. 2022, “PaLM: Scaling Language Modeling with Pathways”.""",
    design="""A GPT-2 of two blocks on the text, with all biases and with none, those of the norms included. Each
        runs forward passes with gradients enabled, under no_grad and in inference mode, in turns; the minimum time
        counts. There are two memory metrics, both without the parameters: the peak, from torch's profiler, which
        records every allocation; and what is kept after the pass, logits and everything that autograd holds for a
        backward pass. The questions are about batches as in training, averaged over both models.""",
    rule=f"""Supported if the interval of inference mode's time is below {SAVES} of that with gradients enabled, its
        peak memory and what it keeps always are, there are always fewer parameters without biases, and the interval
        of the increase in loss is below {TEXT_MARGIN} nats.""",
    experiment=lab.Experiment(variants, measure, questions, charts, tuning),
    supported=f"""Evaluate and generate in inference mode. Above all it keeps nothing for a backward pass; it saves
        less at the peak, because the activations of the widest layer are needed in every mode. Biases can be
        omitted if {TEXT_MARGIN} nats per byte do not matter: the loss without them is within that margin. The table
        shows the difference, and whether it can be distinguished from zero.""",
    contradicted="Part of it does not hold; the table says which. The rest is still good advice.",
    inconclusive="Part of it cannot be distinguished from seed noise; the table says which.",
    remark="""The charts also show no_grad, which differs from inference mode only in view and version tracking. The
        time saved depends on the machine and the batch size. The loss is usually said to be equal without biases;
        no experiment can show that, only that the difference is within a margin. That training is more stable
        without biases, as the notes say, is not tested here.""",
    revised="part of its design",
)
