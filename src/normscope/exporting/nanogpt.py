"""A checkpoint that nanoGPT's sample.py reads: ckpt.pt, and meta.pkl for tokenizers of characters or bytes.

Both are pickles, which nanoGPT needs; we write them, and never load one.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.errors import ConfigError
from normscope.exporting.library_tokenizer import OWN, OWN_CHARACTERS, eos_of
from normscope.exporting.model_source import ModelSource
from normscope.exporting.requirements import Requirements, check_representable, is_norm, is_one_of
from normscope.models.gpt import GPT

_GPT2_TOKENS, _GPT2_EOS = 50257, 50256

_REQUIREMENTS = [
    Requirements(
        f"a GPT with{'' if bias else 'out'} biases",
        {
            "positions": is_one_of("learned"),
            "rotary_base": lambda value: True,
            "norm": is_norm("standardize", bias=bias, eps=1e-5),
            "activation": is_one_of("gelu"),
            "bias": is_one_of(bias),
            "tied_head": is_one_of(True),
            "wiring": is_one_of("pre"),
        },
    )
    for bias in (True, False)
]
_LAYERS = {
    "wte": ("embedding",),
    "wpe": ("position",),
    "h.{i}.ln_1": ("blocks.{i}.norms.0",),
    "h.{i}.attn.c_attn": ("blocks.{i}.attention.q", "blocks.{i}.attention.k", "blocks.{i}.attention.v"),
    "h.{i}.attn.c_proj": ("blocks.{i}.attention.out",),
    "h.{i}.ln_2": ("blocks.{i}.norms.1",),
    "h.{i}.mlp.c_fc": ("blocks.{i}.mlp.up",),
    "h.{i}.mlp.c_proj": ("blocks.{i}.mlp.down",),
    "ln_f": ("final_norm",),
}


def check_nanogpt(source: ModelSource) -> None:
    """Raise a ConfigError if nanoGPT cannot run the model."""
    config, tokenizer = source.model.config, source.tokenizer
    check_representable(config, "nanoGPT", _REQUIREMENTS, preset="gpt2")
    if config.hidden_size != 4 * config.width:
        raise ConfigError(
            f"nanoGPT cannot run this model: hidden={config.hidden_size} must be 4 * width={config.width}"
        )
    is_gpt2 = (tokenizer.vocab_size, eos_of(tokenizer)) == (_GPT2_TOKENS, _GPT2_EOS)
    if not isinstance(tokenizer, OWN) and not is_gpt2:
        raise ConfigError(
            f"nanoGPT has only tokenizers of characters and GPT-2's, but this one is {tokenizer.kind} with "
            f"{tokenizer.vocab_size:,} tokens\nfix: train with --tokenizer characters, or use --to hf"
        )


def write_nanogpt(source: ModelSource, weights: str, folder: Path) -> None:
    """Write ckpt.pt and, if the tokenizer needs it, meta.pkl into an empty folder."""
    config = source.model.config
    arguments = {
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_embd": config.width,
        "block_size": config.context,
        "bias": config.bias,
        "vocab_size": config.vocab_size,
        "dropout": config.dropout,
    }
    content = {
        "model": nanogpt_weights(source.model),
        "model_args": arguments,
        "iter_num": source.facts.get("step", 0),
        "best_val_loss": source.facts.get("loss"),
        "config": {**arguments, "dataset": source.name},
    }
    torch.save(content, folder / "ckpt.pt")
    meta = nanogpt_meta(source.tokenizer)
    if meta is not None:
        buffer = io.BytesIO()
        pickle.dump(meta, buffer)
        (folder / "meta.pkl").write_bytes(buffer.getvalue())


def nanogpt_weights(model: GPT) -> dict[str, Tensor]:
    """The state_dict of nanoGPT's model."""
    state, found = model.state_dict(), {}
    for theirs, ours in _LAYERS.items():
        for i in range(model.config.depth if "{i}" in theirs else 1):
            for part in ("weight", "bias"):
                names = [f"{name}.{part}".format(i=i) for name in ours]
                if names[0] in state:
                    tensors = [state[name].detach().float() for name in names]
                    found[f"transformer.{theirs}.{part}".format(i=i)] = torch.cat(tensors)
    found["lm_head.weight"] = found["transformer.wte.weight"]
    return found


def nanogpt_meta(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The contents of meta.pkl; None for GPT-2's tokenizer, which nanoGPT takes without it.

    sample.py encodes character by character. A byte that is no character by itself is shown as U+FFFD.
    """
    if isinstance(tokenizer, OWN_CHARACTERS):
        names = list(tokenizer.alphabet)
    elif isinstance(tokenizer, ByteTokenizer):
        names = [chr(byte) if byte < 128 else "\N{REPLACEMENT CHARACTER}" for byte in range(256)]
    else:
        return None
    numbers = {name: token for token, name in enumerate(names) if name != "\N{REPLACEMENT CHARACTER}"}
    end = {len(names): ""} if tokenizer.has_eos else {}
    return {"vocab_size": tokenizer.vocab_size, "itos": {**dict(enumerate(names)), **end}, "stoi": numbers}
