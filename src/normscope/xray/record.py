"""What an x-ray keeps: plain figures, no tensors. Everything else (findings, pictures, comparisons) is made from this.

A record is a value: it can be saved as JSON, loaded on a machine without the model, and compared with another.
"""

from dataclasses import dataclass, field

VERSION = 1
"""Raised whenever a field changes its meaning; a record of a later version is refused by name."""

PRINTS = 4
"""How many numbers the prints of a tensor are; see `prints.py`."""


@dataclass(frozen=True)
class Signal:
    """The figures of some numbers, over all calls and batches. Those that are not finite are counted and left out.

    Args:
        count: how many finite numbers there were.
        mean, rms, variance: theirs.
        least, greatest: the extremes; 0 if there were no numbers.
        kurtosis: 3 for a normal distribution, more where a few numbers stick out.
        zeros, unreal: the share that is zero; the share that is infinite or not a number.
    """

    count: int
    mean: float
    rms: float
    variance: float
    least: float
    greatest: float
    kurtosis: float
    zeros: float
    unreal: float

    @property
    def largest(self) -> float:
        """The largest size."""
        return max(abs(self.least), abs(self.greatest))


@dataclass(frozen=True)
class Units:
    """The units of an activation, or the features that a linear layer reads: one for each place of an axis.

    Args:
        count: how many there are.
        seen: how many values of each.
        dead: how many were zero all the time.
        saturated: how many were at the flat ends of their function all the time; None if it has none.
        median_rms: the middle one of their sizes.
        outliers: the largest ones: their number, their rms and their largest size, the largest first.
        after: where the activation stands at several places, the one that feeds it at the place these are from, which
            is the one with the most units that do nothing; else None.
    """

    count: int
    seen: int
    dead: int
    saturated: int | None
    median_rms: float
    outliers: tuple[tuple[int, float, float], ...]
    after: str | None = None


@dataclass(frozen=True)
class Attention:
    """How sharply tokens looked at others, over a sample of the queries.

    Args:
        heads: how many.
        keys: the most keys that a query could see.
        entropy: of each head, the mean of entropy / ln(keys that are seen): 1 looks everywhere alike, 0 at one token.
        sharpest: the share of queries that give more than 99% to one key, of each head.
        spread: the standard deviation of the scores that softmax was given, where they could be seen.
        future: the largest weight that a query gave to a later key; None where that cannot be told.
    """

    heads: int
    keys: int
    entropy: tuple[float, ...]
    sharpest: tuple[float, ...]
    spread: float | None
    future: float | None


@dataclass(frozen=True)
class Join:
    """A place where a branch is added to the stream that goes round it.

    Args:
        stream, branch, total: the rms of what was there, of what was added, of the sum.
        from_stream, from_branch: the modules that made the two, if known.
        normalized: the norm that the sum goes into, and whose output is the stream from there on; None for none.
    """

    stream: float
    branch: float
    total: float
    from_stream: str | None
    from_branch: str | None
    normalized: str | None = None


@dataclass(frozen=True)
class NormFigures:
    """What is particular to a normalization layer.

    Args:
        eps: what it adds under the root; None if it is not known.
        input_variance: the variance (or, if it does not centre, the mean square) that eps is added to: the median
            over the groups that share a statistic, as far as it could be measured; else of the whole input.
        shares: the axes of the input along which a change at one place moves the output at others, found by trying;
            None where it was not tried.
        removes_bias: whether a constant added to each channel leaves the output as it was, found by trying.
        values: how many numbers share one statistic, in the middle one of the calls; None if not known.
        drift: how far the running statistics are from those of the batches that were seen, in the middle one of its
            channels: in standard deviations for the mean, as a ratio (1 or more) for the variance; None if it keeps
            none.
        tracked: how many batches its running statistics have seen; None if it keeps none.
        padding: the share of places whose features are all alike at the end of texts of unequal length.
        gain_mean, gain_spread: of its weight; None if it has none.
        bears_silence: whether zeros come out finite, in the type of its input, found by trying: eps has not rounded
            away.
    """

    eps: float | None
    input_variance: float
    shares: tuple[int, ...] | None
    removes_bias: bool | None
    values: int | None
    drift: tuple[float, float] | None
    tracked: int | None
    padding: float
    gain_mean: float | None
    gain_spread: float | None
    bears_silence: bool | None = None


