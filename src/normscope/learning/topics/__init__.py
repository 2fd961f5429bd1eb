"""One file per topic of `normscope explain`."""

FILES = {
    "layernorm": "layer_norm",
    "rmsnorm": "rms_norm",
    "batchnorm": "batch_norm",
    "instancenorm": "instance_norm",
    "groupnorm": "group_norm",
    "powernorm": "power_norm",
    "linear": "linear",
    "embedding": "embedding",
    "init": "initialization",
    "mlp": "mlp",
    "relu2": "relu_squared",
    "attention": "attention",
    "block": "block",
    "residual": "residual",
    "requires-grad": "requires_grad",
}
"""Topic -> file, in the order of the list of topics. Here, because the files import torch and help doesn't need it."""
