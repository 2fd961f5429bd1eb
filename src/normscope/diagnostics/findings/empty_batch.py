"""An empty batch, on which no other check can say anything."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView
from normscope.diagnostics.record import TensorStats


def check_empty_batch(view: RecordView) -> list[Finding]:
    if not view.ran:
        return []
    outer = view.ran[0]
    empty_input, empty_output = _is_empty(outer.input_shapes, outer.input), _is_empty(outer.output_shapes, outer.output)
    if not empty_input and not empty_output:
        return []
    shape = next(iter(outer.input_shapes if empty_input else outer.output_shapes))
    return [
        Finding(
            "empty-batch",
            "warning",
            outer.name,
            f"the batch is empty: the model's {'input' if empty_input else 'output'} has no elements",
            {"shape": " x ".join(map(str, shape))},
            "Without data no problem can show up.",
            "pass a batch with at least one sample; check the filter, slice or data loader that produced this one",
        )
    ]


def _is_empty(shapes: tuple[tuple[int, ...], ...], stats: TensorStats | None) -> bool:
    """Whether none of the tensors has an element, in the first call or any later one."""
    has_elements = stats is not None and (stats.count or stats.non_finite)
    return bool(shapes) and all(0 in shape for shape in shapes) and not has_elements
