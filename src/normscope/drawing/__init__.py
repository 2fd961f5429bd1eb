"""Draw blocks and models from a trace of one forward pass, as text or SVG."""
