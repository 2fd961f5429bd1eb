"""Seconds of a training step on a cluster: a model of a few lines, with its assumptions in the open.

Forward and backward passes run at an assumed part of the peak. A message takes its bytes divided by the slowest link of
the ring, and a latency for each level of a tree. Messages hide behind the computation that runs at the same time:

- ddp: gradients are added up during the backward pass, all but the last bucket; updated parameters are sent while
  matrices are being orthogonalized.
- fsdp: a block's parameters arrive while the block before is computed, and its gradients leave while the next is.
  The gradients and updates of Muon's matrices wait for each other, so nothing hides them.

Elementwise work (AdamW, norms, copies) is a part of what `mfu` leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.models.gpt import GPT
from normscope.planning.gpus import Cluster, MatmulDtype
from normscope.planning.layout import Layout
from normscope.planning.traffic import Message, Phase

_BACKWARD = 2 / 3
"""The part of the work of forward and backward passes that the backward pass does."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step.

    Args:
        compute: Forward and backward passes, on the GPU with the most windows.
        update: Orthogonalization of Muon, on the GPU with the most of it.
        messages: All messages.
        exposed: Messages that the GPUs wait for.
    """

    compute: float
    update: float
    messages: float
    exposed: float

    @property
    def total(self) -> float:
        return self.compute + self.update + self.exposed


def flops_per_token(model: GPT) -> float:
    """Operations of forward and backward passes per token: 6 per parameter that is multiplied, and attention.

    A frozen parameter takes 4. Attention takes 12 per feature and visible token.
    """
    tables = [model.position, *model.value_embeddings.values(), *([] if model.head is None else [model.embedding])]
    looked_up = {id(weight) for table in tables if table is not None for weight in table.parameters()}
    used = [weight for weight in model.parameters() if weight.dim() == 2 and id(weight) not in looked_up]
    products = sum((6 if weight.requires_grad else 4) * weight.numel() for weight in used)
    config, attention = model.config, 0.0
    heads, _, head_dim = config.head_sizes
    for layer in range(config.depth):
        attention += 12 * heads * head_dim * _visible(config.context, config.window_of(layer))
    return products + attention


def _visible(context: int, window: int | None) -> float:
    """Mean number of tokens that a token attends to: those before, itself, and none outside of the window."""
    reach = context if window is None else min(window, context)
    return reach - reach * (reach - 1) / 2 / context


def step_time(
    layout: Layout, messages: Sequence[Message], operations: float, cluster: Cluster, dtype: MatmulDtype
) -> StepTime:
    """Seconds of a step with these messages, in which the busiest GPU does so many operations."""
    compute = operations / (cluster.mfu * cluster.gpu.flops(dtype))
    update = _muon_seconds(layout, cluster)
    by_phase: dict[Phase, list[float]] = {"forward": [], "backward": [], "update": []}
    last = 0.0
    for message in messages:
        seconds = _seconds(message, layout.ranks, cluster)
        by_phase[message.phase].append(seconds)
        if message.phase == "backward":
            last = seconds / message.count  # after the computation that it could hide behind
    forward, backward, exchange = (sum(by_phase[phase]) for phase in ("forward", "backward", "update"))
    behind = update if layout.parallel == "ddp" else 0.0
    exposed = max(0.0, forward - (1 - _BACKWARD) * compute) + max(last, backward - _BACKWARD * compute)
    exposed += max(0.0, exchange - behind)
    return StepTime(compute, update, forward + backward + exchange, exposed)


def _seconds(message: Message, ranks: int, cluster: Cluster) -> float:
    levels = math.ceil(math.log2(ranks))
    return message.sent(ranks, "nccl") / cluster.bandwidth(ranks) + message.count * levels * cluster.latency


def _muon_seconds(layout: Layout, cluster: Cluster) -> float:
    """Muon multiplies in float32, the dtype of the weights."""
    work = [0.0] * layout.ranks
    for weight in layout.trained:
        assert weight.owner is not None
        work[weight.owner] += 2 * weight.muon_cost
    return max(work) / (cluster.mfu * cluster.gpu.flops("float32"))
