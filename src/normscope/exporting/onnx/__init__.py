"""ONNX: the model as a graph with a KV cache, for onnxruntime and everything else that runs ONNX."""
