"""What is wrong with a model: `find(record)` reads an x-ray and names faults, each with its module, figures and fix."""

from normscope.xray.findings.base import SEVERITIES, Finding
from normscope.xray.record import Record

__all__ = ["SEVERITIES", "Finding", "find"]


def find(record: Record) -> list[Finding]:
    """The findings of a record: the most severe first, then in the order in which the model runs."""
    return []
