"""A batch with nothing in it: whatever is wrong with the model cannot be seen by it."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View
from normscope.diagnostics.record import TensorStats


def empty_batch(view: View) -> list[Finding]:
    if not view.ran:
        return []
    outer = view.ran[0]
    given, made = _is_empty(outer.input_shapes, outer.input), _is_empty(outer.output_shapes, outer.output)
    if not given and not made:
        return []
    shape = next(shape for shape in (outer.input_shapes if given else outer.output_shapes))
    return [
        Finding(
            "empty-batch",
            "warning",
            outer.name,
            f"the batch is empty: what the model {'was given' if given else 'gives'} has no numbers",
            {"shape": " x ".join(map(str, shape))},
            "Without numbers there is nothing to look at: a fault would not show.",
            "give it a batch with at least one row; look at the filter, the slice or the loader that made this one",
        )
    ]


def _is_empty(shapes: tuple[tuple[int, ...], ...], signal: TensorStats | None) -> bool:
    """Whether none of the tensors has a number in it, nor had one in any later call."""
    seen = signal is not None and (signal.count or signal.non_finite)
    return bool(shapes) and all(0 in shape for shape in shapes) and not seen
