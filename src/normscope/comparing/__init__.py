"""Compare two models in any tools: structure, weights, tokenizers, logits, and the first layer that differs."""

from normscope.comparing.runtime import Runtime

__all__ = ["Runtime"]
