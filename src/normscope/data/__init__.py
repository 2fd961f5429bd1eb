"""From text to tokens to batches."""
