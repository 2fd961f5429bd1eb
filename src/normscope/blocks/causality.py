"""The check that a causal model does not leak the future through its norms."""

from normscope.blocks.norm.named_norms import NormSpec
from normscope.errors import FutureLeakError


def check_no_future_leak(name: str, norm: NormSpec | None, rank: int, *, allowed: bool) -> None:
    """Reject a norm over (b, s, ...) that shares statistics along s in training, unless allowed.

    Running statistics in eval mode are safe. So is PowerNorm, which uses running statistics in training too; batch norm
    in training is not.
    """
    if norm is not None and norm.mixes_along(1, rank) and not allowed:
        raise FutureLeakError(
            f"{name}={norm.scope!r} brackets the tokens' axis: in training every token would be normalized by "
            f"statistics of the tokens after it, and so be told of the future that it has to predict. Use a scope "
            f"that leaves time out, such as '... [d]'; or, to study the leak, say allow_future_leak=True"
        )
