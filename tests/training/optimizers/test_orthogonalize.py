"""Orthogonalization by matrix products agrees with the singular value decomposition."""

import pytest
import torch

from normscope.training.optimizers.muon import orthogonalize
from normscope.training.optimizers.polar_express import POLAR_EXPRESS
from tests.support import randn


def polar(matrix: torch.Tensor) -> torch.Tensor:
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    factor: torch.Tensor = u @ vt
    return factor


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16, 64), (1, 1, 5)])
def test_the_result_is_near_the_polar_factor(shape: tuple[int, ...]) -> None:
    matrices = randn(*shape, seed=1)
    expected = torch.stack([polar(matrix) for matrix in matrices])
    # A polynomial cannot bring the smallest directions of a square matrix all the way to one.
    assert (orthogonalize(matrices) - expected).norm() < 0.2 * expected.norm()


def test_the_result_equals_the_polynomials_of_the_singular_values() -> None:
    matrix = randn(1, 6, 20, seed=2).double()
    u, s, vt = torch.linalg.svd(matrix[0], full_matrices=False)
    s = s / (matrix.norm() * 1.02)
    for a, b, c in POLAR_EXPRESS:
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(orthogonalize(matrix)[0], u @ s.diag() @ vt)


def test_each_matrix_of_a_stack_is_independent() -> None:
    matrices = randn(4, 5, 9, seed=3)
    alone = torch.cat([orthogonalize(matrix[None]) for matrix in matrices])
    torch.testing.assert_close(orthogonalize(matrices), alone)


def test_zeros_stay_zeros() -> None:
    assert not orthogonalize(torch.zeros(1, 3, 4)).any()


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_the_scale_of_a_gradient_does_not_matter(scale: float) -> None:
    matrix = randn(1, 8, 12, seed=4)
    torch.testing.assert_close(orthogonalize(matrix * scale), orthogonalize(matrix), rtol=1e-4, atol=1e-5)
