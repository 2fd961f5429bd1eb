"""nanoGPT's and nanochat's models as plain formulas on their weights, and checkpoints as their code saves them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import randn

Weights = Mapping[str, Tensor]

NANOGPT = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 12, "bias": True, "vocab_size": 13, "dropout": 0.1}
NANOCHAT = {"sequence_len": 300, "vocab_size": 37, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 32}


def nanogpt_weights(bias: bool = True) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte": (13, 8), "transformer.wpe": (12, 8)}
    shapes["transformer.ln_f"] = (8,)
    d = 8
    for i in range(2):
        layers: dict[str, tuple[int, ...]] = {
            "ln_1": (d,),
            "attn.c_attn": (3 * d, d),
            "attn.c_proj": (d, d),
            "ln_2": (d,),
        }
        layers |= {"mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
        shapes |= {f"transformer.h.{i}.{name}": shape for name, shape in layers.items()}
    found = {f"{name}.weight": shape for name, shape in shapes.items()}
    biased = [name for name in shapes if name.split(".")[-1] not in ("wte", "wpe")] if bias else []
    found |= {f"{name}.bias": shapes[name][:1] for name in biased}
    weights = {name: randn(*shape, seed=i).float() / 2 for i, (name, shape) in enumerate(found.items())}
    return {**weights, "lm_head.weight": weights["transformer.wte.weight"]}


def nanogpt_logits(weights: Weights, tokens: Tensor) -> Tensor:
    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        y = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        return y + weights.get(f"{name}.bias", torch.zeros(()))

    s, e = tokens.shape[1], 4
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][:s]
    for i in range(2):
        layer = f"transformer.h.{i}"
        parts = linear(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn").unflatten(-1, (3, 2, e))
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # b h s e
        scores = (q @ k.mT / math.sqrt(e)).masked_fill(torch.ones(s, s).triu(1).bool(), -torch.inf)
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{layer}.attn.c_proj")
        hidden = linear(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        x = x + linear(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, f"{layer}.mlp.c_proj")
    return linear(norm(x, "transformer.ln_f"), "lm_head")


def nanochat_weights(later: bool, padded: int = 64) -> dict[str, Tensor]:
    d, kv, layers = 32, 16, 3
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (padded, d), "lm_head.weight": (padded, d)}
    for i in range(layers):
        sizes: dict[str, tuple[int, ...]] = {
            "attn.c_q": (d, d),
            "attn.c_k": (kv, d),
            "attn.c_v": (kv, d),
            "attn.c_proj": (d, d),
        }
        sizes |= {"mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
        shapes |= {f"transformer.h.{i}.{name}.weight": size for name, size in sizes.items()}
    if later:
        shapes |= {"resid_lambdas": (layers,), "x0_lambdas": (layers,), "smear_lambda": (1,), "backout_lambda": (1,)}
        shapes["smear_gate.weight"] = (1, 24)
        for i in (0, 2):
            shapes |= {f"value_embeds.{i}.weight": (padded, kv), f"transformer.h.{i}.attn.ve_gate.weight": (2, 12)}
    return {name: randn(*shape, seed=i).float() / 3 for i, (name, shape) in enumerate(shapes.items())}


def nanochat_logits(weights: Weights, tokens: Tensor, windows: str = "") -> Tensor:
    """The logits of the first version, or with a window pattern of the later one."""

    def norm(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    def turn(x: Tensor, base: float) -> Tensor:  # by the negative angle
        angles = torch.arange(s)[:, None, None] / base ** (torch.arange(0, 8, 2) / 8)
        a, b = x[..., :4], x[..., 4:]
        return torch.cat((a * angles.cos() + b * angles.sin(), b * angles.cos() - a * angles.sin()), dim=-1)

    s, layers, is_later = tokens.shape[1], 3, bool(windows)
    x = norm(weights["transformer.wte.weight"][tokens])
    if is_later:
        opened = weights["smear_lambda"] * (x[:, 1:, :24] @ weights["smear_gate.weight"].T).sigmoid()
        x = torch.cat((x[:, :1], x[:, 1:] + opened * x[:, :-1]), dim=1)
    start, middle = x, x
    for i in range(layers):
        layer = f"transformer.h.{i}"
        if is_later:
            x = weights["resid_lambdas"][i] * x + weights["x0_lambdas"][i] * start
        normed = norm(x)
        q, k, v = ((normed @ weights[f"{layer}.attn.c_{one}.weight"].T).unflatten(-1, (-1, 8)) for one in "qkv")
        if is_later and i % 2 == (layers - 1) % 2:
            gate = 3 * (normed[..., :12] @ weights[f"{layer}.attn.ve_gate.weight"].T).sigmoid()
            v = v + gate[..., None] * weights[f"value_embeds.{i}.weight"][tokens].unflatten(-1, (2, 8))
        q, k = (norm(turn(one, 100000.0 if is_later else 10000.0)) * (1.2 if is_later else 1.0) for one in (q, k))
        distance = torch.arange(s)[:, None] - torch.arange(s)
        reach = 128 if is_later and i < layers - 1 and windows[i % len(windows)] == "S" else s
        scores = torch.einsum("bshe,bthe->bhst", q, k.repeat_interleave(2, dim=2)) / math.sqrt(8)
        mixing = scores.masked_fill((distance < 0) | (distance > reach), -torch.inf).softmax(-1)
        y = torch.einsum("bhst,bthe->bshe", mixing, v.repeat_interleave(2, dim=2)).flatten(2)
        x = x + y @ weights[f"{layer}.attn.c_proj.weight"].T
        hidden = (norm(x) @ weights[f"{layer}.mlp.c_fc.weight"].T).relu().square()
        x = x + hidden @ weights[f"{layer}.mlp.c_proj.weight"].T
        middle = x if i == layers // 2 else middle
    x = norm(x - weights["backout_lambda"] * middle if is_later else x)
    return 15 * torch.tanh(x @ weights["lm_head.weight"][:37].T / 15)


def save_nanogpt(folder: Path, weights: Weights, **changes: Any) -> Path:
    arguments = {**NANOGPT, "bias": any(name.endswith("ln_f.bias") for name in weights), **changes}
    content = {"model": dict(weights), "optimizer": {"state": {}}, "model_args": arguments, "iter_num": 5}
    torch.save({**content, "config": {"dataset": "letters", "out_dir": "out"}}, folder / "ckpt.pt")
    return folder / "ckpt.pt"


def save_nanochat(folder: Path, weights: Weights, step: int = 7, **changes: Any) -> Path:
    torch.save(dict(weights), folder / f"model_{step:06d}.pt")
    config = {**NANOCHAT, **changes}
    (folder / f"meta_{step:06d}.json").write_text(json.dumps({"step": step, "val_bpb": 1.5, "model_config": config}))
    return folder / f"model_{step:06d}.pt"
