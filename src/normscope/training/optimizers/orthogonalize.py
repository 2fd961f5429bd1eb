"""Orthogonalize matrices (set all singular values to about one) with matrix products only.

Axes: k matrices of one shape, each n x m with n <= m.
"""

import torch
from torch import Tensor

# Each row (a, b, c) is a polynomial a x + b x^3 + c x^5 that moves the singular values towards one; their composition
# is the best approximation of the constant one on [1e-3, 1], with a margin for rounding. Amsel et al. 2025, "The Polar
# Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm", table of coefficients.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalize(matrices: Tensor, steps: int = len(POLAR_EXPRESS)) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T of each matrix (k, n, m), n <= m.

    All polynomials of X have the form P(X X^T) X, so they are multiplied in the small n x n space and X is used only
    twice: half the work of iterating on X for the 1:4 matrices of an MLP. Rounding errors of the Gram matrix affect
    only directions a thousand times smaller than the largest, which five steps do not bring to one in either form.

    >>> x = orthogonalize(torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0)))
    >>> sizes = torch.linalg.svdvals(x)
    >>> bool(0.8 < sizes.min()) and bool(sizes.max() < 1.2)
    True
    """
    norm = matrices.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(matrices.dtype).tiny)
    matrices = matrices / (norm * 1.02)  # all singular values below one; zeros stay zeros
    gram = matrices @ matrices.mT  # k n n
    product = None
    for i, (a, b, c) in enumerate(POLAR_EXPRESS[:steps]):
        polynomial = gram.baddbmm(gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        product = polynomial if product is None else polynomial @ product
        if i + 1 < steps:
            gram = polynomial @ (polynomial @ gram)  # the Gram matrix of the next X; all of these commute
    return matrices if product is None else product @ matrices
