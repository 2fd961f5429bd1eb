"""What every test needs: one thread a worker, so that parallel workers do not fight over the cores, and a seed."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
