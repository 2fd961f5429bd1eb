"""How attention scores are scaled, masked and normalized, and views that mix up its axes."""
