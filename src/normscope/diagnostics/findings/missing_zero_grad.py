"""Gradients that are never reset between steps."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView

MIN_STEPS = 2
"""Once may be intended; a forgotten zero_grad() affects every step."""


def check_zero_grad(view: RecordView) -> list[Finding]:
    steps = view.record.steps_without_zero_grad
    if steps < MIN_STEPS:
        return []
    return [
        Finding(
            "missing-zero-grad",
            "warning",
            "",
            f"{steps} optimizer steps used gradients that still included those of the previous step",
            {"steps": steps},
            "Each backward pass adds to the existing gradients. Unless they are reset, every step follows the sum over "
            "all batches so far, which keeps growing.",
            "call optimizer.zero_grad() once per step, before loss.backward()",
        )
    ]
