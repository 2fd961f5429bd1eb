"""Models with one planted fault each. Importing this registers them in `cases.REGISTER`."""

from tests.xray.faults import (  # noqa: F401
    attention,
    depth,
    gradients,
    losses,
    norms,
    owners,
    scopes,
    steps,
    streams,
    units,
    unreal,
    weights,
)
