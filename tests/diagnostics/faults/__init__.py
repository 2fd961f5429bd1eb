"""Models with one planted fault each. Importing this package registers them in `cases.REGISTER`."""

from tests.diagnostics.faults import (  # noqa: F401
    attention,
    attention_use,
    dependence,
    depth,
    gradients,
    initial_weights,
    inputs,
    losses,
    non_finite,
    norm_scope,
    norms,
    optimizer_steps,
    residual_stream,
    structure,
    training_mistakes,
    units,
)
