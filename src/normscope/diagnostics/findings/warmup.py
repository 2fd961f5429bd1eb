"""Deep post-norm models that start at their full learning rate."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, common_parent, module_ref
from normscope.render.formatting import format_short

MIN_ADDITIONS = 11
"""Post-norm additions: those of six blocks of two, as in the original transformer; the last one cannot be recognized,
since no addition follows it. Xiong et al. 2020 ("On Layer Normalization in the Transformer Architecture") train it with
Adam: without warmup it reaches a BLEU of 8.5, with warmup 34."""

MIN_LR = 3e-4
"""The learning rates that failed there were 5e-4 and 1e-3. Fine-tuning at 1e-5 to 1e-4 needs no warmup."""

EARLY = 100
"""Warmup takes hundreds or thousands of steps, so it cannot be over before this one."""

WARMED_UP = 0.5
"""Fraction of the schedule's peak learning rate from which on it is no longer warmup."""


def check_warmup(view: RecordView) -> list[Finding]:
    post = [module for module in view.ran for join in module.joins if join.post_norm is not None]
    others = sum(1 for module in view.ran for join in module.joins if join.post_norm is None)
    if len(post) < MIN_ADDITIONS or others > len(post):
        return []
    for step in view.record.steps:
        adaptive = (
            "adam" in step.optimizer.lower() and "radam" not in step.optimizer.lower()
        )  # RAdam has its own warmup
        full = step.peak_lr is None or step.lr >= WARMED_UP * step.peak_lr
        if adaptive and full and step.lr >= MIN_LR and step.number is not None and step.number <= EARLY:
            place = common_parent([module.name for module in post])
            return [
                Finding(
                    "post-norm-without-warmup",
                    "warning",
                    place,
                    f"post-norm model with {len(post)} additions, and step {step.number} of {step.optimizer} already "
                    f"uses the full learning rate of {format_short(step.lr)}",
                    {"post-norm additions": len(post), "lr": step.lr, "step": step.number},
                    f"In {module_ref(place)} every sum is normalized, so the gradients of the last blocks are large at "
                    "first, and Adam's first steps, whose moving averages have seen few gradients, make training "
                    "diverge.",
                    "warm up the learning rate over the first thousand steps or so: torch.optim.lr_scheduler.LambdaLR("
                    "optimizer, lambda step: min(1, (step + 1) / 1000)); or switch to pre-norm",
                )
            ]
    return []
