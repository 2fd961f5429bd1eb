"""Train a GPT: configuration, optimizers, training loop, checkpoints and resume."""
