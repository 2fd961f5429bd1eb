"""What is around a model: wrappers of torch.compile, DataParallel and DistributedDataParallel, or shards of FSDP2."""

import sys
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from normscope.diagnostics.collect.collectives import has_other_ranks
from normscope.diagnostics.collect.session import XraySession
from normscope.tracing.sharded import is_dtensor, is_sharded_module, mesh_ranks, shard_name

_SHARE = "the statistics cover this process's share of the batch"
_REDUCED = "gradients of parameters are those after the reduction over {ranks} ranks"
_SHARDED = (
    "fully_shard: weights are measured whole, as of the last forward pass, gradients whole but before the reduction, "
    f"updates on the shard of this rank; otherwise {_SHARE}"
)


class ParallelWrapper:
    """How a model is distributed over ranks, and which of its passes were distributed.

    Args:
        model: the model as the user has it.
        session: the session of the x-ray.
    """

    def __init__(self, model: nn.Module, session: XraySession) -> None:
        self._session = session
        self.inner = model
        """The model without wrappers."""
        self._ddp: DistributedDataParallel | None = None
        self._reduced: set[int] = set()
        self.passes = self.passes_outside = self.passes_unsynced = 0
        """Forward passes with gradients; of these, those that did not go through DDP, and those within no_sync()."""
        self._is_accumulating = False
        self._unwrap()
        self._nested = [m for m in self.inner.modules() if isinstance(m, DistributedDataParallel)]
        for wrapper in self._nested:
            self._add(wrapper)
        self.is_sharded = any(map(is_sharded_module, self.inner.modules()))
        session.has_dtensors = self.is_sharded or any(map(is_dtensor, self.inner.parameters()))
        if self.is_sharded:
            session.notice(_SHARDED)

    def _unwrap(self) -> None:
        while True:
            if isinstance(self.inner, compiled_classes()):
                self.inner = self.inner._orig_mod
            elif isinstance(self.inner, DistributedDataParallel):
                self._enter_ddp(self.inner)
                self.inner = self.inner.module
            elif isinstance(self.inner, DataParallel):
                self._session.notice(f"DataParallel: {_SHARE}")
                self.inner = self.inner.module
            else:
                return

    def _enter_ddp(self, wrapper: DistributedDataParallel) -> None:
        self._ddp = wrapper
        self._add(wrapper)

    def _add(self, wrapper: DistributedDataParallel) -> None:
        ranks = dist.get_world_size(wrapper.process_group)
        reduced = f"; {_REDUCED.format(ranks=ranks)}" if ranks > 1 else ""
        self._session.notice(f"DistributedDataParallel: {_SHARE}{reduced}")
        own = wrapper.module.named_parameters()
        self._reduced.update(id(p) for name, p in own if name not in wrapper.parameters_to_ignore)

    @property
    def may_reduce(self) -> bool:
        """Whether a pass may turn out to be one of DDP."""
        return dist.is_available() and dist.is_initialized()

    def begin_pass(self) -> bool:
        """Take note of a forward pass with gradients of the model. Return whether the gradients will be reduced."""
        active: Any = DistributedDataParallel._active_ddp_module
        if self._ddp is None and active is not None and _wraps(active, self.inner):
            self._enter_ddp(active)  # the x-ray was given the model inside
        self.passes += 1
        is_outside = self._ddp is not None and active is not self._ddp
        wrappers = [*self._nested, *([] if self._ddp is None else [self._ddp])]
        is_unsynced = not all(wrapper.require_backward_grad_sync for wrapper in wrappers)
        self.passes_outside += is_outside
        self.passes_unsynced += is_unsynced
        self._is_accumulating = is_unsynced
        return not is_outside and not is_unsynced

    def reduces(self, parameter: Tensor) -> bool:
        """Whether DDP averages the gradient of a parameter over the ranks."""
        return id(parameter) in self._reduced

    @property
    def kind(self) -> str:
        """The name of what distributes the model: `DistributedDataParallel`, `fully_shard`, or nothing."""
        return "fully_shard" if self.is_sharded else "DistributedDataParallel" if self._reduced else ""

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether passes start with the buffers of the first rank."""
        return self._ddp is not None and bool(self._ddp.forward_sync_buffers)

    @property
    def ends_reduced(self) -> bool:
        """Whether the gradients should be the same on all ranks now: those of DDP, unless they still accumulate."""
        return self._ddp is not None and bool(self._ddp.require_backward_grad_sync) and not self._is_accumulating

    @property
    def ignored(self) -> set[str]:
        """Names of parameters and buffers that DDP is told to ignore: they may differ."""
        return set() if self._ddp is None else set(self._ddp.parameters_to_ignore)

    @property
    def is_data_parallel(self) -> bool:
        """Whether each rank should get data of its own. A weight split twice is that of a tensor-parallel model."""
        parameters = [p for p in self.inner.parameters() if is_dtensor(p)]
        return bool(self.kind) and not any("," in shard_name(parameter) for parameter in parameters)

    def ranks(self) -> list[int]:
        """The ranks that the model is distributed over; all ranks if nothing distributes it."""
        if not has_other_ranks():
            return []
        if self._ddp is not None:
            return sorted(dist.get_process_group_ranks(self._ddp.process_group))
        meshes = {rank for p in self.inner.parameters() if is_dtensor(p) for rank in mesh_ranks(p)}
        return sorted(meshes) or list(range(dist.get_world_size()))


def _wraps(wrapper: nn.Module, model: nn.Module) -> bool:
    """Whether this is what the wrapper has inside, also compiled."""
    inner = wrapper.module
    return inner is model or getattr(inner, "_orig_mod", None) is model


def compiled_classes() -> Any:
    """Return the wrapper class of torch.compile; empty while torch._dynamo, which is slow to import, is not loaded."""
    return sys.modules["torch._dynamo"].OptimizedModule if "torch._dynamo" in sys.modules else ()
