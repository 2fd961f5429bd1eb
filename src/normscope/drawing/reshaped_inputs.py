"""How a model takes its inputs: one that is only used in another shape is drawn with the box that gives it that shape.

Elsewhere a view is no box, and the arrow has the shape that arrives. At the entrance the shape that the caller gives
would be nowhere: an image that is cut into patches would look as if it were given as patches.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from normscope.tracing.trace import ModelTrace, Op, TensorRef


@dataclass(frozen=True)
class ReshapedInput:
    """An input that is used in another shape: what the caller gives, and the views on its way."""

    argument: TensorRef
    views: tuple[str, ...]


def reshaped_inputs(trace: ModelTrace, is_view: Callable[[Op], bool]) -> dict[int, ReshapedInput]:
    """The inputs that are used in one other shape alone, by the number of the last view of each."""
    ways: dict[int, ReshapedInput] = {}  # by view: where it comes from
    uses: defaultdict[TensorRef, set[int | None]] = defaultdict(set)
    given = {value.argument: value for value in trace.inputs}

    def way_to(value: TensorRef) -> ReshapedInput | None:
        if value.argument in given:
            return ReshapedInput(given[value.argument], ())
        return ways.get(-1 if value.op is None else value.op)

    for op in trace.needed_ops:
        sources = [(value, way) for value in op.inputs if (way := way_to(value)) is not None]
        if is_view(op) and len(sources) == 1:
            value, way = sources[0]
            named = op.function if op.shape != value.shape and op.function not in way.views else ""
            ways[op.index] = ReshapedInput(way.argument, (*way.views, *([named] if named else [])))
            continue
        for value, way in sources:
            uses[way.argument].add(value.op)
    last = way_to(trace.output)
    if last is not None:
        uses[last.argument].add(trace.output.op)
    found = {}
    for argument, ops in uses.items():
        index = ops.pop()
        if not ops and index is not None and trace.ops[index].shape != argument.shape:
            found[index] = ways[index]
    return found
