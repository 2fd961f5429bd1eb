"""Draw a block or a model by name: a preset, a run or a Hugging Face checkpoint."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.residual import WIRINGS
from normscope.blocks.rotary import rotary_for_layers
from normscope.checks import as_path, check_flags, check_positive_int, did_you_mean, short_repr
from normscope.drawing.draw_model import Drawing, draw_model
from normscope.errors import ConfigError, NormscopeError
from normscope.inspection.arguments import Shape, check_model_settings, check_shape
from normscope.models.convnet import ConvNet, ConvNetConfig
from normscope.models.encoder import Encoder, EncoderConfig
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import PRESETS, preset
from normscope.models.vit import ViT, ViTConfig
from normscope.runs.read_source import find_source
from normscope.runs.run import Run

AXIS_NAMES = {
    "b": "batch",
    "n": "batch",
    "s": "tokens",
    "d": "width",
    "h": "heads",
    "k": "key/value heads",
    "e": "head dimension",
    "f": "MLP hidden size",
    "v": "vocabulary",
}
"""Meaning of the axis letters in a drawing."""
IMAGE_AXIS_NAMES = {"n": "batch", "c": "channels", "h": "height", "w": "width"}
PATCH_AXIS_NAMES = {**AXIS_NAMES, "c": "channels", "y": "rows", "x": "columns", "s": "patches"}
"""Axis letters for images, and for images split into patches."""


_BASE: Mapping[str, Any] = {"width": 768, "heads": 12, "depth": 12}
CONFIGS: Mapping[str, Callable[..., Any]] = {
    **PRESETS,
    "encoder": partial(EncoderConfig, vocab_size=30522, context=512, **_BASE),  # BERT-base
    "vit": partial(ViTConfig, image_size=224, patch=16, classes=1000, **_BASE),  # ViT-B/16
    "convnet": partial(ConvNetConfig, image_size=32),
}
"""Models that can be drawn by name: the GPT presets, and the other models at a common size."""

_MODELS: Mapping[type, Callable[[Any], nn.Module]] = {
    GPTConfig: GPT,
    EncoderConfig: Encoder,
    ViTConfig: ViT,
    ConvNetConfig: ConvNet,
}


def draw_block(
    preset: str = "nanochat", shape: Shape = (8, 1024, 768), model: Mapping[str, Any] | None = None
) -> Drawing:
    """Draw one transformer block, like `normscope draw block`.

    Args:
        preset: nanochat, nanochat-2026-07, gpt2, llama, encoder or vit.
        shape: Input shape: batch, sequence length, width.
        model: Model settings by name, such as {"wiring": "sandwich"}.
    """
    name, settings = preset, {} if model is None else model
    _choose("preset", name, [name for name in CONFIGS if name != "convnet"])
    shape = check_shape(shape)
    if len(shape) != 3:
        got = f"{len(shape)} sizes: {','.join(map(str, shape))}"
        raise ConfigError(f"the input shape of a block is batch,length,width, but got {got}\nfix: --shape 8,1024,768")
    check_model_settings(settings, width=f"the last size of the shape, {shape[2]}")
    config = _config(name, {**settings, "width": shape[2], "depth": 1}, tokens=shape[1])
    return draw_block_of(config, shape, name)


def draw_block_of(config: BlockConfig, shape: Shape, name: str) -> Drawing:
    """Draw one block of this config for inputs of this shape; `name` is the model's."""
    with torch.device("meta"):  # a drawing needs only shapes
        rotary = None
        if isinstance(config, GPTConfig):
            layers = config.rotary_of_layers(1)
            (rotary,) = rotary_for_layers(layers, config.head_sizes[2], config.context, config.rotary_dim)
        block = Block(config, rotary).eval()
        x = torch.empty(shape)
    count = sum(parameter.numel() for parameter in block.parameters())
    title = f"A block of {name} · wiring {config.wiring} · {count:,} parameters"
    drawing = draw_model(block, x, axes=_unambiguous(_letters(config, shape)), expand=True, title=title)
    notes = (WIRINGS[config.wiring].formula, *drawing.notes)
    return dataclasses.replace(drawing, notes=notes, axis_meanings=AXIS_NAMES)


def draw_target(
    target: str | Path = "nanochat",
    shape: Shape | None = None,
    model: Mapping[str, Any] | None = None,
    expand: bool = False,
) -> Drawing:
    """Draw a model by name, like `normscope draw model`; see `draw_model` for a model in memory.

    Args:
        target: A preset (nanochat, gpt2, llama, encoder, vit, convnet), a run folder, or a file or folder
            of another tool.
        shape: Input shape: batch and sequence length, or a batch of images.
        model: Settings of a preset by name, such as {"depth": 4}.
        expand: Also draw the inside of attention and MLP.
    """
    path, settings = as_path(target, "a model"), {} if model is None else model
    check_model_settings(settings)
    source = find_source(path, CONFIGS)
    if source.kind == "preset":
        return draw_preset(str(path), shape, settings, expand)
    if settings:
        fix = "remove them, or use a preset instead of the folder"
        raise ConfigError(f"the settings of the model in {target} are fixed, but got {', '.join(settings)}\nfix: {fix}")
    config = Run.open(path).config.model if source.read is None else source.read(path).config
    with torch.device("meta"):  # a drawing needs only shapes
        found = GPT(config).eval()
    return _draw(found, str(path), shape, expand)


def draw_preset(name: str, shape: Shape | None, settings: Mapping[str, Any], expand: bool) -> Drawing:
    """Draw a preset, with its blocks folded."""
    _choose("preset", name, CONFIGS)
    config = _config(name, settings)
    with torch.device("meta"):
        model = _MODELS[type(config)](config).eval()
    return _draw(model, name, shape, expand, is_preset=True)


