"""X-ray and draw a model by name (a run, a preset, a Hugging Face folder, a function); look inside a GPT."""
