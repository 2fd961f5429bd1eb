"""What every test needs: one thread a worker, so that parallel workers do not fight over the cores, and a seed."""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ["NORMSCOPE_THREADS"] = "fixed"  # commands in processes of their own tell nothing of the machine's load


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
