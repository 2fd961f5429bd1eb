"""Text generation: sampling, the fused decoder, streaming and chat."""
