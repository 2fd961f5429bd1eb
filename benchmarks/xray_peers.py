"""What do the x-ray and similar tools report about training loops with a planted fault, and about healthy ones?

PYTHONPATH=src:. python benchmarks/xray_peers.py held_out
PYTHONPATH=src:. python benchmarks/xray_peers.py tuning [FAMILY|KIND|NAME ...]

The loops are those of the corpus in tests/diagnostics/corpus: the held-out half, of which only sums are shown, or the
tuning half, on which the x-ray's thresholds were chosen. A tool that isn't installed is left out:

    pip install torchmortem torchdiag torchlens

torchmortem: `Autopsy`, with its warnings and critical findings; its `step` gets the loss after every optimizer step.
torchdiag: `check_gradients` before the last step. `check_dead_neurons` and `verify_step` run a model on their own.
torchlens: `checks.ChecksSession` with the checks that need no bounds: changes, gradients and weights.
TrainCheck isn't here: it infers invariants from a healthy run of the same script, and these loops have none.
"""

import contextlib
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tests.diagnostics.cases import Run
from tests.diagnostics.corpus.measure import measure
from tests.diagnostics.corpus.register import Case, Half, cases
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normscope.diagnostics.watchers.training_calls import listening

MAX_TEXTS = 3
"""Reports of a tool about a case that are shown."""


def build(case: Case) -> tuple[nn.Module, Run, list[Optimizer]]:
    """Build a case, with the optimizers that it makes."""
    made: list[Optimizer] = []
    make = Optimizer.__init__

    def make_and_keep(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        make(optimizer, *args, **kwargs)
        made.append(optimizer)

    torch.manual_seed(0)
    Optimizer.__init__ = make_and_keep  # type: ignore[method-assign, assignment]
    try:
        model, run = case.make()
    finally:
        Optimizer.__init__ = make  # type: ignore[method-assign]
    return model, run, made


@contextlib.contextmanager
def steps(
    before: Callable[[], object] = lambda: None, after: Callable[[float], object] = lambda _: None
) -> Iterator[None]:
    """Call something before and after each optimizer step, with the last loss."""
    losses = [0.0]

    def hear(event: str, *args: Any) -> None:
        if event == "before_backward" and args[0] and args[0][0].numel() == 1:
            losses.append(float(args[0][0].detach()))

    handles = [
        register_optimizer_step_pre_hook(lambda *_: before()),  # type: ignore[arg-type]
        register_optimizer_step_post_hook(lambda *_: after(losses[-1])),  # type: ignore[arg-type]
    ]
    try:
        with listening(hear), contextlib.suppress(ValueError, RuntimeError):  # as `measure` does
            yield
    finally:
        for handle in handles:
            handle.remove()


def of_normscope(case: Case) -> list[str]:
    result = measure(case)
    mark = "*" if result.named else ""
    return [f"{mark}{finding.name} in {finding.module or 'the model'}" for finding in result.found]


def of_torchmortem(case: Case) -> list[str]:
    from torchmortem import Autopsy

    model, run, made = build(case)
    with Autopsy(model, optimizer=made[0] if made else None) as autopsy, steps(after=lambda x: autopsy.step(loss=x)):
        run()
    report = autopsy.get_report()
    return [finding.title for finding in report.findings if finding.severity.name != "INFO"]


def of_torchdiag(case: Case) -> list[str]:
    import torchdiag

    model, run, _ = build(case)
    found: dict[str, dict[str, Any]] = {}
    with steps(before=lambda: found.update(torchdiag.check_gradients(model))):
        run()
    return [f"{stats['status']} {name}" for name, stats in found.items() if stats["status"] != "OK"]


def of_torchlens(case: Case) -> list[str]:
    from torchlens.checks import ChecksSession

    model, run, made = build(case)
    session = ChecksSession(model, made)
    if made:
        session.register_change_check(action="collect")
        session.register_nonfinite_gradient_check(action="collect")
        session.register_nonfinite_param_check(action="collect")
    session.attach()
    with steps():
        run()
    session.detach()
    return [finding.code for finding in session.report().findings if finding.severity != "info"]


TOOLS: dict[str, Callable[[Case], list[str]]] = {
    "normscope": of_normscope,
    "torchmortem": of_torchmortem,
    "torchdiag": of_torchdiag,
    "torchlens": of_torchlens,
}


def reported(tool: Callable[[Case], list[str]], case: Case) -> list[str]:
    """What a tool reports, each once; its own error counts as nothing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return list(dict.fromkeys(tool(case)))
    except Exception as error:
        return [f"({type(error).__name__} in the tool)"]


def tables(half: Half, chosen: list[str]) -> list[Table]:
    tools = {name: tool for name, tool in TOOLS.items() if importlib.util.find_spec(name) is not None}
    rows = Table("case", "cause", *tools, title="* names the cause", box=None)
    totals: dict[str, dict[str, list[bool]]] = {}
    for case in cases(half):
        if chosen and not {case.family, case.name, case.kind}.intersection(chosen):
            continue
        texts = {name: reported(tool, case) for name, tool in tools.items()}
        shown = [_shorten(found) for found in texts.values()]
        rows.add_row(f"{case.family}.{case.name}", case.cause or f"none ({case.kind})", *shown)
        for name, found in texts.items():
            spoke = any(not text.startswith("(") for text in found)
            totals.setdefault(case.kind, {}).setdefault(name, []).append(spoke)
    summary = Table("cases", *tools, title="cases with a warning or an error", box=None)
    for kind, by_tool in totals.items():
        summary.add_row(kind, *(f"{sum(by_tool[name])} of {len(by_tool[name])}" for name in tools))
    return [summary] if half == "held_out" else [rows, summary]


def _shorten(texts: list[str]) -> str:
    more = f"; {len(texts) - MAX_TEXTS} more" if len(texts) > MAX_TEXTS else ""
    return "; ".join(texts[:MAX_TEXTS]) + more


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    if sys.argv[1:2] not in (["tuning"], ["held_out"]):
        sys.exit(__doc__)
    for one in tables("held_out" if sys.argv[1] == "held_out" else "tuning", sys.argv[2:]):
        Console(width=200).print(one)
