"""For any input the results of the norms match those of torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

import normscope as ns
from normscope.learning.catalog import explain
from tests.learning.cases import numbers, wrong
from tests.support import few_examples

LAYERS: dict[str, tuple[int, Callable[[Tensor], nn.Module]]] = {
    "layernorm": (1, lambda x: nn.LayerNorm(x.shape[-1])),
    "rmsnorm": (1, lambda x: nn.RMSNorm(x.shape[-1])),
    "batchnorm": (4, lambda x: nn.BatchNorm2d(x.shape[1])),
    "instancenorm": (4, lambda x: nn.InstanceNorm2d(x.shape[1])),
    "groupnorm": (4, lambda x: nn.GroupNorm(1, x.shape[1])),
    "powernorm": (2, lambda x: ns.PowerNorm(x.shape[-1])),  # torch has none
}
"""For each norm: how many dimensions it takes at least, and the layer that it should equal."""

# Whole eighths: they have a spread of 1/8 or none, so float32 has the digits for it.
NUMBERS = st.integers(-800, 800).map(lambda eighths: eighths / 8)


@pytest.mark.parametrize("topic", LAYERS)
@few_examples
@given(data=st.data())
def test_the_result_matches_the_layer(topic: str, data: st.DataObject) -> None:
    rank, layer = LAYERS[topic]
    least = 2 if rank == 4 else 1
    shape = data.draw(st.lists(st.integers(least, 4), min_size=rank, max_size=4).map(tuple), label="shape")
    x = torch.from_numpy(data.draw(arrays(np.float32, shape, elements=NUMBERS), label="x"))
    worked = explain(topic, x, **({"groups": 1} if topic == "groupnorm" else {}))
    expected = layer(x)(x).detach()
    torch.testing.assert_close(torch.from_numpy(numbers(worked, "result")), expected, rtol=2e-5, atol=2e-5)
    assert wrong(worked) == []


@settings(max_examples=25, deadline=None)
@given(
    groups=st.integers(1, 3),
    channels=st.integers(1, 3),
    size=st.integers(2, 4),
    seed=st.integers(0, 100),
)
def test_group_norm_in_any_number_of_groups(groups: int, channels: int, size: int, seed: int) -> None:
    x = torch.randn(2, groups * channels, size, generator=torch.Generator().manual_seed(seed))
    worked = explain("groupnorm", x, groups=groups)
    expected = nn.GroupNorm(groups, groups * channels)(x).detach()
    torch.testing.assert_close(torch.from_numpy(numbers(worked, "result")), expected, rtol=1e-5, atol=1e-5)
