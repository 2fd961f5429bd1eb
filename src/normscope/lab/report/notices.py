"""What one should know of an outcome before believing it."""

from collections.abc import Sequence

from normscope.lab.outcome import Outcome
from normscope.lab.report.charts import OF_EACH
from normscope.lab.tuning import best_lr_at_edge
from normscope.lab.verdict import CONFIDENCE
from normscope.render.chart import Chart


def notices(outcome: Outcome) -> list[str]:
    """Sentences; none if there is nothing to mind."""
    said = []
    guessing = _guessing(outcome)
    if guessing:
        runs = len(outcome.runs.seeds)
        found = ", ".join(f"{many} of {runs} with {name}" for name, many in guessing.items())
        said.append(f"Runs no better than guessing, which count as guessing and no worse: {found}.")
    edge = best_lr_at_edge(outcome.tuned)
    if edge:
        found = ", ".join(f"{name} ({outcome.runs.lrs[name]:g})" for name in edge)
        said.append(f"The best rate lies at the edge of what was tried, so that a better one may lie beyond: {found}.")
    return said


def figures_notice(outcome: Outcome, charts: Sequence[Chart]) -> list[str]:
    """What has to be said below the figures; empty if there is nothing."""
    if not charts:
        return ["The figures of these runs cannot be drawn as the claim draws them now; run it again."]
    wider = any(answer.confidence is not None and answer.confidence > CONFIDENCE for answer in outcome.answers)
    if wider and any(line.interval_label == OF_EACH for chart in charts for line in chart.lines):
        return [f"Bars and bands of each mean by itself are at {CONFIDENCE:.0%}; the verdict goes by those below."]
    return []


def _guessing(outcome: Outcome) -> dict[str, int]:
    """How many runs of a variant learnt nothing, of those variants that have any."""
    counts = {name: sum(bool(run.get("guessing")) for run in runs) for name, runs in outcome.runs.metrics.items()}
    return {name: number for name, number in counts.items() if number}
