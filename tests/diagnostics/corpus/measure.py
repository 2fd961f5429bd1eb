"""Run a case under the x-ray, and compare its findings with its cause."""

import contextlib
from dataclasses import dataclass

import torch

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.probe import Xray
from tests.diagnostics.corpus.causes import CAUSES
from tests.diagnostics.corpus.register import Case


@dataclass(frozen=True)
class Result:
    """What the x-ray said about a case.

    Args:
        case: the case.
        found: warnings and errors, the most severe first.
    """

    case: Case
    found: list[Finding]

    @property
    def named(self) -> list[Finding]:
        """The findings that name the cause."""
        return [finding for finding in self.found if finding.name in CAUSES.get(self.case.cause, ())]

    @property
    def is_good(self) -> bool:
        """Whether the fault was found; of a healthy case, whether nothing was."""
        return bool(self.named) if self.case.cause else not self.found

    @property
    def is_placed(self) -> bool:
        """Whether a finding that names the cause also names a right module."""
        return not self.case.cause or any(finding.module in self.case.modules for finding in self.named)

    def describe(self) -> str:
        mark = (
            "ok  "
            if self.is_good and self.is_placed
            else "PLACE"
            if self.is_good
            else "MISS"
            if self.case.cause
            else "FALSE"
        )
        what = "; ".join(f"{f.severity} {f.name} in {f.module!r}" for f in self.found)
        wanted = f" [{self.case.cause} in {self.case.modules}]" if self.case.cause and mark != "ok  " else ""
        return f"{mark:5} {self.case.kind:8} {self.case.family}.{self.case.name}{wanted}: {what}"


def measure(case: Case, seed: int = 0) -> Result:
    """Build a case, and run it under the x-ray."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, run = case.make()
        with Xray(model) as x, contextlib.suppress(ValueError, RuntimeError):
            run()
    return Result(case, [finding for finding in x.findings if finding.severity != "note"])
