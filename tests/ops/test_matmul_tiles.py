"""Products of tiles and transposes against torch's."""

import numba
import pytest
import torch

from normscope.ops.fused.compiler import OPTIONS
from normscope.ops.fused.matmul_tiles import LANES, PANEL, ROWS, invert_panel, plus_times, scale_panel, times, transpose
from tests.support import randn

fresh = numba.njit(**OPTIONS)  # not kept on disk, where it would outlive a change of the tiles


@fresh
def run_times(a, row, step, b, width, c, breadth, steps):  # type: ignore[no-untyped-def]
    times(a, row, step, b, width, c, breadth, steps)


@fresh
def run_plus_times(a, row, step, b, width, c, breadth, steps):  # type: ignore[no-untyped-def]
    plus_times(a, row, step, b, width, c, breadth, steps)


@fresh
def run_panels(x, y, factor):  # type: ignore[no-untyped-def]
    scale_panel(x, y, factor)
    invert_panel(x)


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("turned", [False, True])
def test_a_tile_is_a_product(steps: int, turned: bool) -> None:
    a, b = randn(ROWS, steps, dtype=torch.float32), randn(steps, PANEL + 3, seed=1, dtype=torch.float32)
    c = randn(ROWS, PANEL + 5, seed=2, dtype=torch.float32)
    laid = a.T.contiguous() if turned else a
    places = (laid.data_ptr(), *((1, ROWS) if turned else (steps, 1)), b.data_ptr(), PANEL + 3)
    before, wanted = c.clone(), a.double() @ b[:, :PANEL].double()
    run_times(*places, c.data_ptr(), PANEL + 5, steps)
    torch.testing.assert_close(c[:, :PANEL].double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(c[:, PANEL:], before[:, PANEL:])
    run_plus_times(*places, c.data_ptr(), PANEL + 5, steps)
    torch.testing.assert_close(c[:, :PANEL].double(), 2 * wanted, rtol=1e-5, atol=1e-5)


def test_each_sum_is_one_chain_in_order() -> None:
    """So that zeros before or after change no bit, and neither does the processor."""
    a, b = randn(ROWS, 40, dtype=torch.float32), randn(40, PANEL, seed=1, dtype=torch.float32)
    c, zeros = torch.empty(2, ROWS, PANEL), torch.zeros(ROWS, 8)
    run_times(a.data_ptr(), 40, 1, b.data_ptr(), PANEL, c[0].data_ptr(), PANEL, 40)
    longer, taller = torch.cat((zeros, a, zeros), 1), torch.cat((b[:8], b, b[:8]))
    run_times(longer.data_ptr(), 56, 1, taller.data_ptr(), PANEL, c[1].data_ptr(), PANEL, 56)
    assert torch.equal(c[0], c[1])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 1), (3, 4)])
def test_transposes(rows: int, columns: int) -> None:
    wide = randn(rows * LANES, columns * LANES + 7, dtype=torch.float32)
    x, y = wide[:, 3 : 3 + columns * LANES], torch.empty(columns * LANES, rows * LANES)
    transpose(x.data_ptr(), wide.shape[1], y.data_ptr(), *x.shape)
    assert torch.equal(y, x.T)


def test_a_panel_is_scaled_and_inverted() -> None:
    x, y = randn(PANEL + 1, dtype=torch.float32), torch.zeros(PANEL + 1)
    given = x.clone()
    run_panels(x.data_ptr(), y.data_ptr(), 2.5)
    assert torch.equal(y[:PANEL], 2.5 * given[:PANEL])
    assert torch.equal(x[:PANEL], 1 / given[:PANEL])
    assert y[PANEL] == 0
    assert x[PANEL] == given[PANEL]
