"""Callbacks for the training loops of other libraries: `huggingface` and `lightning`, which import them."""
