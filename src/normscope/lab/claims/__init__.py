"""One file per claim; each defines CLAIM."""
