"""From batches to a trained model, in a folder that survives anything."""
