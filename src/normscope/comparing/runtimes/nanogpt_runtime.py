"""A nanoGPT checkpoint in nanoGPT's own model.py if there is a checkout, otherwise in a forward pass of our own."""

import importlib.util
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.comparing.runtime import FloatArray
from normscope.comparing.runtimes import RuntimeRefusalError

CHECKOUT = "NORMSCOPE_NANOGPT"
"""Environment variable that names a folder with nanoGPT's model.py. Its code is run."""


class NanoGPTRuntime:
    """The ckpt.pt and meta.pkl of a folder.

    Args:
        folder: the folder.
        eos_token_id: the end-of-text token, which nanoGPT does not know.
    """

    precision = "float32"

    def __init__(self, folder: Path, *, eos_token_id: int | None) -> None:
        try:
            content = torch.load(folder / "ckpt.pt", map_location="cpu", weights_only=True)  # refuses anything but data
            self.arguments, self.weights = content["model_args"], content["model"]
        except Exception as error:
            raise RuntimeRefusalError(f"ckpt.pt is not a checkpoint: {error}") from error
        self.context, self.vocab_size = int(self.arguments["block_size"]), int(self.arguments["vocab_size"])
        self.eos_token_id = eos_token_id
        checkout = os.environ.get(CHECKOUT)
        self._model = None if checkout is None else _theirs(Path(checkout), self.arguments, self.weights)
        ours = f"a forward pass of our own (set {CHECKOUT} to a checkout of nanoGPT to run its own)"
        self.name = ours if self._model is None else "nanoGPT's model.py"
        meta = folder / "meta.pkl"
        self.has_tokenizer = meta.exists()
        if self.has_tokenizer:
            with meta.open("rb") as file:
                self.meta = _PlainUnpickler(file).load()

    def logits(self, tokens: Sequence[int]) -> FloatArray:
        ids = torch.tensor([list(tokens)])
        with torch.inference_mode():
            # With targets, nanoGPT returns the logits of all positions.
            theirs = None if self._model is None else self._model(ids, ids)[0]
            found: Tensor = _forward(self.weights, self.arguments, ids) if theirs is None else theirs
        array: FloatArray = found[0].float().numpy()
        return array

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        found = list(tokens)
        for _ in range(count):  # nanoGPT has no cache
            found.append(int(self.logits(found)[-1].argmax()))
        return found[len(tokens) :]

    def encode(self, text: str) -> list[int]:
        return [self.meta["stoi"][character] for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.meta["itos"][token] for token in tokens)

    def layers(self, tokens: Sequence[int]) -> Mapping[str, FloatArray]:
        return {}


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, strings and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        raise RuntimeRefusalError(f"meta.pkl asks for {module}.{name}, which is not data")


def _theirs(checkout: Path, arguments: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """nanoGPT's own model with these weights; all names and shapes must fit."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    if spec is None or spec.loader is None or not (checkout / "model.py").is_file():
        raise RuntimeRefusalError(f"{CHECKOUT}={checkout} has no model.py\nfix: name a checkout of nanoGPT")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(module.GPTConfig(**arguments))
    # Older versions of it keep the causal mask as a buffer.
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [name for name in (*missing, *unexpected) if not name.endswith(".attn.bias")]
    if wrong:
        raise RuntimeRefusalError(f"nanoGPT's model does not fit the checkpoint: {', '.join(wrong[:4])}")
    return model.eval()


def _forward(weights: Mapping[str, Tensor], arguments: Mapping[str, Any], tokens: Tensor) -> Tensor:
    """The logits of a nanoGPT checkpoint, from its weights by their names."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    b, s = tokens.shape
    width, heads = int(arguments["n_embd"]), int(arguments["n_head"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), w[f"{name}.weight"], w.get(f"{name}.bias"), 1e-5)

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = w["wte.weight"][tokens] + w["wpe.weight"][:s]
    for i in range(int(arguments["n_layer"])):
        joint = linear(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x))
        q, k, v = (part.view(b, s, heads, -1).transpose(1, 2) for part in joint.split(width, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(f"h.{i}.attn.c_proj", y.transpose(1, 2).reshape(b, s, width))
        hidden = F.gelu(linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)))
        x = x + linear(f"h.{i}.mlp.c_proj", hidden)
    return linear("lm_head", norm("ln_f", x))
