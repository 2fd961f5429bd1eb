"""What an export is made from: a model, its tokenizer, and facts about its run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normscope.data.tokenizers import Tokenizer
from normscope.models.gpt import GPT
from normscope.runs.report.run_record import number, read_run_record
from normscope.runs.run import Run

STATISTICS = ("loss", "bits_per_byte")


@dataclass(frozen=True)
class ModelSource:
    """A model to export.

    Args:
        model: the model, in eval mode.
        tokenizer: its tokenizer.
        facts: name, parameters, step, steps, loss, bits_per_byte and floor; None where a value is unknown.
        prompt: a text that the model can continue.
        adapted: of a run with LoRA, the model with adapters that are not merged.
        base: of such a run, the path of the model that it started from.
        base_format: of such a run, the format of this model, such as "Hugging Face phi3".
    """

    model: GPT
    tokenizer: Tokenizer
    facts: Mapping[str, Any]
    prompt: str = ""
    adapted: GPT | None = None
    base: str = ""
    base_format: str = ""

    @property
    def name(self) -> str:
        return str(self.facts["name"])


def read_source(run: Run, checkpoint: str | int) -> ModelSource:
    """Load what to export of a run; `checkpoint` is "best", "last", or a saved step."""
    model, step = run.load_model(checkpoint)
    facts, origin = _facts(run, step, model), run.config.origin
    source = ModelSource(model, run.tokenizer(), facts, run.config.prompt)
    if origin is None or run.config.train.lora is None:
        return source
    return replace(source, adapted=run.load_trained_model(step)[0], base=origin.path, base_format=origin.format)


def _facts(run: Run, step: int, model: GPT) -> dict[str, Any]:
    facts = {
        "name": run.folder.resolve().name.encode(errors="replace").decode(),
        "parameters": model.parameter_count(),
        "step": step,
        "steps": run.config.train.steps,
        **dict.fromkeys((*STATISTICS, "floor")),
    }
    if not run.safe_folder.has(run.metrics.name):
        return facts
    record = read_run_record(run.folder)
    measured = [event for event in record.kind("validation") if event["step"] == step]
    if measured:
        facts |= {name: _finite(measured[-1].get(name)) for name in STATISTICS}
    return facts | {"floor": _finite(record.floor)}


def _finite(value: Any) -> float | None:
    found = number(value)
    return found if np.isfinite(found) else None
