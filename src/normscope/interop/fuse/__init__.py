"""`fuse(model)`: replace the norms of any model in place by fused ones.

A module keeps its identity, parameters, buffers, hooks and name; only its class changes, to one with the same math and
a faster `forward`. Optimizers, state_dicts, hooks and references stay valid, and undo restores the old class.

    torch_norms     conversion of torch.nn norms to normscope layers of the same name
    recognize       find out which formula a norm of another library computes, by running a copy
    row_norm        fused subclass for such a norm
    activation      the same for activations
    fused_class     create, copy and pickle the fused subclasses
    module_copies   copies with random parameters to experiment on
    equivalence     compare old and new: outputs, gradients, running statistics
    change          the change of class, and its undo
    candidates      for one module: the change to make, or the reason why not
    report          what was fused, what was skipped and why
"""

from normscope.interop.fuse.fuse_model import fuse
from normscope.interop.fuse.report import FusedModule, FuseReport, Skipped

__all__ = ["FuseReport", "FusedModule", "Skipped", "fuse"]
