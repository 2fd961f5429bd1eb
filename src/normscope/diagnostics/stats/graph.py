"""What a record stores of the flow of values, compared with that of gradients."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphCut:
    """A place where values went on, but the graph of autograd did not.

    Args:
        reason: `no_grad`, `detach`, `data`, `integers`, `zero slope`, `python`, `numpy`, `numpy?` (an array of the
            same shape came back), `copy`, `in place`, `frozen`, `no gradient` or
            `sample` (parameters of a distribution, read by `module` as samples that pass no gradient on).
        function: the function that returned values without a gradient.
        module: the innermost module that called it; "" outside of all.
        line: the line of code, as `train.py:12`; None if unknown.
        parameters: the trainable parameters that got no gradient because of it, although these values reached a loss.
    """

    reason: str
    function: str
    module: str
    line: str | None
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class GraphStats:
    """The flow of parameter values to losses, the tensors that backward passes started from.

    Args:
        backward_calls: calls of backward.
        calls_without_model: those from which autograd reaches no parameter of the model.
        without_graph: those whose loss required no gradient, so that they raised an error.
        line: the line of the first call of the last two kinds.
        carries_values: whether that loss was computed from values of the model's parameters.
        cuts: places that separate parameters from every loss.
        unused: modules whose parameters were used, but from which nothing reached a loss.
        set_by_hand: parameters that changed although they got no gradient.
        copies: parameters that began with the same values as others, such as those of a target network.
    """

    backward_calls: int = 0
    calls_without_model: int = 0
    without_graph: int = 0
    line: str | None = None
    carries_values: bool = False
    cuts: tuple[GraphCut, ...] = ()
    unused: tuple[str, ...] = ()
    set_by_hand: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
