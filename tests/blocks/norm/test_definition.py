"""Random scopes, shapes, statistics and masks against the definition, cell by cell."""

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import normscope as ns
from normscope.ops.norm.statistic import StatisticName
from tests.blocks.norm import definition
from tests.blocks.norm.cases import on_one_path, randn, scramble
from tests.blocks.norm.definition import RandomScope, fixed, masks, scopes, spread

statistics: st.SearchStrategy[StatisticName] = st.sampled_from(("standardize", "rms"))
seeds = st.integers(0, 1000)
pytestmark = on_one_path


def _owners(data: st.DataObject, scope: RandomScope) -> tuple[str, ...]:
    return tuple(name for name in scope.named() if data.draw(st.booleans()))


def _mask(data: st.DataObject, scope: RandomScope) -> Tensor | None:
    """Of full rank, which may vary along any axis: shorter ones may not lie over axes that own something."""
    mask = data.draw(st.none() | masks(scope.shape))
    return mask if mask is None else mask.reshape(*mask.shape, *[1] * (len(scope.shape) - mask.dim()))


def _close(ours: Tensor, expected: definition.Array, shape: tuple[int, ...]) -> None:
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.detach().numpy(), expected.reshape(shape), rtol=1e-9, atol=1e-9)


@fixed
@given(scope=scopes(), statistic=statistics, seed=seeds, data=st.data())
def test_normalize_follows_the_definition(
    scope: RandomScope, statistic: StatisticName, seed: int, data: st.DataObject
) -> None:
    owners, mask = _owners(data, scope), _mask(data, scope)
    x = randn(scope.shape, seed)
    own = tuple(scope.cells[scope.names.index(name)] for name in owners)
    weight, bias = (randn(own, seed + 1), randn(own, seed + 2)) if owners else (None, None)
    y = ns.normalize(
        x,
        scope.text,
        statistic=statistic,
        weight=weight,
        bias=bias,
        affine=" ".join(owners) or None,
        eps=1e-3,
        mask=mask,
        **scope.sizes(),
    )
    expected = definition.normalize(
        x.numpy().reshape(scope.cells),
        scope,
        statistic=statistic,
        eps=1e-3,
        real=spread(mask, scope),
        owners=owners,
        weight=None if weight is None else weight.numpy(),
        bias=None if bias is None else bias.numpy(),
    )
    _close(y, expected, scope.shape)


@fixed
@given(scope=scopes(), statistic=statistics, seed=seeds, data=st.data())
def test_running_statistics_follow_the_definition(
    scope: RandomScope, statistic: StatisticName, seed: int, data: st.DataObject
) -> None:
    assume(scope.count > 1 or statistic == "rms")  # one value has no variance, and is refused
    mask = _mask(data, scope)
    # Of the kept axes some have a memory of their own, and over the others it is averaged.
    known = scope.sizes(*_owners(data, scope))
    tracked = tuple(scope.names[i] for i in scope.kept if scope.names[i] in known)
    norm = ns.Norm(scope.text, statistic=statistic, state="running", momentum=0.3, dtype=torch.float64, **known)
    scramble(norm, seed)
    old = {n: b.numpy().copy() for n, b in norm.named_buffers() if b.is_floating_point()}
    x = randn(scope.shape, seed)
    cells, real = x.numpy().reshape(scope.cells), spread(mask, scope)
    y = norm(x, mask)
    _close(y, definition.normalize(cells, scope, statistic=statistic, eps=1e-5, real=real), scope.shape)
    found = definition.measure(cells, scope, real, statistic)
    new = definition.remember(found, scope, tracked, old, momentum=0.3)
    for name, expected in new.items():
        _close(norm.get_buffer(name), expected, expected.shape)
    norm.eval()
    remembered = {n: b.clone() for n, b in norm.named_buffers()}
    _close(norm(x, mask), _by_memory(cells, scope, real, tracked, new), scope.shape)
    assert all(torch.equal(b, remembered[n]) for n, b in norm.named_buffers())


def _by_memory(
    x: definition.Array,
    scope: RandomScope,
    real: np.typing.NDArray[np.bool_],
    tracked: tuple[str, ...],
    memory: dict[str, definition.Array],
) -> definition.Array:
    """Every cell by the running statistics of its place."""
    places = [scope.names.index(name) for name in tracked]
    square = memory["running_var"] if "running_var" in memory else memory["running_square"]
    y = np.zeros(scope.cells)
    for cell in np.ndindex(*scope.cells):
        if real[cell]:
            place = tuple(cell[i] for i in places)
            mean = memory["running_mean"][place] if "running_mean" in memory else 0.0
            y[cell] = (x[cell] - mean) / np.sqrt(square[place] + 1e-5)
    return y


def test_random_scopes_reach_every_part_of_the_notation() -> None:
    """The strategy is worth its name: splits, `...` inside and outside of brackets, and several ranks all come up."""
    seen: set[str] = set()

    @fixed
    @given(scope=scopes())
    def collect(scope: RandomScope) -> None:
        seen.add(scope.text)

    collect()
    text = "\n".join(seen)
    for part in ("(a [b])", "([a] b)", "[...]", "\n...", " c", "] d"):
        assert part in text, part
