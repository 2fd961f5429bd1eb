"""`fuse(model)`: replace the norms of any model in place by fused ones.

A module keeps its identity, parameters, buffers, hooks and name; only its class changes, to one with the same math and
a faster `forward`. Optimizers, state_dicts, hooks and references stay valid, and undo restores the old class.

    candidates      for one module: the change to make, or the reason why not. Recognizes activations of other
                    libraries by what they compute; their norms: normscope.tracing.norm_formula
    torch_norms     conversion of torch.nn norms to normscope layers of the same name
    fused_forward   the fused subclasses for these
    equivalence     compare old and new: outputs, gradients, running statistics
    change          the change of class, and its undo
    report          what was fused, what was skipped and why
"""

from normscope.fusing.fuse_model import fuse
from normscope.fusing.report import FusedModule, FuseReport, Skipped

__all__ = ["FuseReport", "FusedModule", "Skipped", "fuse"]
