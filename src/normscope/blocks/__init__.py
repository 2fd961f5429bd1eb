"""The building blocks of models, from norms up to the transformer block."""
