"""`normscope draw`: draw scopes, blocks and models in the terminal or as SVG."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from normscope.checks import short_repr
from normscope.cli import options as opt
from normscope.drawing.scopes.draw_scope import draw_rich, draw_scope, draw_svg
from normscope.drawing.scopes.gallery import gallery_svg
from normscope.errors import ConfigError
from normscope.storage.files import write_atomically

_MAX_DIGITS = 15
"""Maximum digits of a size: a tensor of 10^15 elements takes petabytes."""


@dataclass(frozen=True)
class DrawScope:
    """Draw which elements of a tensor share statistics.

    Example: normscope draw scope "n (g [c]) [h w]" g=2 --shape 2,4,3,3
    """

    scope: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SCOPE")]
    """Axes of the tensor, with those that share statistics in brackets."""

    shape: Annotated[str, tyro.conf.arg(metavar="SIZE,SIZE,...")]
    """Shape of the tensor: 2,4,3,3 or "(2, 4, 3, 3)"."""

    sizes: Annotated[tyro.conf.Positional[tuple[str, ...]], opt.option("[AXIS=SIZE ...]")] = ()
    """Sizes that the shape does not determine, such as g=2."""

    svg: opt.OptionalFile = None
    """Write an SVG image to this file."""


@dataclass(frozen=True)
class DrawGallery:
    """Draw the named norms side by side, as an SVG image."""

    svg: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Output file."""


@dataclass(frozen=True)
class DrawBlock:
    """Draw one transformer block: the residual stream, its branches, and the shape at every arrow.

    Example: normscope draw block --preset nanochat --shape 8,1024,768 --wiring sandwich
    """

    preset: opt.Str = "nanochat"
    """Preset: nanochat, nanochat-2026-07, gpt2, llama, encoder or vit."""

    shape: Annotated[str, tyro.conf.arg(metavar="B,S,D")] = "8,1024,768"
    """Input shape: batch, sequence length, width."""

    wiring: opt.OptionalStr = None
    """Residual wiring: pre, post, sandwich, parallel, parallel-2, branch, single or none."""

    model: opt.Settings = ()
    """Other model settings, such as activation=swiglu kv_heads=2 qk_norm=rms."""

    svg: opt.OptionalFile = None
    """Write an SVG image to this file."""


@dataclass(frozen=True)
class DrawModel:
    """Draw a whole model, with identical blocks folded, shapes and parameter counts.

    Examples: normscope draw model --preset gpt2, normscope draw model runs/stories
    """

    source: Annotated[tyro.conf.Positional[Path | None], opt.option("[SOURCE]")] = None
    """Run folder, Hugging Face folder, a checkpoint of another tool (see docs/import.md), or a preset."""

    preset: opt.OptionalStr = None
    """Preset: nanochat (default), gpt2, llama, encoder, vit or convnet."""

    shape: Annotated[str | None, opt.option("SIZE,SIZE,...")] = None
    """Input shape: batch and sequence length, or a batch of images."""

    wiring: opt.OptionalStr = None
    """Residual wiring: pre, post, sandwich, parallel, parallel-2, branch, single or none."""

    model: opt.Settings = ()
    """Other model settings, such as depth=4 activation=swiglu."""

    expand: opt.Flag = False
    """Also draw the inside of attention and MLP."""

    svg: opt.OptionalFile = None
    """Write an SVG image to this file."""


def _scope(command: DrawScope) -> None:
    alone = [text for text in command.sizes if text.strip(",").isdecimal()]
    if alone:
        joined = ",".join(text.strip(",") for text in (command.shape, *alone))
        apart = " and ".join(repr(text) for text in alone)
        raise ConfigError(f"unexpected argument {apart}: a shape contains no spaces\nfix: --shape {joined}")
    shape, sizes = _shape(command.shape), _sizes(command.sizes)
    show = {"svg": draw_svg, "rich": draw_rich, "text": draw_scope}
    _show(command.svg, lambda form: show[form](command.scope, shape, **sizes))


def _block(command: DrawBlock) -> None:
    from normscope.inspection.draw import draw_block  # imports torch, which drawing a scope does not need

    drawing = draw_block(command.preset, _shape(command.shape), _settings(command))
    _show(command.svg, partial(getattr, drawing))


def _model(command: DrawModel) -> None:
    from normscope.inspection.draw import draw_preset, draw_target

    settings = _settings(command)
    shape = None if command.shape is None else _shape(command.shape)
    if command.source is None:
        drawing = draw_preset(command.preset or "nanochat", shape, settings, command.expand)
    elif command.preset is not None:
        raise ConfigError(f"{command.source} cannot be used with --preset {command.preset}\nfix: remove one of them")
    else:
        drawing = draw_target(str(command.source), shape, settings, command.expand)
    _show(command.svg, partial(getattr, drawing))


def _settings(command: DrawBlock | DrawModel) -> dict[str, Any]:
    return opt.join_settings({} if command.wiring is None else {"wiring": command.wiring}, command.model)


def _gallery(command: DrawGallery) -> None:
    _show(command.svg, lambda _: gallery_svg())


def _show(svg: Path | None, drawing: Callable[[str], Any]) -> None:
    """Save the "svg" form of a drawing, or print its "rich" or "text" form."""
    if svg is not None:
        write_atomically(svg, drawing("svg"))
        print(f"wrote {svg}")
    elif sys.stdout.isatty():
        from normscope.render.console import SafeConsole

        SafeConsole().print(drawing("rich"), soft_wrap=True)
    else:
        print(drawing("text"))


def _shape(text: str) -> tuple[int, ...]:
    inner = text.strip()
    for before, after in (("torch.Size([", "])"), ("(", ")"), ("[", "]")):  # as x.shape is printed
        if inner.startswith(before) and inner.endswith(after):
            inner = inner.removeprefix(before).removesuffix(after).strip().removesuffix(",")
            break
    if not re.fullmatch(r"\s*\d+(\s*[,x]\s*\d+)*\s*", inner, re.ASCII):
        raise ConfigError(f"invalid shape {text!r}: expected comma-separated integers\nfix: --shape 2,4,3,3")
    sizes = re.findall(r"\d+", inner)
    if max(map(len, sizes)) > _MAX_DIGITS:
        raise ConfigError(f"a size of {max(map(len, sizes))} digits is too large\nfix: --shape 2,4,3,3")
    return tuple(map(int, sizes))


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not re.fullmatch(rf"-?\d{{1,{_MAX_DIGITS}}}", size, re.ASCII):
            problem = f"expected AXIS=SIZE with an integer size, but got {short_repr(text)}"
            raise ConfigError(f"{problem}\nfix: {short_repr(name)[1:-1] or 'g'}=2")
        if name in sizes:
            raise ConfigError(f"duplicate size for axis {name!r}\nfix: give it once")
        sizes[name] = int(size)
    return sizes


SUBCOMMANDS: opt.Subcommands = {
    "scope": (DrawScope, _scope),
    "block": (DrawBlock, _block),
    "model": (DrawModel, _model),
    "gallery": (DrawGallery, _gallery),
}


def main(arguments: Sequence[str]) -> int:
    if arguments and "[" in arguments[0]:
        fix = f"normscope draw scope {shlex.join(arguments)}"
        raise ConfigError(f"unrecognized subcommand {arguments[0]!r}\nfix: {fix}")
    return opt.run_subcommand("draw", "Draw a scope, a block or a whole model.", SUBCOMMANDS, arguments)
