"""What can be wrong in a case of the corpus, and the findings that name it."""

CAUSES: dict[str, set[str]] = {
    # losses
    "probabilities where logits are expected": {
        "probabilities-as-logits", "logits-as-probabilities", "loss-arguments-swapped",
    },
    "logits where probabilities are expected": {"logits-as-probabilities", "loss-arguments-swapped"},
    "loss broadcasts predictions against targets": {"loss-broadcasts"},
    "loss is negative but cannot be": {"negative-loss", "logits-as-probabilities", "targets-out-of-range"},
    "loss has no targets left": {"no-targets", "class-weight-zero"},
    "label smoothing hides the labels": {"label-smoothing-too-large"},
    "targets never vary": {"constant-targets"},
    "targets are the inputs": {"targets-equal-inputs", "anchor-equals-positive"},
    "targets are those of another token": {"targets-shifted-twice", "targets-equal-inputs"},
    "targets cannot be reached by the output": {
        "output-out-of-reach", "targets-out-of-range", "softmax-over-one-output",
    },
    "loss grows with the batch": {"summed-loss"},
    "loss is maximized": {"loss-rises", "negative-loss", "loss-maximized", "triplets-swapped"},
    "loss does not depend on the model": {"no-gradient", "constant-loss", "graph-cut", "softmax-over-one-output"},
    "loss scaled by a wrong factor": {"weights-unchanged", "update-too-small", "update-too-large", "loss-scaled"},
    "loss above chance": {"loss-above-chance"},
    # attention and sequences
    "looks at the future": {"leaks-future", "norm-leaks-future"},
    "attention mask is wrong": {"attention-mask", "leaks-future", "non-finite-output", "attention-uniform"},
    "softmax over the wrong axis": {"attention-softmax-axis", "softmax-over-batch"},
    "scores are not scaled": {"attention-unscaled", "attention-collapsed"},
    "positions change nothing": {"positions-unused", "positions-along-batch", "no-gradient"},
    "attention differs from its peers": {"differs-from-peers", "attention-unscaled", "leaks-future", "attention-mask"},
    "attention collapsed or uniform": {"attention-collapsed", "attention-uniform"},
    # the loop
    "steps move nothing": {"weights-unchanged", "update-too-small"},
    "gradients are zeroed before the step": {"weights-unchanged"},
    "optimizer holds other parameters": {"not-in-optimizer", "in-two-optimizers"},
    "scaler skips every step": {"scaler-skips-steps"},
    "gradients are not reset": {"missing-zero-grad"},
    "trains in eval mode": {"trained-in-eval-mode"},
    "evaluates in train mode": {"evaluated-in-train-mode"},
    "dropout ignores eval mode": {"dropout-in-eval-mode"},
    "schedule is too fast or too slow": {"schedule-too-fast", "weights-unchanged", "update-too-small"},
    "weight decay dominates": {"weight-decay-dominates"},
    "eps of the optimizer dominates": {"optimizer-eps-dominates", "update-too-small"},
    "updates are lost to rounding": {"updates-lost-to-rounding", "update-too-small"},
    "clipping always bites": {"clipping-always"},
    "learning rate is too large": {
        "momentum-too-large", "update-too-large", "exploded-weights", "loss-rises", "loss-above-chance",
    },
    "learning rate is too small": {"update-too-small", "weights-unchanged"},
    "betas are swapped": {"betas-swapped"},
    "optimizer is created in each step": {"optimizer-recreated"},
    "steps repeat a gradient": {"steps-repeated"},
    "no warmup": {"post-norm-without-warmup"},
    # the graph and the structure
    "graph is cut": {"no-gradient", "graph-cut"},
    "module never ran": {"never-ran"},
    "module runs twice": {"called-more-often-than-peers", "differs-from-peers"},
    "residual connection is missing": {"missing-residual", "differs-from-peers", "vanishing-gradients"},
    "parameters are not registered": {"unregistered-parameters"},
    "parameters are not in the optimizer": {"not-in-optimizer"},
    "parameters are frozen": {"frozen-parameters", "no-gradient"},
    "no nonlinearity between layers": {"linear-layers-in-a-row"},
    "axes are mixed up": {
        "softmax-over-batch", "mixes-samples", "leaks-future", "norm-leaks-future", "mixes-axes",
        "positions-along-batch",
    },
    "dropout in the wrong place": {"dropout-too-large", "dropout-on-logits"},
    # weights
    "weights are copies": {"duplicate-weights", "identical-units"},
    "weights are tied by mistake": {"shared-parameters", "duplicate-weights"},
    "tied weights came apart": {"untied-weights", "duplicate-weights"},
    "initialization is too large or too small": {
        "abnormal-gain", "exploding-activations", "vanishing-activations", "exploding-gradients",
        "vanishing-gradients", "saturated-units", "dead-units", "uncentered-weights", "outlier-weights",
        "attention-collapsed", "loss-above-chance", "identical-units", "attention-uniform", "exploded-weights",
        "abnormal-bias",
    },
    "weights are zero or all alike": {"zero-gradient", "identical-units", "attention-uniform"},
    "units are dead or saturated": {"dead-units", "saturated-units", "abnormal-bias", "abnormal-gain"},
    "gradients vanish or explode": {
        "vanishing-gradients", "exploding-gradients", "vanishing-activations", "exploding-activations",
    },
    # norms
    "norm over the wrong axes": {
        "norm-leaks-future", "leaks-future", "norm-over-few-values", "norm-over-padding", "mixes-samples",
    },
    "norm has a wrong eps": {"eps-too-large", "eps-too-small"},
    "bias before a norm": {"bias-before-norm"},
    "running statistics are stale": {"stale-running-statistics"},
    "residual stream grows": {"residual-stream-grows", "residual-branch-dominates", "exploding-activations"},
    # data
    "input changes in place": {"input-changed-in-place"},
    "input is not scaled": {"unscaled-input", "loss-above-chance"},
    "input columns are constant": {"constant-input"},
    "rows are all alike": {"collapsed-output", "constant-input"},
    "same batch again and again": {"same-batch-repeated"},
    "padding is learned from": {"trains-on-padding", "norm-over-padding"},
    "labels and inputs do not belong together": {"shuffled-labels", "loss-not-falling"},
    "batches are sorted by class": {"sorted-batches"},
    "batch is empty": {"empty-batch", "no-targets"},
    # pairs of models
    "target network gets gradients": {"target-network-trained"},
    "target network or average never moves": {"copy-never-updated", "copy-updates-original"},
    "target network equals the network": {"copy-equals-original"},
    "generator and discriminator detached the wrong way": {
        "wrong-detach", "no-gradient", "not-in-optimizer", "graph-cut", "in-two-optimizers",
    },
    "teacher in train mode": {"teacher-in-train-mode"},
    # NaN
    "NaN or Inf": {"non-finite-output", "non-finite-gradient", "non-finite-input", "non-finite-weights"},
    "NaN after huge updates": {"update-too-large", "exploded-weights", "non-finite-weights", "non-finite-output"},
    "precision is too low": {
        "non-finite-output", "non-finite-gradient", "eps-too-small", "updates-lost-to-rounding", "scaler-skips-steps",
        "zero-gradient",
    },
}  # fmt: skip
"""The findings that count as naming a cause. Findings that mention only a consequence are not among them."""
