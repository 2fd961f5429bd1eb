"""What a causal model may not do: tell a token of those after it."""

from normscope.blocks.norm.spec import NormSpec
from normscope.errors import FutureLeakError


def check_no_future_leak(name: str, norm: NormSpec | None, rank: int, *, allowed: bool) -> None:
    """Refuse a norm over (b, s, ...) that does not fit the rank; and one that looks along s, unless that is allowed.

    The running statistics of eval mode are safe, and so is PowerNorm, which divides by those in training too; what
    batch norm does in training is not.
    """
    if norm is not None and norm.mixes_along(1, rank) and not allowed:
        raise FutureLeakError(
            f"{name}={norm.scope!r} brackets the tokens' axis: in training every token would be normalized by "
            f"statistics of the tokens after it, and so be told of the future that it has to predict. Use a scope "
            f"that leaves time out, such as '... [d]'; or, to study the leak, say allow_future_leak=True"
        )
