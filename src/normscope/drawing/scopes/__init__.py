"""Drawings of scopes: which cells of a tensor share statistics."""
