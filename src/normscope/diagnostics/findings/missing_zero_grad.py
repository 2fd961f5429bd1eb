"""Gradients that nobody empties."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View

OFTEN = 2
"""Once may be meant, or the end of something; who forgets it forgets it at every step."""


def piled_gradients(view: View) -> list[Finding]:
    piled = view.record.steps_without_zero_grad
    if piled < OFTEN:
        return []
    return [
        Finding(
            "gradients-pile-up",
            "warning",
            "",
            f"{piled} steps were made with gradients that still had those of the step before in them",
            {"steps": piled},
            "Each backward pass adds to the gradients that are there. If nobody empties them, a step follows the sum "
            "of all batches so far: the first ones are never forgotten, and the sum grows with every step.",
            "empty them once for each step: optimiser.zero_grad() before loss.backward()",
        )
    ]
