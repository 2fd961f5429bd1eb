"""Compare two x-ray records and find the first divergence."""
