"""The size of the signal in each layer, for the report: forward, and of the gradient on the way back."""

from typing import Any

from torch import Tensor, nn

from normscope.models.gpt import GPT


def layer_signal(model: GPT, inputs: Tensor, targets: Tensor) -> list[dict[str, Any]]:
    """The root mean square of what each layer gives, and of the loss's gradient there, on a batch.

    The model is left as it was: its mode, its weights and its gradients, which must be empty.

    >>> import torch
    >>> from normscope.models.presets import nanochat
    >>> model = GPT(nanochat(vocab_size=9, context=4, depth=2, width=8, heads=2))
    >>> tokens = torch.randint(9, (2, 4))
    >>> [layer["name"] for layer in layer_signal(model, tokens, tokens)]
    ['embedding', 'blocks.0', 'blocks.1', 'final_norm']
    """
    layers: dict[str, nn.Module] = {"embedding": model.embedding}
    layers |= {f"blocks.{i}": block for i, block in enumerate(model.blocks)}
    layers["final_norm"] = model.final_norm
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor) -> None:
        output.retain_grad()
        outputs[name] = output

    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
        for name, layer in layers.items()
    ]
    was_training = model.training
    try:
        model.eval().loss(inputs, targets).backward()
        return [
            {"name": name, "rms": _rms(output), "gradient_rms": _rms(output.grad)} for name, output in outputs.items()
        ]
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training).zero_grad(set_to_none=True)


def _rms(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else tensor.detach().float().square().mean().sqrt().item()
