"""How a model takes its inputs: one that is only used in another shape is drawn with the box that gives it that shape.

Elsewhere a view is no box, and the arrow has the shape that arrives. At the entrance the shape that the caller gives
would be nowhere: an image that is cut into patches would look as if it were given as patches.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from normscope.tracing.trace import Step, Trace, Value


@dataclass(frozen=True)
class Reshaped:
    """An input that is used in another shape: what the caller gives, and the views on its way."""

    argument: Value
    views: tuple[str, ...]


def reshaped_inputs(trace: Trace, is_view: Callable[[Step], bool]) -> dict[int, Reshaped]:
    """The inputs that are used in one other shape alone, by the number of the last view of each."""
    ways: dict[int, Reshaped] = {}  # by view: where it comes from
    uses: defaultdict[Value, set[int | None]] = defaultdict(set)
    given = {value.argument: value for value in trace.arguments}

    def way_to(value: Value) -> Reshaped | None:
        if value.argument in given:
            return Reshaped(given[value.argument], ())
        return ways.get(-1 if value.step is None else value.step)

    for step in trace.wanted:
        sources = [(value, way) for value in step.inputs if (way := way_to(value)) is not None]
        if is_view(step) and len(sources) == 1:
            value, way = sources[0]
            named = step.function if step.shape != value.shape and step.function not in way.views else ""
            ways[step.number] = Reshaped(way.argument, (*way.views, *([named] if named else [])))
            continue
        for value, way in sources:
            uses[way.argument].add(value.step)
    last = way_to(trace.result)
    if last is not None:
        uses[last.argument].add(trace.result.step)
    found = {}
    for argument, steps in uses.items():
        number = steps.pop()
        if not steps and number is not None and trace.steps[number].shape != argument.shape:
            found[number] = ways[number]
    return found
