"""The working type of devices where float64 is slow or missing: float32, tried out here on the CPU."""

import pytest
import torch

from normscope.ops.norm import reference
from tests.blocks.norm.cases import HALVES, TOLERANCE, Case, close_step, every_case, mostly_on

pytestmark = mostly_on("reference")  # the kernels have no working type


@pytest.fixture(autouse=True)
def _float32_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "compute_dtype", lambda x: torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=["float32", "bfloat16", "float16"])
@every_case
def test_parity_with_float32_steps(case: Case, dtype: torch.dtype) -> None:
    ours, peer = case.pair(dtype)
    for training in (True, False):
        ours.train(training)
        peer.train(training)
        close_step(ours, peer, case.input(dtype), TOLERANCE[dtype])


def test_the_working_type_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert reference.compute_dtype(torch.empty(1, dtype=torch.bfloat16)) == torch.float64
    assert reference.compute_dtype(torch.empty(1, dtype=torch.bfloat16, device="meta")) == torch.float32
    assert reference.compute_dtype(torch.empty(1, dtype=torch.float64, device="meta")) == torch.float64
