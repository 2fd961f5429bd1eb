"""Healthy models, each with several seeds and sizes. Importing this package registers them in `cases.REGISTER`."""

from tests.diagnostics.healthy import (  # noqa: F401
    expected_non_finite,
    gpts,
    huggingface,
    mlps,
    probabilities,
    sequences,
    special_inits,
    text,
    unusual_training,
    vision,
)
