"""Claims about initialization."""
