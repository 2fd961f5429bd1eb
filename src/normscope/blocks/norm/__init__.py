"""Normalization layers: `Norm`, which works over any scope, and the named layers on top of it.

Each named layer takes the arguments of the torch.nn layer of the same name and has the same parameters and buffers.
Replace `nn.` with `normscope.`; a state_dict loads both ways. The first argument may also be a scope:

    LayerNorm(768)              LayerNorm("n [c h w]", c=64, h=28, w=28)
    GroupNorm(8, 64)            GroupNorm("n (g [c]) [...]", g=8, c=8)

One file per layer, named as in torch.nn.modules (`batchnorm.py`). To add a layer, subclass `Norm` (`base.py`) and
export it here; to let models choose it by name (`norm="..."`), add it to the tables in `norm_spec.py`. Another formula
is a `Statistic` (`normscope.ops.norm.statistic`).
"""

from normscope.blocks.norm.base import Norm as Norm
from normscope.blocks.norm.batchnorm import BatchNorm as BatchNorm
from normscope.blocks.norm.batchnorm import BatchNorm1d as BatchNorm1d
from normscope.blocks.norm.batchnorm import BatchNorm2d as BatchNorm2d
from normscope.blocks.norm.batchnorm import BatchNorm3d as BatchNorm3d
from normscope.blocks.norm.functional import layer_norm as layer_norm
from normscope.blocks.norm.functional import normalize as normalize
from normscope.blocks.norm.functional import rms_norm as rms_norm
from normscope.blocks.norm.groupnorm import GroupNorm as GroupNorm
from normscope.blocks.norm.instancenorm import InstanceNorm as InstanceNorm
from normscope.blocks.norm.instancenorm import InstanceNorm1d as InstanceNorm1d
from normscope.blocks.norm.instancenorm import InstanceNorm2d as InstanceNorm2d
from normscope.blocks.norm.instancenorm import InstanceNorm3d as InstanceNorm3d
from normscope.blocks.norm.layernorm import LayerNorm as LayerNorm
from normscope.blocks.norm.norm_spec import NormSpec as NormSpec
from normscope.blocks.norm.norm_spec import as_norm as as_norm
from normscope.blocks.norm.powernorm import PowerNorm as PowerNorm
from normscope.blocks.norm.rmsnorm import RMSNorm as RMSNorm
