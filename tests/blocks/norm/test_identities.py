"""What must hold between norms, and what each norm must not see."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import normscope as ns
from tests.blocks.norm.cases import on_one_path, randn
from tests.blocks.norm.definition import fixed

size = st.integers(1, 4)
images = st.builds(randn, st.tuples(size, size, size, st.integers(2, 4)), st.integers(0, 1000))
texts = st.builds(randn, st.tuples(size, size, st.integers(2, 5)), st.integers(0, 1000))
factors = st.floats(1e-3, 1e3)
shifts = st.floats(-100, 100)
pytestmark = on_one_path


def _same(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@fixed
@given(x=images)
def test_groups_of_one_channel_are_instance_norm(x: Tensor) -> None:
    channels = x.shape[1]
    _same(ns.GroupNorm(channels, channels, affine=False)(x), ns.InstanceNorm2d(channels)(x))


@fixed
@given(x=images)
def test_one_group_is_layer_norm_over_the_image(x: Tensor) -> None:
    _same(
        ns.GroupNorm(1, x.shape[1], affine=False)(x),
        ns.LayerNorm(tuple(x.shape[1:]), elementwise_affine=False)(x),
    )


@fixed
@given(x=images)
def test_batch_norm_of_one_sample_is_instance_norm(x: Tensor) -> None:
    one = x[:1]
    _same(ns.BatchNorm2d(x.shape[1], affine=False)(one), ns.InstanceNorm2d(x.shape[1])(one))


@fixed
@given(x=texts)
def test_rms_norm_of_centred_input_is_layer_norm(x: Tensor) -> None:
    centered = x - x.mean(-1, keepdim=True)
    _same(ns.rms_norm(centered, eps=1e-5), ns.layer_norm(x, eps=1e-5))


@fixed
@given(x=texts, shift=shifts, factor=factors)
def test_layer_norm_ignores_shift_and_scale(x: Tensor, shift: float, factor: float) -> None:
    norm = ns.LayerNorm(x.shape[-1], eps=0.0, elementwise_affine=False)
    _same(norm(x + shift), norm(x), 1e-7)
    _same(norm(x * factor), norm(x), 1e-7)
    _same(norm(x * -factor), -norm(x), 1e-7)


@fixed
@given(x=texts, factor=factors)
def test_rms_norm_ignores_scale_and_gives_rms_one(x: Tensor, factor: float) -> None:
    norm = ns.RMSNorm(x.shape[-1], eps=0.0, elementwise_affine=False)
    y = norm(x)
    _same(norm(x * factor), y)
    _same(y.square().mean(-1).sqrt(), torch.ones(x.shape[:-1], dtype=torch.float64))


@fixed
@given(x=texts, shift=shifts, factor=factors)
def test_layer_norm_gives_mean_zero_and_variance_one(x: Tensor, shift: float, factor: float) -> None:
    y = ns.LayerNorm(x.shape[-1], eps=0.0, elementwise_affine=False)(x * factor + shift)
    _same(y.mean(-1), torch.zeros(x.shape[:-1], dtype=torch.float64), 1e-6)
    _same(y.square().mean(-1), torch.ones(x.shape[:-1], dtype=torch.float64), 1e-6)


@fixed
@given(x=texts, data=st.data())
def test_a_token_does_not_see_the_others(x: Tensor, data: st.DataObject) -> None:
    """Bit for bit: in a causal model that is what keeps the future out."""
    row, column = (data.draw(st.integers(0, x.shape[i] - 1)) for i in range(2))
    other = randn(tuple(x.shape), seed=2000) * 50
    other[row, column] = x[row, column]
    for norm in (ns.LayerNorm(x.shape[-1], dtype=x.dtype), ns.RMSNorm(x.shape[-1], dtype=x.dtype)):
        assert torch.equal(norm(x)[row, column], norm(other)[row, column])


@fixed
@given(x=images, data=st.data())
def test_an_image_does_not_see_the_others(x: Tensor, data: st.DataObject) -> None:
    sample = data.draw(st.integers(0, x.shape[0] - 1))
    other = randn(tuple(x.shape), seed=2001) * 50
    other[sample] = x[sample]
    for norm in (ns.GroupNorm(1, x.shape[1], dtype=x.dtype), ns.InstanceNorm2d(x.shape[1])):
        assert torch.equal(norm(x)[sample], norm(other)[sample])
