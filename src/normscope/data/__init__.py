"""Data pipeline: text -> tokens -> batches."""
