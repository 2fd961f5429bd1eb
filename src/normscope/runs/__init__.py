"""A run is a folder: manifest, checkpoints, lock, metrics and report."""