def _draw(model: nn.Module, name: str, shape: Shape | None, expand: bool, *, is_preset: bool = False) -> Drawing:
    check_flags(expand=expand)
    x, axis_names = _input(model, shape, is_preset)
    count = sum(parameter.numel() for parameter in model.parameters())
    title = f"{name} · {type(model).__name__} · {count:,} parameters"
    drawing = draw_model(model, x, axes=axis_names, expand=expand or None, title=title)
    axis_meanings = {ConvNetConfig: IMAGE_AXIS_NAMES, ViTConfig: PATCH_AXIS_NAMES}.get(type(model.config), AXIS_NAMES)
    return dataclasses.replace(drawing, axis_meanings=axis_meanings)


def _input(model: nn.Module, shape: Shape | None, is_preset: bool) -> tuple[Tensor, Mapping[Shape, str]]:
    """The input of a model, of the given or a default shape, and its axis letters."""
    config: Any = model.config
    is_text = isinstance(config, GPTConfig | EncoderConfig)
    usual = (8, min(config.context, 1024)) if is_text else (8, config.channels, config.image_size, config.image_size)
    shape = usual if shape is None else check_shape(shape)
    fits = len(shape) == 2 and shape[1] <= config.context if is_text else shape[1:] == usual[1:]
    if not fits:
        wanted = f"batch and up to {config.context} tokens" if is_text else f"(batch, {', '.join(map(str, usual[1:]))})"
        got, good = ",".join(map(str, shape)), ",".join(map(str, usual))
        more = f" --model context={shape[1]}" if is_text and len(shape) == 2 and is_preset else ""
        fix = f"--shape {got}{more}, or --shape {good}" if more else f"--shape {good}"
        raise ConfigError(f"this model expects {wanted}, but got the shape {got}\nfix: {fix}")
    x = torch.empty(shape, dtype=torch.int64 if is_text else torch.float32, device="meta")
    return x, _unambiguous(_axes(config, shape))


def _axes(config: Any, shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Axis letters of the shapes in a model, given the shape of its input."""
    batch = shape[0]
    if isinstance(config, ConvNetConfig):
        yield shape, "n c h w"
        for _, width, _, size in config.stages():
            yield (batch, width, size, size), "n c h w"
        yield (batch, config.widths[-1]), "n c"
        return
    if isinstance(config, ViTConfig):
        yield shape, "b c y x"  # h is the heads'
        tokens = (config.image_size // config.patch) ** 2
        yield (batch, config.width), "b d"
    else:
        yield shape, "b s"
        tokens = shape[1]
        yield (batch, tokens, config.vocab_size), "b s v"
    yield (tokens, config.width), "s d"
    yield from _letters(config, (batch, tokens, config.width))


def _letters(config: BlockConfig, shape: Shape) -> Iterator[tuple[Shape, str]]:
    """Axis letters of every shape in a block."""
    b, s, _ = shape
    heads, kv_heads, head_dim = config.head_sizes
    yield shape, "b s d"
    yield (b, s, config.hidden_size), "b s f"
    for count, letter in ((heads, "h"), (kv_heads, "k")) if kv_heads != heads else ((heads, "h"),):
        yield (b, s, count, head_dim), f"b s {letter} e"
        yield (b, count, s, head_dim), f"b {letter} s e"


def _unambiguous(shapes: Iterable[tuple[Shape, str]]) -> dict[Shape, str]:
    """The axis letters of each shape, without those that have several."""
    found: defaultdict[Shape, set[str]] = defaultdict(set)
    for shape, axis_names in shapes:
        found[shape].add(axis_names)
    return {shape: axis_names.pop() for shape, axis_names in found.items() if len(axis_names) == 1}


def _config(name: str, settings: Mapping[str, Any], tokens: int = 0) -> Any:
    """Config of a preset with these settings, and a context of at least `tokens`."""
    if "wiring" in settings:
        _choose("wiring", settings["wiring"], WIRINGS)
    try:
        usual = CONFIGS[name]()
        if isinstance(usual, BlockConfig):
            _check_heads({**vars(usual), **settings})
        if tokens and hasattr(usual, "context"):
            settings = {"context": max(tokens, usual.context), **settings}
        config = preset(name, **settings) if name in PRESETS else CONFIGS[name](**settings)
    except TypeError as error:  # an unknown setting
        reason = str(error).replace("EncoderConfig.__init__() ", "").replace("ViTConfig.__init__() ", "")
        raise ConfigError(f"{name}: {reason}\nfix: remove it") from None
    except NormscopeError as error:
        if "fix: " in str(error):
            raise
        raise ConfigError(f"{error}\nfix: change the sizes, or the settings after --model") from error
    return config


def _check_heads(settings: Mapping[str, Any]) -> None:
    width, heads = settings["width"], settings["heads"]
    check_positive_int(width=width, heads=heads)
    if settings["head_dim"] is None and width % heads:
        some = range(1, min(width, 4096) + 1)  # suggest only plausible numbers of heads
        near = min((n for n in some if width % n == 0), key=lambda n: abs(n - heads))
        raise ConfigError(f"width={width} is not divisible by heads={heads}\nfix: --model heads={near}")


def _choose(kind: str, name: str, names: Iterable[str]) -> None:
    if isinstance(name, str) and name in names:
        return
    raise ConfigError(f"unknown {kind} {short_repr(name)}\nfix: {did_you_mean(name, names)}")
