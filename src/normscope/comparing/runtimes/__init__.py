"""Models in other tools, as `normscope.comparing.Runtime`: transformers, llama.cpp, onnxruntime, an exported page."""

from normscope.errors import NormscopeError


class RuntimeMissingError(NormscopeError, ImportError):
    """A tool that would run a model is not installed."""


class RuntimeRefusalError(NormscopeError, RuntimeError):
    """A tool refused a model, or ended."""
