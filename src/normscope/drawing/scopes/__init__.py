"""Draw scopes: which cells of a tensor share statistics."""
