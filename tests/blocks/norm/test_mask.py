"""Padding does not count: whatever stands in it, no real position, gradient or running statistic notices."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import normscope as ns
from normscope.blocks.norm.checks import NormState
from normscope.errors import DtypeError, NormscopeError, ShapeError
from normscope.ops.norm.statistic import StatisticName
from tests.blocks.norm.cases import close, close_gradients, close_states, on_one_path, randn, scramble
from tests.blocks.norm.definition import RandomScope, fixed, masks, scopes

F64 = torch.float64

# Each layer with a shape that it takes and the dimensions along which padding can be added.
NORMS: dict[str, tuple[Callable[[], ns.Norm], tuple[int, ...], tuple[int, ...]]] = {
    "layer": (lambda: ns.LayerNorm(4, dtype=F64), (2, 3, 4), (0, 1)),
    "layer-eps-zero": (lambda: ns.LayerNorm(4, eps=0.0, bias=False, dtype=F64), (2, 3, 4), (0, 1)),
    "layer-image": (lambda: ns.LayerNorm([3, 2, 2], dtype=F64), (2, 3, 2, 2), (0,)),
    "layer-image-any-size": (lambda: ns.Norm("n [c h w]", affine="c", c=3, dtype=F64), (2, 3, 2, 4), (0, 2, 3)),
    "rms": (lambda: ns.RMSNorm(4, dtype=F64), (2, 3, 4), (0, 1)),
    "rms-no-gain": (lambda: ns.RMSNorm(4, elementwise_affine=False), (2, 3, 4), (0, 1)),
    "rms-eps-zero": (lambda: ns.RMSNorm(4, eps=0.0, dtype=F64), (2, 3, 4), (0, 1)),
    "group": (lambda: ns.GroupNorm(2, 4, dtype=F64), (2, 4, 3, 2), (0, 2, 3)),
    "group-no-bias": (lambda: ns.GroupNorm(2, 4, bias=False, eps=0.0, dtype=F64), (2, 4, 3), (0, 2)),
    "batch": (lambda: ns.BatchNorm(4, dtype=F64), (2, 4, 3, 2), (0, 2, 3)),
    "batch1d": (lambda: ns.BatchNorm1d(4, dtype=F64), (3, 4, 5), (0, 2)),
    "batch2d": (lambda: ns.BatchNorm2d(4, momentum=None, dtype=F64), (2, 4, 3, 2), (0, 2, 3)),
    "batch3d": (lambda: ns.BatchNorm3d(2, dtype=F64), (2, 2, 3, 2, 2), (0, 2, 3, 4)),
    "batch-no-memory": (lambda: ns.BatchNorm2d(4, track_running_stats=False, dtype=F64), (2, 4, 3, 2), (0, 3)),
    "instance1d": (lambda: ns.InstanceNorm1d(4), (2, 4, 5), (0, 2)),
    "instance2d": (lambda: ns.InstanceNorm2d(4, affine=True, dtype=F64), (2, 4, 3, 2), (0, 2, 3)),
    "instance3d": (lambda: ns.InstanceNorm3d(2, track_running_stats=True, dtype=F64), (2, 2, 3, 2, 2), (0, 2, 4)),
    "instance": (lambda: ns.InstanceNorm(4, track_running_stats=True, dtype=F64), (2, 4, 3, 2), (0, 2, 3)),
    "instance-single": (lambda: ns.InstanceNorm1d(4, affine=True, dtype=F64), (4, 5), (1,)),
    "power": (lambda: ns.PowerNorm(4, dtype=F64), (2, 3, 4), (0, 1)),
    "power-warmup": (lambda: ns.PowerNorm(4, warmup=1, dtype=F64), (2, 3, 4), (0, 1)),
    "power-image": (lambda: ns.PowerNorm("[n] c [...]", c=3, dtype=F64), (2, 3, 2, 2), (0, 2, 3)),
    "batch-text": (lambda: ns.Norm("[b s] d", state="running", affine="d", d=4, dtype=F64), (2, 3, 4), (0, 1)),
}

every_norm = pytest.mark.parametrize("name", NORMS)
GARBAGE = (math.nan, math.inf, -math.inf, 1e300, -7.0)


def _garbage(shape: tuple[int, ...]) -> Tensor:
    return torch.tensor(GARBAGE, dtype=F64).repeat(math.prod(shape) // len(GARBAGE) + 1)[: math.prod(shape)].view(shape)


def _pad(x: Tensor, dim: int, extra: int) -> tuple[Tensor, Tensor]:
    """The tensor with garbage behind it along one dimension, and the mask of full rank that says so."""
    shape = [*x.shape]
    shape[dim] = extra
    flat = [1] * x.dim()
    flat[dim] = x.shape[dim] + extra
    mask = (torch.arange(flat[dim]) < x.shape[dim]).view(flat)
    return torch.cat([x, _garbage(tuple(shape))], dim), mask


def _check_padding(norm: ns.Norm, shape: tuple[int, ...], dim: int, extra: int, seed: int) -> None:
    """Two training batches, then one in eval mode: with padding and without it, everything is the same."""
    plain = copy.deepcopy(norm)
    for training, batch in ((True, 0), (True, 1), (False, 2)):
        norm.train(training)
        plain.train(training)
        x, grad = randn(shape, seed + batch), randn(shape, seed + batch + 10)
        padded, mask = _pad(x, dim, extra)
        x.requires_grad_()
        padded.requires_grad_()
        plain.zero_grad()
        norm.zero_grad()
        y, y_padded = plain(x), norm(padded, mask)
        torch.autograd.backward(y, grad)
        torch.autograd.backward(y_padded, _pad(grad, dim, extra)[0])  # garbage comes back as well
        assert x.grad is not None
        assert padded.grad is not None
        size = x.shape[dim]
        close(y_padded.narrow(dim, 0, size), y, 1e-9, "output")
        close(padded.grad.narrow(dim, 0, size), x.grad, 1e-9, "gradient of the input")
        close_gradients(norm, plain, 1e-9)
        close_states(norm, plain, 1e-9)
        assert not y_padded.narrow(dim, size, extra).any()
        assert not padded.grad.narrow(dim, size, extra).any()


@on_one_path
@every_norm
@pytest.mark.parametrize("extra", [1, 4])
def test_padding_changes_nothing(name: str, extra: int) -> None:
    make, shape, dims = NORMS[name]
    for dim in dims:
        norm = make()
        scramble(norm)
        _check_padding(norm, shape, dim, extra, seed=20)


@on_one_path
@fixed
@given(
    scope=scopes(),
    statistic=st.sampled_from(("standardize", "rms")),
    state=st.sampled_from((None, "running")),
    data=st.data(),
)
def test_padding_changes_nothing_in_any_scope(
    scope: RandomScope, statistic: StatisticName, state: NormState | None, data: st.DataObject
) -> None:
    assume(state is None or scope.count > 1 or statistic == "rms")
    free = [i for i, axes in enumerate(scope.dims) if len(axes) == 1]
    assume(free)
    dim = data.draw(st.sampled_from(free))
    padded_axis = scope.names[scope.dims[dim][0]]
    owners = [name for name in scope.named() if name != padded_axis and data.draw(st.booleans())]
    norm = ns.Norm(
        scope.text,
        statistic=statistic,
        state=state,
        affine=" ".join(owners) or None,
        bias=data.draw(st.booleans()),
        dtype=F64,
        **scope.sizes(*owners),
    )
    scramble(norm)
    _check_padding(norm, scope.shape, dim, data.draw(st.integers(1, 3)), seed=data.draw(st.integers(0, 100)))


@on_one_path
@every_norm
def test_what_stands_in_the_padding_does_not_matter(name: str) -> None:
    """A mask with holes, of full rank and with 1s: the same to the last bit, whatever the holes hold."""
    make, shape, _ = NORMS[name]
    generator = torch.Generator().manual_seed(5)
    channels = () if shape[-1] == 4 and len(shape) == 3 else (1,)  # the axis that holds features is never masked
    flat = [1 if i in channels or (not channels and i == 2) else size for i, size in enumerate(shape)]
    mask = torch.rand(flat, generator=generator) < 0.6
    x, results = randn(shape, 6), []
    for filling in (torch.zeros(shape, dtype=F64), _garbage(shape)):
        norm = make()
        scramble(norm)
        leaf = x.where(mask, filling).requires_grad_()
        y = norm(leaf, mask)
        torch.autograd.backward(y, randn(shape, 7).where(mask, filling))
        results.append([y, leaf.grad, *(p.grad for p in norm.parameters()), *norm.buffers()])
    for a, b in zip(*results, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


@on_one_path
@every_norm
def test_a_mask_of_true_is_no_mask(name: str) -> None:
    make, shape, masked = NORMS[name]
    full, none = make(), make()
    positions = next((i for i, size in enumerate(shape) if i not in masked), len(shape))  # before the features
    for rank in (*range(1, positions + 1), len(shape)):
        y = full(randn(shape, 8), torch.ones(shape[:rank], dtype=torch.bool))
        close(y, none(randn(shape, 8)), 1e-12, "output")
        close_states(full, none, 1e-12)


@on_one_path
@every_norm
def test_a_mask_of_false_teaches_nothing(name: str) -> None:
    make, shape, _ = NORMS[name]
    norm = make()
    scramble(norm)
    before = {key: value.clone() for key, value in norm.named_buffers()}
    x = _garbage(shape).requires_grad_()
    y = norm(x, torch.zeros([1] * len(shape), dtype=torch.bool))
    torch.autograd.backward(y, torch.ones_like(y))
    assert not y.any()
    assert x.grad is not None
    assert not x.grad.any()
    for key, value in norm.named_buffers():
        assert value.isfinite().all()
        assert torch.equal(value, before[key])  # the counter too: nothing was seen
    assert all(p.grad is not None and not p.grad.any() for p in norm.parameters())


@on_one_path
@fixed
@given(scope=scopes(), data=st.data())
def test_masks_of_every_form_mean_the_same(scope: RandomScope, data: st.DataObject) -> None:
    mask = data.draw(masks(scope.shape))
    full = mask.reshape(*mask.shape, *[1] * (len(scope.shape) - mask.dim()))
    x = randn(scope.shape, 9)
    y = ns.normalize(x, scope.text, mask=mask, **scope.sizes())
    for same in (full, full.expand(scope.shape), full.expand(scope.shape).contiguous()):
        assert torch.equal(ns.normalize(x, scope.text, mask=same, **scope.sizes()), y)


BAD_MASKS: dict[str, tuple[object, type[NormscopeError]]] = {
    "integers": (torch.ones(2, 3, dtype=torch.long), DtypeError),
    "floats": (torch.ones(2, 3), DtypeError),
    "too-long": (torch.ones(2, 4, dtype=torch.bool), ShapeError),
    "other-end": (torch.ones(3, 2, dtype=torch.bool), ShapeError),
    "too-many-dimensions": (torch.ones(2, 3, 4, 1, dtype=torch.bool), ShapeError),
    "empty": (torch.ones(0, dtype=torch.bool), ShapeError),
    "list": ([[True, True, False]] * 2, DtypeError),
    "number": (1, DtypeError),
}


@pytest.mark.parametrize("bad", BAD_MASKS)
@pytest.mark.parametrize(
    "norm",
    [ns.LayerNorm(4), ns.RMSNorm(4), ns.PowerNorm(4), ns.InstanceNorm1d(3), ns.BatchNorm1d(3), ns.GroupNorm(3, 3)],
    ids=lambda norm: type(norm).__name__,
)
def test_bad_masks_are_refused(norm: ns.Norm, bad: str) -> None:
    mask, error = BAD_MASKS[bad]
    with pytest.raises(error, match="mask"):
        norm(torch.zeros(2, 3, 4), mask)
    with pytest.raises(error, match="mask"):
        ns.normalize(torch.zeros(2, 3, 4), "... [d]", mask=mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [ns.BatchNorm1d(4), ns.InstanceNorm1d(4), ns.GroupNorm(2, 4)], ids=repr)
def test_a_mask_of_positions_is_not_taken_for_one_of_channels(norm: ns.Norm) -> None:
    """(n, l) over (n, c, l) fits by chance where c = l, and would blank out channels."""
    positions = torch.tensor([[True, True, False, False]] * 3)
    x = randn((3, 4, 4), 10, torch.float32)
    with pytest.raises(ShapeError, match=r"which holds features .* for instance mask\[:, None\]"):
        norm(x, positions)
    y = norm(x, positions[:, None])
    assert not y[..., 2:].any()
    assert y[..., :2].all()


def test_one_real_value_moves_the_mean_and_leaves_the_variance() -> None:
    norm = ns.BatchNorm("[b s] d", d=2)
    mask = torch.tensor([[True, False, False]])
    norm(torch.tensor([[[5.0, -3.0], [7.0, 7.0], [7.0, 7.0]]]), mask)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, torch.tensor([0.5, -0.3]))
    assert norm.running_var.tolist() == [1.0, 1.0]


def test_a_mean_of_all_batches_does_not_count_one_of_padding() -> None:
    norm, plain = (ns.BatchNorm("[b s] d", momentum=None, d=3) for _ in range(2))
    x, y = randn((2, 4, 3), 11, torch.float32), randn((2, 4, 3), 12, torch.float32)
    nothing = torch.zeros(2, 4, dtype=torch.bool)
    for batch, mask in ((x, ~nothing), (y, nothing), (y, ~nothing)):
        norm(batch, mask)
    for batch in (x, y):
        plain(batch)
    close_states(norm, plain, 1e-6)


def test_a_bad_mask_for_a_single_sample_is_refused() -> None:
    for mask in ([True], torch.ones(5, dtype=torch.bool), torch.ones(3, dtype=torch.long)):
        with pytest.raises(NormscopeError, match="mask"):
            ns.InstanceNorm1d(3)(torch.zeros(3, 4), mask)
