"""What an x-ray watches besides activations and gradients: one `Watcher` per file, listed in `WATCHERS`."""
