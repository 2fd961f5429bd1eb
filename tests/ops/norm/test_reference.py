"""The steps by themselves, before any layer is made of them."""

import pytest
import torch

from normscope.errors import ShapeError
from normscope.ops.norm import reference
from normscope.ops.norm.distributed import is_shared, sum_over_ranks
from normscope.ops.norm.statistic import STANDARDIZE
from normscope.scope import Scope

PLAN = Scope.parse("n (g [c]) [l]").bind((2, 4, 3), g=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_steps_run_in_float64_on_a_cpu(dtype: torch.dtype) -> None:
    work, real = reference.prepare_input(torch.zeros(2, 4, 3, dtype=dtype), PLAN, None)
    assert work.dtype == torch.float64
    assert work.shape == (2, 2, 2, 3)
    assert real is None
    back = reference.apply_affine(work, reference.Affine(), None, torch.zeros(2, 4, 3, dtype=dtype))
    assert back.dtype == dtype
    assert back.shape == (2, 4, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_default_eps_is_torchs(dtype: torch.dtype) -> None:
    """Read off torch: on an input far below eps, its RMSNorm divides by the root of eps alone."""
    x = torch.full((1, 4), 2.0**-20, dtype=dtype)
    scale = torch.nn.functional.rms_norm(x, (4,)) / x
    found = 1 / scale.double().square().mean().item() - 2.0**-40
    assert reference.default_eps(x) == pytest.approx(found, rel=2e-2 if x.element_size() == 2 else 1e-4)


def test_measure_counts_what_is_real() -> None:
    x = torch.arange(24.0, dtype=torch.float64).reshape(2, 4, 3)
    mask = torch.ones(2, 4, 3, dtype=torch.bool)
    mask[0, 0] = mask[1, :2] = False
    work, real = reference.prepare_input(x, PLAN, mask)
    moments = reference.compute_statistics(work, PLAN, STANDARDIZE, real, sync=False)
    assert moments.mean is not None
    assert moments.count.flatten().tolist() == [3, 6, 0, 6]
    assert moments.mean.flatten().tolist() == [4, 8.5, 0, 20.5]
    assert moments.second_moment.flatten().tolist() == pytest.approx([2 / 3, 35 / 12, 1, 35 / 12])


def test_a_mask_is_laid_along_the_split_axes() -> None:
    mask = torch.tensor([[True, False, True, True]]).reshape(1, 4, 1)
    laid = reference.expand_mask(mask, PLAN)
    assert laid.shape == (2, 2, 2, 3)
    assert laid[:, 0, 1].sum() == 0
    assert laid.sum() == 18
    with pytest.raises(ShapeError, match=r"\(2, 4, 3\)"):
        reference.expand_mask(torch.ones(4, dtype=torch.bool), PLAN)


def test_one_process_has_nothing_to_sum() -> None:
    x = torch.ones(3)
    assert not is_shared(sync=True)
    assert sum_over_ranks(x, sync=True) is x
