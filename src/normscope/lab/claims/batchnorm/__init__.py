"""Claims about BatchNorm."""
