"""Models that are well, each with several seeds and sizes. Importing this registers them in `cases.REGISTER`."""

from tests.diagnostics.healthy import foreign, hidden, mixtures, owners, pictures, plain, starts, text, wirings  # noqa: F401
