"""What the outputs of a model depend on, as experiments after training showed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeakRecord:
    """A model of the next token, in which outputs depend on later tokens.

    Args:
        module: the innermost module whose output before a token changed with the token, while its input before it did
            not.
        token: the position of the token that was changed.
        earliest: the first position with a target whose output changed.
        change: the largest change before the token, relative to the largest change anywhere.
    """

    module: str
    token: int
    earliest: int
    change: float


@dataclass(frozen=True)
class MixingRecord:
    """Samples of a batch whose outputs depend on each other, in eval mode.

    Args:
        module: the innermost module whose output for other samples changed, while its input for them did not.
        kind: its class.
        change: the largest change of another sample's output, relative to that of the changed sample.
        dims: the number of axes of the model's input; one more for integers, which are embedded.
        batches: the number of different batches.
        reduces_batch: a function that the module applied along the first axis, such as softmax; None for others.
        recurrent_over_batch: whether it is one of torch's recurrent or attention layers with batch_first=False.
    """

    module: str
    kind: str
    change: float
    dims: int
    batches: int
    reduces_batch: str | None = None
    recurrent_over_batch: bool = False


@dataclass(frozen=True)
class DependenceRecord:
    """What changed when parts of the input of one call were changed.

    Args:
        module: the module that was called: "" for the model.
        next_token: whether its targets are the next tokens of its input.
        leak: for these, an output that depends on later tokens.
        mixing: outputs that depend on other samples.
        positions_unused: the module of positions or "" for the model, if exchanging tokens only exchanged outputs.
        positions_along_batch: the module that adds something else to each sample of a batch.
    """

    module: str
    next_token: bool = False
    leak: LeakRecord | None = None
    mixing: MixingRecord | None = None
    positions_unused: str | None = None
    positions_along_batch: str | None = None
