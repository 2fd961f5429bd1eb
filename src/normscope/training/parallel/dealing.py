"""Deal the parameters of a model to ranks: each updates its own and sends the results to the others.

Muon needs whole matrices: on a part of one it would be another optimizer. So the ranks share its work by matrices.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from normscope.runtime.ranks import Ranks, rank_errors

BUCKET_BYTES = 2**20
"""Smaller tensors are sent together: each message takes a tenth of a millisecond."""


def deal(costs: Mapping[str, float], ranks: int, loads: Sequence[float] | None = None) -> dict[str, int]:
    """Give each item to a rank so that the sums of their costs are about equal: the most expensive first.

    `loads` is what each rank has already.

    >>> deal({"a": 3, "b": 5, "c": 2, "d": 2}, 2)
    {'b': 0, 'a': 1, 'c': 1, 'd': 0}
    """
    total = [0.0] * ranks if loads is None else list(loads)
    owners = {}
    for name in sorted(costs, key=lambda name: -costs[name]):
        owner = min(range(ranks), key=total.__getitem__)
        owners[name], total[owner] = owner, total[owner] + costs[name]
    return owners


class Broadcasts:
    """Sends tensors from their owners to all ranks while this process goes on working.

    All ranks have to start the same broadcasts in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._pending: list[tuple[dist.Work, Tensor, list[Tensor]]] = []

    def start(self, tensors: Iterable[tuple[Tensor, int]]) -> None:
        """Send each tensor from the rank that is given with it."""
        buckets: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        for tensor, owner in tensors:
            key = owner, tensor.dtype
            if tensor.nbytes >= BUCKET_BYTES:
                self._send([tensor], owner)
                continue
            bucket = buckets.setdefault(key, [])
            bucket.append(tensor)
            if sum(one.nbytes for one in bucket) >= BUCKET_BYTES:
                self._send(buckets.pop(key), owner)
        for (owner, _), bucket in buckets.items():
            self._send(bucket, owner)

    def _send(self, bucket: list[Tensor], owner: int) -> None:
        is_alone = len(bucket) == 1 and bucket[0].is_contiguous()
        buffer = bucket[0] if is_alone else torch.cat([tensor.reshape(-1) for tensor in bucket])
        with rank_errors():
            work = dist.broadcast(buffer, owner, async_op=True)
        assert work is not None
        received = [] if is_alone or owner == self._ranks.rank else bucket
        self._pending.append((work, buffer, received))

    def wait(self) -> None:
        """Wait until all tensors have arrived."""
        with rank_errors():
            for work, buffer, received in self._pending:
                work.wait()
                if received:
                    for tensor, values in zip(received, buffer.split([one.numel() for one in received]), strict=True):
                        tensor.copy_(values.view_as(tensor))
        self._pending.clear()
