"""What an x-ray records about losses: calls of loss functions, and the scalars that backward starts from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LossFunctionStats:
    """The calls of a loss function, with gradients, from one line of code for outputs of one module.

    Args:
        function: its name; for hand-written losses, `difference`, `product`, `hinge`, `log_likelihood` or `similarity`.
        line: the line that called it, such as `train.py:12`.
        source: the innermost module that returned its input; None if no module returned it unchanged.
        calls: number of calls.
        reduction: its argument.
        input_shape, target_shape: of the first call, or of the first that broadcasts.
        broadcasts: calls in which the input and the target have as many values, but broadcast to more.
        swapped_arguments: calls in which the target requires a gradient, and the input does not.
        transposed: calls in which input and targets were flattened from axes in opposite order.
        classes: size of the axis of classes; 0 without one.
        origin_function: the last function with bounds that computed the input, if any.
        origin_scaled: whether its output was multiplied or shifted before it became the input.
        origin_module: the innermost module that called that function; None if it was called outside of modules.
        low, high: bounds of the input that follow from the function.
        before_function: the same for the input of `origin_function`.
        before_module: as `origin_module`.
        softmax_size: size of the axis of the softmax that computed the input; 0 without one.
        softmax_over_batch: whether that softmax is over the first axis.
        scaled_cosines: whether the input is computed from cosines.
        input_min, input_max: the least and the largest input.
        zeros: fraction of inputs that are cut off at the least value of relu or clamp, on average.
        unnormalized: largest deviation of a row's logsumexp from 0, which log-probabilities have.
        unnormalized_over_batch: the same along the first axis; None without a batch of several.
        sums_to_one: whether all inputs are from 0 to 1, and each row has the sum 1.
        targets: number of targets that were looked at, without ignored ones.
        target_min, target_max: the least and the largest target.
        target_values: number of distinct targets, at most 3.
        target_sum_min, target_sum_max: for targets that are probabilities of classes, their sums.
        ignored: number of ignored targets.
        calls_without_targets: calls in which all targets were ignored.
        calls_equal_to_input: calls in which the targets were the tokens that the model got.
        calls_shifted, calls_shifted_twice: calls in which the target of each token was the next one, or that after it.
        token_length: length of these sequences.
        unreachable: the part of the targets' variance that lies outside of the bounds, on average.
        outside: fraction of targets outside of the bounds.
        label_smoothing: its argument, or what targets with two values show.
        zero_weight_classes: number of classes with weight 0 that are among the targets.
        log_target, log_input: arguments of kl_div and poisson_nll_loss.
        blanks: number of blanks among the targets of ctc_loss.
        too_short: number of sequences of ctc_loss with fewer inputs than targets.
        samples: number of sequences of ctc_loss, or of triplets or pairs.
        equal_pairs: number of pairs of embeddings that are equal.
        swapped: triplets whose positive is farther away than the negative, in the first calls.
        is_mined: whether embeddings of triplets were selected from a tensor, as in hard negative mining.
        values: the first losses.
        least: the least loss.
    """

    function: str
    line: str | None
    source: str | None = None
    calls: int = 0
    reduction: str = "mean"
    input_shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    broadcasts: int = 0
    swapped_arguments: int = 0
    transposed: int = 0
    classes: int = 0
    origin_function: str | None = None
    origin_scaled: bool = False
    origin_module: str | None = None
    low: float | None = None
    high: float | None = None
    before_function: str | None = None
    before_module: str | None = None
    softmax_size: int = 0
    softmax_over_batch: bool = False
    scaled_cosines: bool = False
    input_min: float | None = None
    input_max: float | None = None
    zeros: float = 0.0
    unnormalized: float | None = None
    unnormalized_over_batch: float | None = None
    sums_to_one: bool = False
    targets: int = 0
    target_min: float | None = None
    target_max: float | None = None
    target_values: int = 0
    target_sum_min: float | None = None
    target_sum_max: float | None = None
    ignored: int = 0
    calls_without_targets: int = 0
    calls_equal_to_input: int = 0
    calls_shifted: int = 0
    calls_shifted_twice: int = 0
    token_length: int = 0
    unreachable: float = 0.0
    outside: float = 0.0
    label_smoothing: float = 0.0
    zero_weight_classes: int = 0
    log_target: bool = False
    log_input: bool = True
    blanks: int = 0
    too_short: int = 0
    samples: int = 0
    equal_pairs: int = 0
    swapped: int = 0
    is_mined: bool = False
    values: tuple[float, ...] = ()
    least: float | None = None


@dataclass(frozen=True)
class ObjectiveTerm:
    """A loss that is a part of an objective.

    Args:
        loss: index in `XrayRecord.loss_functions`.
        factor: what it is multiplied by in the objective; None if that is no constant.
        is_sum: whether it is a sum over samples rather than a mean.
        is_signed: whether it is a plain difference, without a square or the like.
        is_weighted: whether the factor is that of some samples only, because they have weights.
    """

    loss: int
    factor: float | None
    is_sum: bool = False
    is_signed: bool = False
    is_weighted: bool = False


@dataclass(frozen=True)
class ObjectiveStats:
    """A scalar that backward passes start from, on one line of code.

    Args:
        line: the line that called backward.
        values: its values, without the scale of a GradScaler; the first ones if there are many.
        backward_passes: number of backward passes.
        steps: optimizer steps that followed them directly, or after further backward passes.
        terms: the losses that it consists of.
        is_complete: whether these are all parts of it that require a gradient.
        empty_masks: passes in which a mask was all zero, or selected nothing, and the value was 0 or NaN.
        mask_line: where that mask was applied.
        batch: samples of a batch, as far as known.
        optimizer: class name of the optimizer whose steps followed.
        lr: its learning rate.
        momentum: its momentum, if it has one.
        adapts: whether the optimizer divides by the size of the gradients, as Adam does.
        maximizes: whether the optimizer maximizes.
        clips: whether gradients were clipped before the steps.
    """

    line: str | None
    values: tuple[float, ...] = ()
    backward_passes: int = 0
    steps: int = 0
    terms: tuple[ObjectiveTerm, ...] = ()
    is_complete: bool = False
    empty_masks: int = 0
    mask_line: str | None = None
    batch: int = 0
    optimizer: str = ""
    lr: float = 0.0
    momentum: float = 0.0
    adapts: bool = False
    maximizes: bool = False
    clips: bool = False
