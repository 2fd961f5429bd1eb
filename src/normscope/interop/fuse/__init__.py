"""`fuse(model)`: the norms of any model, replaced in place by normscope's fused ones.

A norm is changed, never replaced: the module stays the same object with the same parameters, buffers, hooks and name,
and only its class is another one, with the same mathematics and a faster `forward`. So an optimiser, a state_dict, a
hook or a reference that was there before goes on working, and undoing it is giving the old class back.

    torch_norms     what torch.nn's own norms become: normscope's layers of the same name
    recognise       which formula a norm of another library computes, found out by asking it
    row_norm        what such a norm becomes: a subclass of its own class
    activation      the same for activations
    fused_class     how such a subclass is made, copied and saved
    stand_in        copies that experiments are made on, so that the model never notices
    prove           old and new on the same inputs: results, gradients, running statistics
    change          the change of class itself, and the way back
    candidates      for one module: the change to make, or why there is none
    report          what was changed, what was left and why
"""

from normscope.interop.fuse.fuse_model import fuse
from normscope.interop.fuse.report import FusedModule, FuseReport, Skipped

__all__ = ["FuseReport", "FusedModule", "Skipped", "fuse"]
