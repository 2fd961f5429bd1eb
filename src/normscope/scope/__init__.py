"""The notation: text -> Scope -> a plan for a shape.

A scope names the axes of a tensor and brackets those that share statistics:

    ... [d]             each token by itself: LayerNorm and RMSNorm in a transformer
    n [c h w]           each image by itself: LayerNorm in a convnet
    [n] c [...]         each channel over the batch: BatchNorm
    n c [...]           each channel of each image: InstanceNorm
    n (g [c]) [...]     each group of channels of each image: GroupNorm

The grammar is einx's: an axis is a name; `(g [c])` splits one dimension into two axes; `...` stands for any number
of axes, none included; brackets may hold several of these. Nothing in this folder needs torch.
"""

from normscope.scope.axes import Axes
from normscope.scope.plan import Plan
from normscope.scope.scope import Scope

__all__ = ["Axes", "Plan", "Scope"]
