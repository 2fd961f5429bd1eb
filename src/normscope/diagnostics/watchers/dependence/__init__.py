"""What outputs of a model depend on: later tokens, other samples, positions."""
