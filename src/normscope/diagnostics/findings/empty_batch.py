"""A batch without samples. Like NaN, it leaves no statistics that other checks could use."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check

EMPTY_BATCH = FindingKind("""
empty-batch: the batch is empty: the {what} has no elements
why: An empty batch has no values to check.
fix: pass a batch with at least one sample; check the filter, slice or data loader that produced this one
""")


@check("blocking")
def check_empty_batch(view: RecordView) -> Iterator[Finding]:
    for outer in view.ran[:1]:
        for what, shapes, stats in (
            ("model's input", outer.input_shapes, outer.input),
            ("model's output", outer.output_shapes, outer.output),
        ):
            # Later calls may have had elements.
            has_elements = stats is not None and (stats.count or stats.non_finite)
            if shapes and all(0 in shape for shape in shapes) and not has_elements:
                yield EMPTY_BATCH.found_in(outer, {"shape": " x ".join(map(str, shapes[0]))}, what=what)
                return
