"""Compare with nanoGPT and with two versions of nanochat: their code writes a checkpoint, ours reads it, both run it.

    make peers NANOGPT=REPOSITORY NANOCHAT=REPOSITORY

Each is a git repository, from which the commits below are taken. Everything runs in float32 on the CPU, with random
weights. Their code is unchanged but for two things: an empty module stands in for rustbpe, which only trains
tokenizers, and the first version of nanochat gets cos and sin in float32 instead of bfloat16, so that the comparison is
exact. It asserts their dtype, therefore `python -O`.
Printed is the largest difference, relative to the largest number of the tensor (for gradients: or to a hundredth of the
largest of all).
"""

import contextlib
import io
import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.rotary import Rotary
from normscope.interop.checkpoint import ExternalCheckpoint, build_model
from normscope.interop.nano.nanochat import nanochat_weights, read_nanochat
from normscope.interop.nano.nanogpt import TABLE, read_nanogpt
from normscope.models.gpt import GPT, GPTConfig
from tests.peers.checkouts import checked_out
from tests.support import random_tokens

NANOGPT, NANOCHAT_2025, NANOCHAT_2026 = "3adf61e", "16788ee", "92d63d4"
VOCABULARY, CONTEXT, LENGTH, PREFILL = 500, 512, 300, 290
TOLERANCE = 1e-4

