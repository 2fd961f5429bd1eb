"""Models with one planted fault each. Importing this registers them in `cases.REGISTER`."""

from tests.xray.faults import attention, depth, gradients, norms, scopes, steps, streams, units, unreal, weights  # noqa: F401
