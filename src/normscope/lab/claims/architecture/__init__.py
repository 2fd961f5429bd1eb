"""Claims about residuals, activations, attention and biases."""
