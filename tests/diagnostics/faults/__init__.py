"""Models with one planted fault each. Importing this package registers them in `cases.REGISTER`."""

from tests.diagnostics.faults import (  # noqa: F401
    attention,
    depth,
    gradients,
    graphs,
    initial_weights,
    losses,
    non_finite,
    norm_scope,
    norms,
    optimizer_steps,
    residual_stream,
    training_mistakes,
    units,
)
