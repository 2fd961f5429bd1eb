"""Conditions on sizes that may be symbolic, as they are in graphs with dynamic shapes.

A plain `if size == 1` would specialize such a graph to the example's sizes, or fail. `statically_known_true` answers
for all sizes that the graph supports.
"""

from typing import Any

import torch
from torch import Tensor


def statically_known_true(condition: Any) -> bool:
    """Return whether a condition on sizes holds; for symbolic sizes, whether it holds for all of them.

    >>> statically_known_true(3 > 2), statically_known_true(3 == 2)
    (True, False)
    """
    if not torch.compiler.is_dynamo_compiling():
        if type(condition) is bool:
            return condition
        if isinstance(condition, Tensor):  # under torch.jit.trace sizes are tensors, which may vary
            return False
    # Imported here because it imports sympy, which takes a second.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))
