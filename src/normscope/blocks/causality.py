"""What a causal model may not do: tell a token of those after it."""

from normscope.blocks.checks import check_norm
from normscope.blocks.norm.spec import NormSpec
from normscope.errors import FutureLeakError


def sees_the_future(norm: NormSpec | None, rank: int) -> bool:
    """Whether a norm over (b, s, ...) shares statistics along s, the tokens' axis."""
    return norm is not None and norm.brackets(1, rank)


def refuse_future_leak(name: str, norm: NormSpec | None, rank: int, *, allowed: bool) -> None:
    """Refuse a norm that does not fit the rank; and one that brackets time, unless that is allowed.

    The running statistics of eval mode are safe; those of training are not.
    """
    check_norm(name, norm)
    if norm is not None and sees_the_future(norm, rank) and not allowed:
        raise FutureLeakError(
            f"{name}={norm.scope!r} brackets the tokens' axis: in training every token would be normalized by "
            f"statistics of the tokens after it, and so be told of the future that it has to predict. Use a scope "
            f"that leaves time out, such as '... [d]'; or, to study the leak, say allow_future_leak=True"
        )
