"""The version, read by the build and by `normscope --version`."""

__version__ = "0.1.0"
