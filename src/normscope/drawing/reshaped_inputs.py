"""Find inputs that a model only uses in another shape. Their views get a box.

Other views have no box: the arrow shows the shape that arrives. For an input, the original shape would then appear
nowhere: an image that is cut into patches would look as if the input were patches.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from normscope.tracing.trace import ModelTrace, Op, TensorRef


@dataclass(frozen=True)
class ReshapedInput:
    """An input that is used in another shape, and the views that change its shape."""

    argument: TensorRef
    views: tuple[str, ...]


def reshaped_inputs(trace: ModelTrace, is_view: Callable[[Op], bool]) -> dict[int, ReshapedInput]:
    """Return the inputs that are only used in one other shape, by the index of the last view of each."""
    paths = {(value.argument, value.op): ReshapedInput(value, ()) for value in trace.inputs}  # by origin
    uses: defaultdict[TensorRef, set[int | None]] = defaultdict(set)

    def use(value: TensorRef) -> None:
        if (value.argument, value.op) in paths:
            uses[paths[value.argument, value.op].argument].add(value.op)

    for op in trace.needed_ops:
        sources = [value for value in op.inputs if (value.argument, value.op) in paths]
        if is_view(op) and len(sources) == 1:
            path = paths[sources[0].argument, sources[0].op]
            is_new = op.shape != sources[0].shape and op.function not in path.views
            paths[None, op.index] = replace(path, views=(*path.views, op.function)) if is_new else path
        else:
            for value in sources:
                use(value)
    use(trace.output)
    found = {}
    for argument, ops in uses.items():
        index = ops.pop()
        if not ops and index is not None and trace.ops[index].shape != argument.shape:
            found[index] = paths[None, index]
    return found
