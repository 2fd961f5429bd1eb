"""Training on several ranks: how they share a model, its updates and its optimizer state."""