@dataclass(frozen=True)
class Parameter:
    """A weight of a module.

    Args:
        name: its own, without the module's.
        shape, dtype: as torch has them.
        trained: whether it asks for a gradient.
        values: its figures at the end.
        gradient: those of its gradient; None if none came.
        update: the rms of its change by one step over its own rms, 0 if that was zero; None if no step was seen.
        optimised: whether an optimiser that stepped has it; None if none stepped.
        same_as: the full name of the parameter that it is tied to (the same memory), if it comes later than that one.
        fingerprint: of its bytes; equal for weights that are copies. None for constants such as zeros.
        rows_alike: whether all its rows are the same, so that its units can never differ.
        predicted_gain: sqrt(fan_in * mean of squares), by which a linear layer scales what is random to it.
        change: the rms of its change by one step; None if no step was seen.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    values: Signal
    gradient: Signal | None
    update: float | None
    optimised: bool | None
    same_as: str | None
    fingerprint: str | None
    rows_alike: bool
    predicted_gain: float | None
    change: float | None = None


@dataclass(frozen=True)
class Module:
    """One module of the model; or a function, such as relu, that is called inside of one.

    Args:
        name: as `named_modules` has it, "" for the model itself; of a function `blocks.0.mlp.relu()`.
        kind: its class, or the function's name.
        is_function: whether it is a function.
        order: the place of its first call among all; None if it never ran.
        calls: how often it was called, over all batches.
        same_as: the first name of the same module, if it has several.
        inputs, outputs: the shapes of its tensors at the first call.
        dtype: of its first output.
        training: its mode at the first call.
        flops: multiplications and additions of one batch, its children's included; None if not counted.
        bytes: of its outputs, of one batch.
        entering, output, gradient: what came in, what came out, and the loss's gradient of what came out.
        saturated: the share of outputs at the flat ends of a bounded function; None for other modules.
        made_unreal: whether it made infinite numbers, or none, of finite inputs and finite weights.
        made_unreal_gradient: the same on the way back.
        given_unreal: whether it was given NaN or plus infinity. (Minus infinity is what masks are made of.)
        only_hides: whether all that was not finite in its outputs was minus infinity.
        fed_by: the modules whose outputs it was given, as they were or seen from another side.
        units, features: of its output if it is an activation; of its input if it is linear.
        norm, attention, joins: what is particular to these.
        parameters: its own, without its children's.
        by_call: the rms of the output of each call in the first batch, if there were several.
        prints, gradient_prints: of the output and of its gradient; see `prints.py`. The difference of two outputs'
            prints, over their rms, is about the relative difference of the outputs.
        entering_prints: of what came in, if it came from outside of the model.
    """

    name: str
    kind: str
    is_function: bool = False
    order: int | None = None
    calls: int = 0
    same_as: str | None = None
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    training: bool | None = None
    flops: int | None = None
    bytes: int = 0
    entering: Signal | None = None
    output: Signal | None = None
    gradient: Signal | None = None
    saturated: float | None = None
    made_unreal: bool = False
    made_unreal_gradient: bool = False
    given_unreal: bool = False
    only_hides: bool = False
    fed_by: tuple[str, ...] = ()
    units: Units | None = None
    features: Units | None = None
    norm: NormFigures | None = None
    attention: Attention | None = None
    joins: tuple[Join, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    by_call: tuple[float, ...] = ()
    prints: tuple[float, ...] = ()
    gradient_prints: tuple[float, ...] = ()
    entering_prints: tuple[float, ...] = ()

    @property
    def parameter_count(self) -> int:
        """How many numbers its own parameters have; those that are tied to earlier ones do not count."""
        total = 0
        for parameter in self.parameters:
            size = 1
            for length in parameter.shape:
                size *= length
            total += 0 if parameter.same_as else size
        return total


@dataclass(frozen=True)
class Loss:
    """A cross-entropy that was computed while the x-ray looked.

    Args:
        value: the first one.
        classes: how many classes there were to choose from.
    """

    value: float
    classes: int


@dataclass(frozen=True)
class Step:
    """A step of an optimiser: its class, the largest learning rate, which step of its life it was, and warm-up."""

    optimiser: str
    lr: float
    number: int | None
    rises_to: float | None
    """The rate that its schedule has as its full one, if there is a schedule."""


@dataclass(frozen=True)
class Record:
    """An x-ray of a model.

    Args:
        model: its class.
        modules: all of them, in the order of `named_modules`, functions after the module that called them.
        batches, backwards, steps: how many forward passes of the whole model, backward passes, and optimiser's steps.
        skipped_steps: how many more a GradScaler left out, since a gradient was not finite.
        strange_steps: how many more were made by optimisers that have none of the model's weights, but others of the
            very same shapes, such as those of an older copy.
        losses: the cross-entropies that were seen.
        notices: what could not be seen, and why.
        broken_off: whether the block ended with an error, so that what comes after it was not seen.
        normscope, torch: versions.
        version: of this format.
    """

    model: str
    modules: tuple[Module, ...]
    batches: int
    backwards: int
    steps: tuple[Step, ...] = ()
    losses: tuple[Loss, ...] = ()
    notices: tuple[str, ...] = ()
    normscope: str = ""
    torch: str = ""
    label: str = ""
    broken_off: bool = False
    skipped_steps: int = 0
    strange_steps: int = 0
    version: int = field(default=VERSION)

    def __getitem__(self, name: str) -> Module:
        """The module of this name."""
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(name)

    @property
    def ran(self) -> list[Module]:
        """Those that ran, in the order of their first call."""
        return sorted((module for module in self.modules if module.order is not None), key=_order)

    @property
    def parameter_count(self) -> int:
        return sum(module.parameter_count for module in self.modules if module.same_as is None)


def _order(module: Module) -> int:
    assert module.order is not None
    return module.order
