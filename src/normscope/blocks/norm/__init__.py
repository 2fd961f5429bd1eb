"""Normalization layers: `Norm`, which works over any scope, and the named layers on top of it.

Each named layer takes the arguments of the torch.nn layer of the same name and has the same parameters and buffers.
Replace `nn.` with `normscope.`; a state_dict loads both ways. The first argument may also be a scope:

    LayerNorm(768)              LayerNorm("n [c h w]", c=64, h=28, w=28)
    GroupNorm(8, 64)            GroupNorm("n (g [c]) [...]", g=8, c=8)

To add a layer, subclass `Norm` (`base.py`) in a file of its own and export it here; to let models choose it by name
(`norm="..."`), add it to `named_norms.py`. Another formula is a `Statistic` (`normscope.ops.norm.statistic`).
"""

from normscope.blocks.norm.base import Norm
from normscope.blocks.norm.batch_and_instance import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from normscope.blocks.norm.functional import layer_norm, normalize, rms_norm
from normscope.blocks.norm.group import GroupNorm
from normscope.blocks.norm.layer_and_rms import LayerNorm, RMSNorm
from normscope.blocks.norm.named_norms import NormSpec, as_norm
from normscope.blocks.norm.power import PowerNorm

__all__ = [
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Norm",
    "NormSpec",
    "PowerNorm",
    "RMSNorm",
    "as_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]
