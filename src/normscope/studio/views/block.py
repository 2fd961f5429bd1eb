"""The tab "Block": the residual stream of a preset or a run, and every part of it on a real token."""

import dataclasses
from typing import Any

import msgspec
import torch

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import TEXT_NORMS
from normscope.blocks.residual import WIRINGS
from normscope.data.tokenizers import ByteTokenizer, Tokenizer
from normscope.errors import ConfigError
from normscope.inspection.arguments import preserve_rng
from normscope.inspection.draw import draw_block_of
from normscope.inspection.module_values import ModuleValues, module_values
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import PRESETS, preset
from normscope.studio.endpoints import Endpoint, Name, NoArguments
from normscope.studio.state import StudioState
from normscope.studio.token_text import token_text

SIZE = {"width": 64, "heads": 4, "depth": 2, "context": 128}
"""Presets are shown small: the parts and their order are the same, and the numbers fit on a screen."""
MAX_TEXT = 400
SHOWN = 256
"""Values of a vector that are sent."""


class BlockRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A model and a token in it.

    Args:
        model: The name of a preset, or `run:NAME`.
        text: The text that the model reads.
        position: Index of the token to look at; -1 for the last.
        block: Index of the block.
        settings: Settings that replace those of a preset: wiring, norm, activation, ...
    """

    model: Name
    text: str = "Once upon a time"
    position: int = -1
    block: int = 0
    settings: dict[str, str | int | None] = {}


def options(studio: StudioState, request: NoArguments) -> dict[str, object]:
    """What can be chosen."""
    return {
        "presets": list(PRESETS),
        "runs": studio.run_names(),
        "wiring": {name: wiring.formula for name, wiring in WIRINGS.items()},
        "norm": list(TEXT_NORMS),
        "activation": list(ACTIVATIONS),
    }


def block(studio: StudioState, request: BlockRequest) -> dict[str, object]:
    """Draw a block, and show what each of its parts does to a token."""
    if len(request.text) > MAX_TEXT:
        raise ConfigError(f"the text has {len(request.text)} characters\nfix: at most {MAX_TEXT}")
    with studio.rng_lock:
        return _block(studio, request)


def _block(studio: StudioState, request: BlockRequest) -> dict[str, object]:
    model, tokenizer = _model(studio, request)
    tokens = [int(token) for token in tokenizer.encode(request.text)][-model.config.context :] or [
        tokenizer.start_token_id
    ]
    drawing = draw_block_of(model.config, (1, len(tokens), model.config.width), request.model.removeprefix("run:"))
    values = module_values(model, torch.tensor(tokens), block=request.block, position=request.position)
    return {
        "svg": drawing.clickable_svg,
        "formula": WIRINGS[model.config.wiring].formula,
        "config": {name: _shown(value) for name, value in dataclasses.asdict(model.config).items()},
        "blocks": len(model.blocks),
        "parameters": sum(weight.numel() for weight in model.blocks[0].parameters()),
        "tokens": [token_text(tokenizer, token) for token in tokens],
        "parts": [_part(one) for one in values],
        "changes": _changes(model.config, request),
    }


def _model(studio: StudioState, request: BlockRequest) -> tuple[GPT, Tokenizer]:
    if request.model.startswith("run:"):
        if request.settings:
            raise ConfigError("the settings of a run are fixed\nfix: choose a preset to change them")
        return studio.load(request.model.removeprefix("run:"))
    tokenizer = ByteTokenizer()
    with preserve_rng():
        torch.manual_seed(0)
        model = GPT(preset(request.model, **{**SIZE, "vocab_size": tokenizer.vocab_size, **_given(request)})).eval()
        with torch.no_grad():  # some presets begin with zeros, which would show nothing
            for weight in model.parameters():
                if not weight.any():
                    weight.normal_(std=0.02)
    return model, tokenizer


def _given(request: BlockRequest) -> dict[str, Any]:
    unknown = request.settings.keys() - {"wiring", "norm", "activation", "qk_norm", "kv_heads", "window", "positions"}
    if unknown:
        raise ConfigError(f"{min(unknown)} cannot be changed here")
    return {name: value for name, value in request.settings.items() if value != ""}


def _changes(config: GPTConfig, request: BlockRequest) -> dict[str, object] | None:
    """What differs from the preset itself."""
    if not request.settings:
        return None
    with torch.device("meta"):
        before = GPT(preset(request.model, **{**SIZE, "vocab_size": config.vocab_size})).blocks[0]
        after = GPT(config).blocks[0]
    old, new = ({name: str(part) for name, part in one.named_modules() if name} for one in (before, after))
    return {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name] and "(" in new[name]),
        "parameters": [sum(weight.numel() for weight in one.parameters()) for one in (before, after)],
    }


def _part(values: ModuleValues) -> dict[str, object]:
    return {
        "name": values.name,
        "kind": values.kind,
        "details": values.details,
        "formula": values.formula,
        "code": values.code,
        "parameters": values.parameters,
        "input": _vector(values.input),
        "output": _vector(values.output),
    }


def _vector(vector: torch.Tensor | None) -> dict[str, object] | None:
    if vector is None:
        return None
    return {
        "size": vector.numel(),
        "mean": vector.mean().item(),
        "rms": vector.square().mean().sqrt().item(),
        "min": vector.min().item(),
        "max": vector.max().item(),
        "values": vector[:SHOWN],
    }


def _shown(value: object) -> object:
    return value if isinstance(value, int | float | str | bool | None) else str(value)


ENDPOINTS: dict[str, Endpoint] = {"block": block, "block/options": options}
