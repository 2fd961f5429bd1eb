"""Compare two models, in any tools that run them: structure, weights, tokenizers, logits, the first layer that differs."""

from normscope.comparing.runtime import Runtime

__all__ = ["Runtime"]
