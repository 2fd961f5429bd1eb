"""What a model is made of, from the norms up to a whole transformer block."""
