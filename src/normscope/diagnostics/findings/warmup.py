"""Deep post-norm models that start at their full learning rate."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, holder, short

DEEP = 11
"""Post-norm additions: those of six blocks of two, as of the first transformer, the last of which no addition follows
that would tell it. Xiong et al. 2020 ("On Layer Normalization in the Transformer Architecture") train it with Adam:
without warm-up it comes to a BLEU of 8.5, with it to 34."""

RATE = 3e-4
"""The rates that failed there were 5e-4 and 1e-3. Fine-tuning at 1e-5 to 1e-4 needs no warm-up."""

EARLY = 100
"""Warm-up takes hundreds or thousands of steps: before this one it cannot be over."""

RISEN = 0.5
"""The share of the schedule's full rate that is no warm-up any more."""


def cold_start(view: View) -> list[Finding]:
    posts = [module for module in view.ran for join in module.joins if join.post_norm is not None]
    others = sum(1 for module in view.ran for join in module.joins if join.post_norm is None)
    if len(posts) < DEEP or others > len(posts):
        return []
    for step in view.record.steps:
        adaptive = "adam" in step.optimizer.lower() and "radam" not in step.optimizer.lower()  # RAdam warms up itself
        full = step.peak_lr is None or step.lr >= RISEN * step.peak_lr
        if adaptive and full and step.lr >= RATE and step.number is not None and step.number <= EARLY:
            place = holder([module.name for module in posts])
            return [
                Finding(
                    "post-norm-without-warmup",
                    "warning",
                    place,
                    f"{len(posts)} post-norm additions, and step {step.number} of {step.optimizer} is at the full rate "
                    f"of {short(step.lr)}",
                    {"post-norm additions": len(posts), "rate": step.lr, "step": step.number},
                    f"In {called(place)} every sum is normalised, so the gradients of the last blocks are large at the "
                    f"start, and Adam's first steps, whose averages have seen few gradients, throw them off.",
                    "raise the rate from zero over the first thousand steps or so: torch.optim.lr_scheduler.LambdaLR("
                    "optimiser, lambda step: min(1, (step + 1) / 1000)); or put the norms into the branches (pre-norm)",
                )
            ]
    return []
