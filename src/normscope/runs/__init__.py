"""A run folder: config, manifest, checkpoints, lock, metrics and report."""
