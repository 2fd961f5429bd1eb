"""X-ray and draw a model by name: a run, a preset, a Hugging Face folder, or a function that returns a model."""
