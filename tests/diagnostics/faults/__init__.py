"""Models with one planted fault each. Importing this registers them in `cases.REGISTER`."""

from tests.diagnostics.faults import (  # noqa: F401
    attention,
    depth,
    gradients,
    losses,
    non_finite,
    norms,
    owners,
    scopes,
    steps,
    streams,
    units,
    weights,
)
