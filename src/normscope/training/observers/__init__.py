"""Those who watch a run: a file, lines, a live display, TensorBoard, Weights & Biases. One file each."""
