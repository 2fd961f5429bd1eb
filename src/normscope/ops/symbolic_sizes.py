"""Questions about sizes that may be symbols, which is what they are while a graph for any size is being made.

A plain `if size == 1` would tie such a graph to the sizes of its example, or could not be answered at all. What is
asked here is answered for every size that the graph is for, so the answer is right whichever comes.
"""

from typing import Any

import torch
from torch import Tensor


def is_known(condition: Any) -> bool:
    """Whether a condition on sizes holds; where they are symbols, whether it is known to hold for all of them.

    >>> is_known(3 > 2), is_known(3 == 2)
    (True, False)
    """
    if not torch.compiler.is_dynamo_compiling():
        if type(condition) is bool:
            return condition
        if isinstance(condition, Tensor):  # torch.jit.trace has sizes that are tensors, and each may be another one
            return False
    # Loaded here, because it brings sympy, which takes a second.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))
