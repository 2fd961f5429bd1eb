"""What a record stores of a training loop: its optimizers and its schedules, the modes of its passes, its copies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerRecord:
    """An optimizer that stepped, or was told to reset gradients, and what its steps did.

    Args:
        kind: class name.
        module: the outermost module with the parameters of the model that it holds and no others; if there is none, the
            innermost with all of them.
        parameters: number of the model's parameters that it holds.
        is_frozen: whether none of them is trainable.
        is_torch: whether its class comes from torch.
        steps: number of steps.
        recreated: how often it was replaced by a new one of the same kind with the same parameters.
        scheduled: number of steps of its schedulers.
        shared_with: the module of another optimizer, all of whose parameters this one steps too, after backward passes
            of its own; None without one.
        clipped: size of nearly all gradient elements, if they have the same, as after clipping by value; else None.
        discarded: how often gradients were reset that no step had used.
        without_gradient: steps at which all its parameters had no gradient, or one of zero.
        zeroed: those of them for which a backward pass had given it nonzero gradients.
        repeated: steps that used the same gradients as the step before, without a backward pass between.
        unchanged: steps that changed none of the values that were looked at.
        mixed: steps that used the gradients of a backward pass which another optimizer had already used, together
            with those of a later one, which is its own.
        mixed_with: the module of that other optimizer.
        leads_to: whether its own backward passes go through the module of the other one.
        lr: for each step, the largest learning rate of its groups.
        peak_lr: the full learning rate of its schedule; None without a schedule.
        weight_decay, momentum, beta1, beta2, eps: settings of its first group; None if it has none.
        is_decoupled: whether weight decay is applied to the weights rather than added to the gradients.
        is_adaptive: whether it divides by the root of squared gradients.
        decay_share: weight decay over gradient, as parts of an update (decoupled), or as gradients; the median over
            weight matrices, the largest over the steps that were measured.
        eps_share: eps over the root of the average squared gradient, median over the weight matrices.
        moved: of half precision weights with a gradient, the fraction that a step changed, the largest seen.
    """

    kind: str
    module: str
    parameters: int
    is_frozen: bool = False
    is_torch: bool = True
    steps: int = 0
    recreated: int = 0
    scheduled: int = 0
    shared_with: str | None = None
    clipped: float | None = None
    discarded: int = 0
    without_gradient: int = 0
    zeroed: int = 0
    repeated: int = 0
    unchanged: int = 0
    mixed: int = 0
    mixed_with: str = ""
    leads_to: bool = False
    lr: tuple[float, ...] = ()
    peak_lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    is_decoupled: bool = False
    is_adaptive: bool = False
    decay_share: float | None = None
    eps_share: float | None = None
    moved: float | None = None


@dataclass(frozen=True)
class ScheduleRecord:
    """A learning rate scheduler that stepped.

    Args:
        kind: class name.
        optimizer: index of its optimizer in `LoopRecord.optimizers`; None if unknown.
        steps: how often it stepped.
        source: the line that stepped it.
        position: its step count at the end.
        period: the steps that its shape is made for (`T_max`); None for most.
    """

    kind: str
    optimizer: int | None
    steps: int
    source: str | None = None
    position: int | None = None
    period: int | None = None


@dataclass(frozen=True)
class ClippingRecord:
    """Calls of `clip_grad_norm_` with the same limit from the same line.

    Args:
        limit: the largest norm allowed.
        calls: number of calls.
        smallest, largest: the norms before clipping.
        source: the line that called it.
    """

    limit: float
    calls: int
    smallest: float
    largest: float
    source: str | None = None


@dataclass(frozen=True)
class LoopRecord:
    """The calls of a training loop.

    Args:
        optimizers: the optimizers that hold parameters of the model.
        schedules: the schedulers that stepped.
        clipping: calls of `clip_grad_norm_`.
        backward_passes: number of backward passes.
        discarded: how often `zero_grad()` of a module reset gradients that no step had used.
        scaler_updates: updates of a GradScaler.
        is_full_batch: whether most passes had the same input tensor as the one before.
    """

    optimizers: tuple[OptimizerRecord, ...] = ()
    schedules: tuple[ScheduleRecord, ...] = ()
    clipping: tuple[ClippingRecord, ...] = ()
    backward_passes: int = 0
    discarded: int = 0
    scaler_updates: int = 0
    is_full_batch: bool = False


@dataclass(frozen=True)
class PassesRecord:
    """The modes of the passes of one module that the training loop calls, and that has dropout or batch norm.

    Args:
        module: its name; "" also for one outside of the model.
        kind: class name.
        is_outside: whether it is not part of the model.
        is_outermost: whether the loop calls it, and not another module.
        depends_on_mode: the first of its modules that behave differently in training.
        train_steps: steps of its parameters after passes with gradients in training mode.
        eval_steps: the same after passes only in eval mode.
        active: passes in training mode.
        unused_in_train: passes in training mode without gradients, in a series between two steps.
        intervals, with_unused: times between two steps that had a pass with gradients; of these, how many also had a
            pass in training mode without gradients.
        repeats_input: whether two passes without gradients in a row had the same input.
        is_trained: whether it got gradients or an optimizer holds it.
        moved: whether its weights changed.
        steps: steps of all optimizers.
        source: the line of the first of those passes without gradients, or of those in eval mode.
    """

    module: str
    kind: str
    is_outside: bool
    is_outermost: bool
    depends_on_mode: str
    train_steps: int = 0
    eval_steps: int = 0
    active: int = 0
    unused_in_train: int = 0
    intervals: int = 0
    with_unused: int = 0
    repeats_input: bool = False
    is_trained: bool = False
    moved: bool = False
    steps: int = 0
    source: str | None = None


@dataclass(frozen=True)
class EvalDropout:
    """A dropout that was active in eval mode.

    Args:
        module: the innermost module that called it.
        function: the function.
        p: the probability.
        source: the line that called it.
        is_explicit: whether that line says `training=True`.
        calls: number of calls.
    """

    module: str
    function: str
    p: float
    source: str | None
    is_explicit: bool
    calls: int


@dataclass(frozen=True)
class CopyRecord:
    """Two modules of the same shape, of which one, by its name, is a copy of the other: a target network, an average.

    Args:
        module: name of the copy.
        original: name of the other one.
        is_same: whether they share their parameters.
        was_equal: whether they were equal at first.
        original_steps: steps that changed the original.
        moved: times between two of these steps in which the copy changed.
        written: times between two of these steps in which something wrote to the copy.
        equal: times between two of these steps in which the copy changed, and then was equal to the original.
        original_mixed: times between two of these steps in which the original moved towards the copy, part of the way.
        got_gradient: whether the copy's parameters got nonzero gradients.
        in_optimizer: whether an optimizer that stepped holds parameters of the copy.
    """

    module: str
    original: str
    is_same: bool = False
    was_equal: bool = False
    original_steps: int = 0
    moved: int = 0
    written: int = 0
    equal: int = 0
    original_mixed: int = 0
    got_gradient: bool = False
    in_optimizer: bool = False


@dataclass(frozen=True)
class BootstrapRecord:
    """A regression whose target is a constant plus a factor times an output of a model, and has a gradient.

    Args:
        function: the loss function.
        calls: number of calls.
        source: the line of the first one.
    """

    function: str
    calls: int
    source: str | None
