"""Several optimizers, as in a GAN: parameters in two of them, gradients of the other one's loss."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.steps_without_effect import MIN_STEPS
from normscope.diagnostics.module_names import module_ref

IN_TWO_OPTIMIZERS = FindingKind("""
in-two-optimizers: the parameters of {shared} are also in the optimizer of {module}
why: Both optimizers step, each after backward passes of its own, so the loss of {module} also trains {shared}. As
adversaries, both then lower the loss of one of them.
fix: give each optimizer the parameters of its own model: torch.optim.Adam({shared_code}.parameters())
""")

WRONG_DETACH = FindingKind("""
wrong-detach: {mixed} of {steps} steps of {module} also used gradients of the loss of {other}
why: The backward pass for {other} went through {module} and left gradients there, which its own step adds to those of
its own loss. The two losses work against each other.
fix: detach the output of {module} where only {other} is trained: loss({other_code}(output.detach())); and call
zero_grad() right before each backward pass
""")

MIXED_LEFTOVER = FindingKind("""
missing-zero-grad: {mixed} of {steps} steps of {module} also used gradients that the loss of {other} had left
why: The backward pass for {other} goes through {module} and adds to its gradients. Without a reset, the steps of
{module} follow that loss too.
fix: call zero_grad() of the optimizer of {module} right before its own backward pass
""")


@check("structural")
def check_mixed_gradients(view: RecordView) -> Iterator[Finding]:
    """Find steps with gradients that the loss of another optimizer left."""
    for optimizer in view.record.loop.optimizers:
        if optimizer.mixed >= MIN_STEPS and 2 * optimizer.mixed >= optimizer.steps:
            kind = WRONG_DETACH if optimizer.leads_to else MIXED_LEFTOVER
            other = optimizer.mixed_with
            evidence = {"mixed": optimizer.mixed, "steps": optimizer.steps}
            yield kind.found_in(optimizer.module, evidence, other=module_ref(other), other_code=other or "model")


@check("structural")
def check_shared_parameters(view: RecordView) -> Iterator[Finding]:
    for optimizer in view.record.loop.optimizers:
        if optimizer.shared_with is not None and optimizer.steps >= MIN_STEPS:
            shared = optimizer.shared_with
            evidence = {"steps": optimizer.steps}
            code = shared or "model"
            yield IN_TWO_OPTIMIZERS.found_in(optimizer.module, evidence, shared=module_ref(shared), shared_code=code)
