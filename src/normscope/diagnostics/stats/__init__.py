"""Statistics that a record stores: plain dataclasses, one file per topic."""
