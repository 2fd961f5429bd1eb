"""The nearest matrix whose singular values are all one, by products alone.

Axes: k matrices of one shape, each n x m with n <= m.
"""

import torch
from torch import Tensor

# Each row (a, b, c) is a polynomial a x + b x^3 + c x^5 that pulls the singular values towards one; the rows together
# are the composition that is nearest to it from 1e-3 up, with room for rounding. Amsel et al. 2025, "The Polar
# Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm", table of coefficients.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalise(matrices: Tensor, steps: int = len(POLAR_EXPRESS)) -> Tensor:
    """Matrices (k, n, m) with n <= m, each brought near U V^T of its singular value decomposition U S V^T.

    The polynomials of X all have the form P(X X^T) X, so they are multiplied up in the small space, n x n, and X is
    touched twice only. For the 1:4 matrices of an MLP that is half the work of iterating on X itself. What rounding
    does to the Gram matrix harms only directions that are a thousand times smaller than the largest, and those are
    not at one after five steps in either form.

    >>> x = orthogonalise(torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0)))
    >>> sizes = torch.linalg.svdvals(x)
    >>> bool(0.8 < sizes.min()) and bool(sizes.max() < 1.2)
    True
    """
    length = matrices.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(matrices.dtype).tiny)
    matrices = matrices / (length * 1.02)  # all singular values below one; zeros stay zeros
    gram = matrices @ matrices.mT  # k n n
    product = None
    for i, (a, b, c) in enumerate(POLAR_EXPRESS[:steps]):
        polynomial = gram.baddbmm(gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        product = polynomial if product is None else polynomial @ product
        if i + 1 < steps:
            gram = polynomial @ (polynomial @ gram)  # the Gram matrix of the next X; all of these commute
    return matrices if product is None else product @ matrices
