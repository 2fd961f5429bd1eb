"""Inference mode saves memory and time, and a model without biases has fewer parameters and about the same loss."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from normscope.lab import toolkit as lab
from normscope.lab.trials.text import SMALL_GPT, build_gpt, small_gpt, train_text
from normscope.lab.trials.text_sources import load_text

MODELS = {"with biases": True, "without biases": False}
MODES: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
ROUNDS = 15
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
        "peaks": [relative(peak_memory, model, tokens) for tokens in batches],
        "kept": [relative(kept_memory, model, tokens) for tokens in batches],
    }


def relative_times(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Time of a forward pass in each mode, relative to grad mode."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):  # alternate, so that a slowdown affects all modes
        for mode, enter in MODES.items():
            with enter():
                start = time.perf_counter()
                model(tokens)
                seconds[mode].append(time.perf_counter() - start)
    # Other load only adds time, so the minimum is the best estimate.
    return {mode: min(seconds[mode]) / min(seconds["grad"]) for mode in MODES}


def relative(measure: Callable[[nn.Module, Tensor], int], model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Memory of a forward pass in each mode, relative to grad mode."""
    found = {}
    for mode, enter in MODES.items():
        with enter():
            found[mode] = measure(model, tokens)
    return {mode: found[mode] / found["grad"] for mode in MODES}


def peak_memory(model: nn.Module, tokens: Tensor) -> int:
    """Peak of the bytes allocated by torch, without the parameters, from its profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = model(tokens)
    del result  # alive until here: the output is part of the memory
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    memory = sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: float(one["ts"]))
    return max(accumulate(int(one["args"]["Bytes"]) for one in memory), default=0)  # negative when freed


def kept_memory(model: nn.Module, tokens: Tensor) -> int:
    """Bytes held after a forward pass: logits, and tensors saved by autograd."""
    memory: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(record, lambda tensor: tensor):
        record(model(tokens))
    existing = {tensor.untyped_storage().data_ptr() for tensor in (tokens, *model.parameters(), *model.buffers())}
    return sum(size for pointer, size in memory.items() if pointer not in existing)


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
        lines, enabled = lab.interval_lines(values), [("gradients enabled", 1.0)]
        return lab.Chart(title, "sequences x tokens", "share", lines, enabled, names, y_from_zero=True)

    both = ("no_grad", "inference_mode")
    words = {"peaks": "peak", "kept": "kept afterwards"}
    lines = lab.difference_lines(runs, {"difference": [("without biases", "with biases")]}, questions)
    title, margin = "Loss without biases minus loss with them, paired by seed", [("the margin", lab.TEXT_MARGIN)]
    model = ["GPT-2 of two blocks"]
    return [
        chart("Time of a forward pass", {mode: ("times", mode) for mode in both}),
        chart("Memory", {f"{mode}, {words[metric]}": (metric, mode) for metric in words for mode in both}),
        lab.Chart(title, "model", "nats per byte", lines, margin, model, y_from_zero=True),
    ]


tuning = lab.lr_grid((1e-3, 3e-3, 1e-2))
EXPERIMENT = lab.Experiment(variants, measure, questions, charts, tuning)