Convert = Callable[[GPTConfig, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""(config, their weights) -> our weights."""


def relative(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@torch.no_grad()
def randomize(model: nn.Module) -> None:
    """No zeros that hide a part, and logits of a usual size."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        scale = 1 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.3
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (parameter.dim() == 1))


def gradient_difference(ours: GPT, convert: Convert, theirs: nn.Module) -> float:
    """Their gradients go through the conversion of their weights: it is linear, and keeps lengths."""
    named = theirs.named_parameters(remove_duplicate=False)
    wanted = convert(ours.config, {name: weight.grad for name, weight in named if weight.grad is not None})
    largest = max(gradient.abs().max().item() for gradient in wanted.values())
    found = []
    for name, weight in ours.named_parameters():
        assert weight.grad is not None
        size = max(wanted[name].abs().max().item(), largest / 100)  # that of keys' biases is nothing but rounding
        found.append((weight.grad - wanted[name]).abs().max().item() / size)
    return max(found)


def compare(
    checkpoint: ExternalCheckpoint,
    convert: Convert,
    theirs: nn.Module,
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[GPT, dict[str, float]]:
    """Compare logits, loss and gradients; `run` returns their logits and loss."""
    ours = build_model(checkpoint).train()
    tokens, targets = (random_tokens(VOCABULARY, 2, LENGTH, seed=seed) for seed in (1, 2))
    targets[0, :3] = -1
    logits, loss = run(tokens, targets)
    loss.backward()
    our_loss = ours.loss(tokens, targets)
    our_loss.backward()
    return ours.eval(), {
        "logits": relative(ours(tokens), logits),
        "loss": relative(our_loss, loss),
        "gradients": gradient_difference(ours, convert, theirs),
    }


@torch.no_grad()
def decoded(model: GPT, tokens: Tensor) -> Tensor:
    """The logits after the prompt, and after each further token."""
    cache = model.new_cache(len(tokens))
    found = [model(tokens[:, :PREFILL], cache=cache, last_only=True)]
    found += [model(tokens[:, i : i + 1], cache=cache) for i in range(PREFILL, LENGTH)]
    return torch.cat(found, dim=1)


def compare_nanogpt(folder: Path, bias: bool) -> dict[str, float]:
    import model as nanogpt  # type: ignore[import-not-found]

    arguments = {"n_layer": 3, "n_head": 4, "n_embd": 128, "block_size": CONTEXT, "bias": bias, "dropout": 0.0}
    arguments["vocab_size"] = VOCABULARY
    theirs = nanogpt.GPT(nanogpt.GPTConfig(**arguments))
    randomize(theirs)
    torch.save({"model": theirs.state_dict(), "model_args": arguments, "iter_num": 1}, folder / "ckpt.pt")

    def run(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = theirs(tokens, targets)
        return logits, loss

    ours, found = compare(read_nanogpt(folder), TABLE.to_ours, theirs, run)
    tokens = random_tokens(VOCABULARY, 2, LENGTH, seed=3)
    with torch.no_grad():  # it has no cache, and returns the logits of the last token
        wanted = [theirs(tokens[:, : i + 1])[0] for i in range(PREFILL - 1, LENGTH)]
    return {**found, "decoding": relative(decoded(ours, tokens), torch.cat(wanted, dim=1))}


def compare_nanochat(folder: Path, exact: bool = False, **settings: Any) -> dict[str, float]:
    sys.modules.setdefault("rustbpe", types.ModuleType("rustbpe"))
    from nanochat.checkpoint_manager import save_checkpoint  # type: ignore[import-not-found]
    from nanochat.engine import KVCache  # type: ignore[import-not-found]
    from nanochat.gpt import GPT as TheirGPT  # type: ignore[import-not-found]  # noqa: N811
    from nanochat.gpt import GPTConfig as TheirConfig

    sizes = {
        "sequence_len": CONTEXT,
        "vocab_size": VOCABULARY,
        "n_layer": 5,
        "n_head": 4,
        "n_kv_head": 2,
        "n_embd": 128,
    }
    theirs = TheirGPT(TheirConfig(**sizes, **settings))
    theirs.init_weights()
    if exact:
        theirs.cos, theirs.sin = (
            table[None] for table in Rotary(32, 10 * CONTEXT).tables(torch.empty(1, 10 * CONTEXT, 1, 32), 0)
        )
    randomize(theirs)
    save_checkpoint(str(folder), 7, theirs.state_dict(), None, {"step": 7, "model_config": vars(theirs.config)})

    def run(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return theirs(tokens), theirs(tokens, targets)

    ours, found = compare(read_nanochat(folder), nanochat_weights, theirs, run)
    tokens = random_tokens(VOCABULARY, 2, LENGTH, seed=3)
    cache_sizes = {"batch_size": 2, "num_heads": 2, "seq_len": LENGTH, "head_dim": 32, "num_layers": 5}
    if settings:
        cache_sizes |= {"device": "cpu", "dtype": torch.float32}  # type: ignore[dict-item]
    cache = KVCache(**cache_sizes)
    with torch.no_grad():
        wanted = [theirs(tokens[:, :PREFILL], kv_cache=cache)[:, -1:]]
        wanted += [theirs(tokens[:, i : i + 1], kv_cache=cache) for i in range(PREFILL, LENGTH)]
    return {**found, "decoding": relative(decoded(ours, tokens), torch.cat(wanted, dim=1))}


def measure(repository: Path, commit: str, run: Callable[[Path], dict[str, float]]) -> dict[str, float]:
    quiet = contextlib.redirect_stdout(io.StringIO())
    with checked_out(repository, commit), tempfile.TemporaryDirectory() as folder, quiet:
        return run(Path(folder))


def main(nanogpt: Path, nanochat: Path) -> int:
    os.environ["NANOCHAT_DTYPE"] = "float32"
    results = {}
    for bias in (True, False):
        results[f"nanoGPT {NANOGPT}, bias={bias}"] = measure(
            nanogpt,
            NANOGPT,
            lambda folder, bias=bias: compare_nanogpt(folder, bias),  # type: ignore[misc]
        )
    results[f"nanochat {NANOCHAT_2025}"] = measure(nanochat, NANOCHAT_2025, partial(compare_nanochat, exact=True))
    rounded = measure(nanochat, NANOCHAT_2025, compare_nanochat)
    for pattern in ("SSSL", "SL", "L"):
        results[f"nanochat {NANOCHAT_2026}, {pattern}"] = measure(
            nanochat, NANOCHAT_2026, partial(compare_nanochat, window_pattern=pattern)
        )
    columns = ("logits", "loss", "gradients", "decoding")
    print(
        f"| {'version':46} | {' | '.join(columns)} |\n|{'-' * 48}|{'|'.join('-' * (len(one) + 2) for one in columns)}|"
    )
    for name, found in results.items():
        print(f"| {name:46} | {' | '.join(f'{found[one]:.1e}' for one in columns)} |")
    print(f"\nnanochat {NANOCHAT_2025} with cos and sin in bfloat16, as it is: logits {rounded['logits']:.1e}")
    return int(any(value > TOLERANCE for found in results.values() for value in found.values()))


if __name__ == "__main__":
    if __debug__:
        raise SystemExit("run it without assertions: python -O -m tests.peers.karpathy NANOGPT NANOCHAT")
    sys.exit(main(*map(Path, sys.argv[1:3])))
