"""Every named layer against torch.nn's: outputs, gradients, running statistics, over types and memory layouts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.errors import NormscopeError
from tests.blocks.norm.cases import (
    CASES,
    CASES_BY_NAME,
    DTYPES_BY_NAME,
    TOLERANCE,
    Case,
    close,
    close_states,
    close_step,
    every_case,
)
from tests.pairs import every_pair, every_value


def _channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "channels-last": _channels_last,
    "strided": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
}


@every_pair(case=CASES_BY_NAME, dtype=DTYPES_BY_NAME, layout=LAYOUTS.keys())
def test_train_then_eval(case: Case, dtype: torch.dtype, layout: str) -> None:
    ours, peer = case.pair(dtype)
    for batch in range(2):  # two, so that what the first one left behind is used
        close_step(ours, peer, LAYOUTS[layout](case.input(dtype, seed=batch)), TOLERANCE[dtype])
    ours.eval()
    peer.eval()
    close_step(ours, peer, LAYOUTS[layout](case.input(dtype, seed=2)), TOLERANCE[dtype])


# torch's RMSNorm says that its fused kernel does not take two types; its result is the same.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@every_case
def test_bfloat16_input_with_float32_parameters(case: Case) -> None:
    ours, peer = case.pair(torch.float32)
    for module in (ours, peer):
        module.train()
    close_step(ours, peer, case.input(torch.bfloat16), TOLERANCE[torch.bfloat16])
    assert ours(case.input(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@every_value(case=CASES_BY_NAME, dtype={"float32": torch.float32, "bfloat16": torch.bfloat16})
def test_autocast(case: Case, dtype: torch.dtype) -> None:
    ours, peer = case.pair(torch.float32)
    for training in (True, False):
        ours.train(training)
        peer.train(training)
        with torch.autocast("cpu", torch.bfloat16):
            y, peer_y = ours(case.input(dtype)), peer(case.input(dtype))
        close(y, peer_y, TOLERANCE[dtype], "output under autocast")


@pytest.mark.parametrize("case", [c for c in CASES if len(c.shape) == 4], ids=lambda case: case.name)
def test_channels_last_in_is_channels_last_out(case: Case) -> None:
    ours, _ = case.pair()
    x = _channels_last(case.input()).requires_grad_()
    y = ours(x)
    y.square().sum().backward()
    assert x.grad is not None
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


BATCHED = [c for c in CASES if len(c.shape) > 1 and "single" not in c.name]


@pytest.mark.parametrize("case", [c for c in BATCHED if "instance" not in c.name], ids=lambda case: case.name)
def test_empty_batch(case: Case) -> None:
    ours, peer = case.pair()
    close_step(ours, peer, torch.empty((0, *case.shape[1:])), 0.0)
    ours.eval()
    peer.eval()
    close_step(ours, peer, torch.empty((0, *case.shape[1:])), 0.0)


@pytest.mark.parametrize("case", [c for c in BATCHED if "instance" in c.name], ids=lambda case: case.name)
def test_empty_batch_of_instances(case: Case) -> None:
    """Where torch's InstanceNorm fails, or turns its running statistics into NaN, ours stays as it is."""
    ours, untouched = case.pair(affine=True)[0], case.pair(affine=True)[0]
    x = torch.empty((0, *case.shape[1:]), requires_grad=True)
    y = ours(x)
    y.sum().backward()
    assert y.shape == x.shape
    assert all(p.grad is not None and not p.grad.any() for p in ours.parameters())
    close_states(ours, untouched, 0.0)


ONE_VALUE = [
    Case("batch", ns.BatchNorm, nn.BatchNorm1d, (1, 3), (3,)),
    Case("batch1d", ns.BatchNorm1d, nn.BatchNorm1d, (1, 3), (3,)),
    Case("batch1d-two-samples", ns.BatchNorm1d, nn.BatchNorm1d, (2, 3), (3,)),
    Case("batch1d-one-position", ns.BatchNorm1d, nn.BatchNorm1d, (1, 3, 1), (3,)),
    Case("batch1d-two-positions", ns.BatchNorm1d, nn.BatchNorm1d, (1, 3, 2), (3,)),
    Case("batch2d", ns.BatchNorm2d, nn.BatchNorm2d, (1, 3, 1, 1), (3,)),
    Case("batch3d", ns.BatchNorm3d, nn.BatchNorm3d, (1, 3, 1, 1, 1), (3,)),
    Case("batch-no-memory", ns.BatchNorm2d, nn.BatchNorm2d, (1, 3, 1, 1), (3,), {"track_running_stats": False}),
    Case("instance1d", ns.InstanceNorm1d, nn.InstanceNorm1d, (2, 3, 1), (3,)),
    Case("instance1d-single", ns.InstanceNorm1d, nn.InstanceNorm1d, (3, 1), (3,)),
    Case("instance2d", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 1, 1), (3,)),
    Case("instance2d-two-positions", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 1, 2), (3,)),
    Case("instance-memory", ns.InstanceNorm2d, nn.InstanceNorm2d, (2, 3, 1, 1), (3,), {"track_running_stats": True}),
    Case("group", ns.GroupNorm, nn.GroupNorm, (1, 3), (3, 3)),
    Case("group-one-position", ns.GroupNorm, nn.GroupNorm, (1, 3, 1), (3, 3)),
    Case("group-two-samples", ns.GroupNorm, nn.GroupNorm, (2, 3), (3, 3)),
    Case("group-two-channels", ns.GroupNorm, nn.GroupNorm, (1, 6), (3, 6)),
    Case("layer", ns.LayerNorm, nn.LayerNorm, (1, 1), (1,)),
    Case("layer-two-axes", ns.LayerNorm, nn.LayerNorm, (1, 1, 1), ((1, 1),)),
    Case("rms", ns.RMSNorm, nn.RMSNorm, (1, 1), (1,)),
]


@pytest.mark.parametrize("case", ONE_VALUE, ids=lambda case: case.name)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_one_value_is_refused_where_torch_refuses_it(case: Case, training: bool) -> None:
    ours, peer = case.pair(torch.float64)
    ours.train(training)
    peer.train(training)
    x = case.input(torch.float64)
    try:
        expected = peer(x)
    except ValueError as error:
        with pytest.raises(type(error), match="one value for each statistic") as caught:
            ours(x)
        assert isinstance(caught.value, NormscopeError)
        assert str(case.shape).strip("()") in str(caught.value)
        assert ("eval()" in str(caught.value)) == (ours.state is not None)
    else:
        close(ours(x), expected, 1e-9, "output")


def test_a_layer_of_one_value_gives_its_bias_and_no_gradient() -> None:
    """Torch's is only nearly so: its weight's gradient holds the rounding of a difference of equal numbers."""
    norm = ns.LayerNorm(1)
    nn.init.constant_(norm.bias, 0.25)  # type: ignore[arg-type]
    x = torch.tensor([[3.1], [-7.3]], requires_grad=True)
    y = norm(x)
    y.sum().backward()
    assert y.tolist() == [[0.25], [0.25]]
    assert x.grad is not None
    assert not x.grad.any()
    assert norm.weight is not None
    assert norm.weight.grad is not None
    assert not norm.weight.grad.any()
