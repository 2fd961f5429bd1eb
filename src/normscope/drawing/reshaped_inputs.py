"""Find inputs that a model only uses in another shape. Their views get a box.

Other views have no box: the arrow shows the shape that arrives. For an input, the original shape would then appear
nowhere: an image that is cut into patches would look as if the input were patches.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from normscope.tracing.trace import ModelTrace, Op, TensorRef


@dataclass(frozen=True)
class ReshapedInput:
    """An input that is used in another shape, and the views that change its shape."""

    argument: TensorRef
    views: tuple[str, ...]


def reshaped_inputs(trace: ModelTrace, is_view: Callable[[Op], bool]) -> dict[int, ReshapedInput]:
    """Return the inputs that are only used in one other shape, by the index of the last view of each."""
    paths: dict[int, ReshapedInput] = {}  # by view
    uses: defaultdict[TensorRef, set[int | None]] = defaultdict(set)
    given = {value.argument: value for value in trace.inputs}

    def path_to(value: TensorRef) -> ReshapedInput | None:
        if value.argument in given:
            return ReshapedInput(given[value.argument], ())
        return paths.get(-1 if value.op is None else value.op)

    for op in trace.needed_ops:
        sources = [(value, path) for value in op.inputs if (path := path_to(value)) is not None]
        if is_view(op) and len(sources) == 1:
            value, path = sources[0]
            name = op.function if op.shape != value.shape and op.function not in path.views else ""
            paths[op.index] = ReshapedInput(path.argument, (*path.views, *([name] if name else [])))
            continue
        for value, path in sources:
            uses[path.argument].add(value.op)
    last = path_to(trace.output)
    if last is not None:
        uses[last.argument].add(trace.output.op)
    found = {}
    for argument, ops in uses.items():
        index = ops.pop()
        if not ops and index is not None and trace.ops[index].shape != argument.shape:
            found[index] = paths[index]
    return found
