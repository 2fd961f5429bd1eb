"""Models with one planted fault each. Importing this package registers them in `cases.REGISTER`."""

from tests.diagnostics.faults import (  # noqa: F401
    attention,
    copies,
    depth,
    gradients,
    graphs,
    initial_weights,
    loss_inputs,
    loss_targets,
    losses,
    modes,
    non_finite,
    norm_scope,
    norms,
    objectives,
    optimizer_steps,
    residual_stream,
    training_loop,
    training_mistakes,
    units,
)
