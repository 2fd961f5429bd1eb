"""Healthy models, each with several seeds and sizes. Importing this package registers them in `cases.REGISTER`."""

from tests.diagnostics.healthy import (  # noqa: F401
    expected_non_finite,
    gpts,
    huggingface,
    losses,
    mlps,
    probabilities,
    sequences,
    special_inits,
    stopped_gradients,
    text,
    training_loops,
    unusual_training,
    vision,
)
