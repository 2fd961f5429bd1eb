"""Observers of a run: log lines, live display, TensorBoard, Weights & Biases."""
