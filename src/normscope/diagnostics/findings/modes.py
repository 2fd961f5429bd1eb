"""Training and eval mode: steps in eval mode, evaluation in training mode, dropout that ignores the mode."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.stats.loop import PassesRecord

TRAINED_IN_EVAL = FindingKind("""
trained-in-eval-mode: {eval steps} of {steps} steps of {module} came after forward passes in eval mode
why: In eval mode dropout is off and batch norm uses its running statistics instead of those of the batch, here in
{depends}. {reason}
fix: call model.train() before the training loop, and again after each evaluation
""")
EVALUATED_IN_TRAIN = FindingKind("""
evaluated-in-train-mode: {passes} forward passes of {module} without gradients ran in training mode
why: They come in series between the training steps, as an evaluation does. In training mode {depends} drops values or
uses, and updates, the statistics of the batch, so the results are worse and random, and leak into the model.
fix: call model.eval() before the evaluation, and model.train() after it
""")
DROPOUT_IN_EVAL = FindingKind("""
dropout-in-eval-mode: {function}() with p={p} in {module} is active in eval mode
why: It does not get the mode of the module, so predictions stay random after model.eval().
fix: {fix}
""")
TEACHER_IN_TRAIN = FindingKind("""
teacher-in-train-mode: {who} is not trained, but ran {passes} times in training mode
why: Its weights do not change and it gets no gradient: it only provides outputs, which {depends} makes random or
dependent on the batch.
fix: call .eval() on it once, and after each model.train() of a model that contains it
""")

MIN_EVAL_STEPS = 3
MIN_PASSES = 2
"""Passes without gradients: a single one may initialize something from data."""

MAX_WITH_PASSES, MAX_WITH_SINGLE_PASSES = 0.5, 0.25
"""Fraction of the times between two steps in which there were such passes. If they are part of each step, as for
pseudo labels, self-conditioning or a generator's samples, they belong to the training; single
passes may also come in every second step, by chance."""

MIN_STEPS = 8
"""Steps of others during which a model neither moved nor got a gradient. A generator may wait for five."""


@check("structural")
def check_modes(view: RecordView) -> Iterator[Finding]:
    for passes in view.record.modes:
        if passes.is_outermost and passes.eval_steps >= MIN_EVAL_STEPS:
            yield _trained_in_eval(passes)
        if _is_evaluation(passes) and view.record.loop.backward_passes:
            evidence = {"passes": passes.unused_in_train, "called at": passes.source}
            yield EVALUATED_IN_TRAIN.found_in(passes.module, evidence, depends=_depends(passes))
        if _is_teacher(passes):
            who = f"{passes.kind}, a model outside of this one," if passes.is_outside else module_ref(passes.module)
            evidence = {"passes": passes.active, "steps": passes.steps}
            yield TEACHER_IN_TRAIN.found_in(passes.module, evidence, who=who, depends=_depends(passes))


def _trained_in_eval(passes: PassesRecord) -> Finding:
    steps = passes.eval_steps + passes.train_steps
    reason = "The model is trained without the regularization that it is made with."
    if passes.train_steps:
        reason = "Earlier steps were in training mode: an evaluation has set eval mode, and nothing has set it back."
    return TRAINED_IN_EVAL.found_in(
        passes.module, {"eval steps": passes.eval_steps, "steps": steps}, reason=reason, depends=_depends(passes)
    )


def _depends(passes: PassesRecord) -> str:
    return module_ref(passes.depends_on_mode) if passes.depends_on_mode or not passes.is_outside else "a layer in it"


def _is_evaluation(passes: PassesRecord) -> bool:
    is_series = passes.unused_in_train >= MIN_PASSES and not passes.repeats_input
    limit = MAX_WITH_PASSES if passes.unused_in_train > passes.with_unused else MAX_WITH_SINGLE_PASSES
    is_rare = passes.with_unused <= limit * passes.intervals
    return passes.is_outermost and is_series and is_rare and passes.train_steps >= MIN_PASSES


def _is_teacher(passes: PassesRecord) -> bool:
    is_idle = not passes.is_trained and not passes.moved and passes.steps >= MIN_STEPS
    return is_idle and passes.active >= MIN_STEPS


@check("structural")
def check_dropout_in_eval(view: RecordView) -> Iterator[Finding]:
    for dropout in view.record.eval_dropouts:
        fix = "pass the mode: F.dropout(x, p, training=self.training), or use nn.Dropout, created in __init__ and "
        fix += "stored as an attribute or in nn.ModuleList"
        if dropout.function == "scaled_dot_product_attention":
            fix = "pass dropout_p=p if self.training else 0.0"
        evidence = {"p": dropout.p, "calls": dropout.calls, "called at": dropout.source}
        severity = "note" if dropout.is_explicit else "warning"
        yield DROPOUT_IN_EVAL.found_in(dropout.module, evidence, severity, function=dropout.function, fix=fix)
