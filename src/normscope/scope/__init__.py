"""The scope notation: text -> `Scope` -> `Plan` for a shape.

A scope names the axes of a tensor, with those that share statistics in brackets:

    ... [d]             per token: LayerNorm and RMSNorm in a transformer
    n [c h w]           per image: LayerNorm in a convnet
    [n] c [...]         per channel, over the batch: BatchNorm
    n c [...]           per channel of each image: InstanceNorm
    n (g [c]) [...]     per group of channels of each image: GroupNorm

The grammar is that of einx: an axis is a name; `(g [c])` splits one dimension into two axes; `...` is any number of
axes, including none; brackets may contain several of these. This folder does not import torch.
"""

from normscope.scope.plan import Plan
from normscope.scope.scope import Axes, Scope

__all__ = ["Axes", "Plan", "Scope"]
