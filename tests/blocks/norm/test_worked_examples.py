"""Examples that were worked by hand: the numbers a reader can check with a pencil."""

import pytest
import torch
from torch import Tensor

import normscope as ns

IMAGES = torch.tensor(
    [
        [[[0.1, 0.2], [0.3, 0.4]], [[1.0, 0.9], [1.2, -1.1]], [[1.1, 0.3], [-0.6, 0.2]]],
        [[[0.3, 0.8], [-0.2, -0.3]], [[-0.2, 2.1], [1.1, 0.2]], [[0.4, 0.7], [-2.1, 0.5]]],
    ]
)

# For each channel: its mean, its variance, and its eight values in the two images after normalization.
CHANNELS = [
    (0.2, 0.105, [[[-0.308592, 0], [0.308592, 0.617184]], [[0.308592, 1.851552], [-1.234368, -1.542960]]]),
    (
        0.65,
        0.8475,
        [[[0.380186, 0.271561], [0.597435, -1.900928]], [[-0.923308, 1.575055], [0.488810, -0.488810]]],
    ),
    (
        0.0625,
        0.872344,
        [[[1.110815, 0.254283], [-0.709316, 0.147216]], [[0.361349, 0.682549], [-2.315313, 0.468416]]],
    ),
]


def _near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0, -4.0, 0.0], [1.0392, -1.3856, 0.0]), ([10.0, 10.0, 10.0], [1.0, 1.0, 1.0])],
)
def test_rms_norm(values: list[float], expected: list[float]) -> None:
    for found in (ns.rms_norm(torch.tensor(values)), ns.RMSNorm(3)(torch.tensor(values))):
        _near(found, torch.tensor(expected), 5e-5)


def test_layer_norm_of_random_rows() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for y in (ns.LayerNorm(5)(x), ns.layer_norm(x)):
        _near(y.mean(-1), torch.zeros(3), 1e-6)
        _near(y.std(-1, correction=0), torch.ones(3), 1e-4)


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_batch_norm_of_two_small_images(channel: int) -> None:
    mean, variance, expected = CHANNELS[channel]
    norm = ns.BatchNorm2d(3, momentum=1.0)
    y = norm(IMAGES)
    _near(y[:, channel], torch.tensor(expected), 2e-6)
    # With momentum 1 the memory is this batch alone; the variance it keeps is the unbiased one, of 8 values.
    _near(norm.get_buffer("running_mean")[channel], torch.tensor(mean), 1e-6)
    _near(norm.get_buffer("running_var")[channel], torch.tensor(variance * 8 / 7), 1e-6)
