"""Claims about norms."""
