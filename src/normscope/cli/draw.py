"""`normscope draw`: pictures of scopes, of blocks and of models, in the terminal or as SVG files."""

import difflib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from normscope.checks import short_repr
from normscope.cli.options import Flag, OptionalStr, read_arguments
from normscope.drawing.scopes.draw_scope import draw, draw_rich, draw_svg
from normscope.drawing.scopes.gallery import gallery_svg
from normscope.errors import ConfigError
from normscope.storage.files import write_atomically

if TYPE_CHECKING:
    from normscope.drawing.draw_model import Drawing

_MOST_DIGITS = 15
"""Of a size: a tensor of 10^15 numbers has petabytes."""
Settings = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")]


@dataclass(frozen=True)
class DrawScope:
    """Draw which cells of a tensor share one mean.

    For instance: normscope draw scope "n (g [c]) [h w]" g=2 --shape 2,4,3,3
    """

    scope: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SCOPE")]
    """The axes of the tensor, those that share statistics in brackets."""

    shape: Annotated[str, tyro.conf.arg(metavar="SIZE,SIZE,...")]
    """The shape of the tensor, for instance 2,4,3,3; one that was printed, "(2, 4, 3, 3)", will do."""

    sizes: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[AXIS=SIZE ...]", help_behavior_hint="")
    ] = ()
    """Sizes that the shape alone does not tell, for instance g=2."""

    svg: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Write an SVG image to this file instead."""


@dataclass(frozen=True)
class DrawGallery:
    """Draw the named norms side by side, as an SVG image."""

    svg: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The file to write."""


@dataclass(frozen=True)
class DrawBlock:
    """Draw one block: the residual stream as a straight line, its branches, and the shape at every arrow.

    For instance: normscope draw block --preset nanochat --shape 8,1024,768 --wiring sandwich
    """

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "nanochat"
    """Whose block: nanochat, gpt2, llama, encoder or vit."""

    shape: Annotated[str, tyro.conf.arg(metavar="B,S,D")] = "8,1024,768"
    """The shape of what it is given: batch, tokens, width."""

    wiring: OptionalStr = None
    """How branches join the stream: pre, post, sandwich, parallel, single or none."""

    model: Settings = ()
    """Any other setting, for instance activation=swiglu kv_heads=2 qk_norm=rms."""

    svg: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Write an SVG image to this file instead."""


@dataclass(frozen=True)
class DrawModel:
    """Draw a whole model, blocks that are alike once, with shapes and numbers of parameters.

    For instance: normscope draw model --preset gpt2, or of a folder: normscope draw model runs/stories
    """

    folder: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[FOLDER]", help_behavior_hint="")] = (
        None
    )
    """The folder of a run, or of a Hugging Face checkpoint of GPT-2 or Llama."""

    preset: OptionalStr = None
    """Without a folder: nanochat, which is drawn unless told, gpt2, llama, encoder, vit or convnet."""

    shape: Annotated[str | None, tyro.conf.arg(metavar="SIZE,SIZE,...", help_behavior_hint="")] = None
    """The shape of what it is given: batch and tokens, or images."""

    wiring: OptionalStr = None
    """How branches join the stream: pre, post, sandwich, parallel, single or none."""

    model: Settings = ()
    """Any other setting, for instance depth=4 activation=swiglu."""

    inside: Flag = False
    """Draw what is in attention and MLP, too."""

    svg: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Write an SVG image to this file instead."""


Command = (
    Annotated[DrawScope, tyro.conf.subcommand(name="scope")]
    | Annotated[DrawBlock, tyro.conf.subcommand(name="block")]
    | Annotated[DrawModel, tyro.conf.subcommand(name="model")]
    | Annotated[DrawGallery, tyro.conf.subcommand(name="gallery")]
)


def main(arguments: Sequence[str]) -> None:
    _check_drawing(arguments)
    command: DrawScope | DrawBlock | DrawModel | DrawGallery = read_arguments(
        cast(Any, Command),
        "draw",
        arguments,
        "Draw which cells of a tensor share one mean, or how a block or a model is wired.",
    )
    if isinstance(command, DrawGallery):
        _save(command.svg, gallery_svg())
    elif isinstance(command, DrawScope):
        _scope(command)
    else:
        _show(_drawing(command), command.svg)


def _drawing(command: DrawBlock | DrawModel) -> "Drawing":
    from normscope.cli import draw_models  # brings torch, which scopes do without

    settings = draw_models.parse_settings(command.model, wiring=command.wiring)
    if isinstance(command, DrawBlock):
        return draw_models.draw_block(command.preset, _shape(command.shape), settings)
    shape = None if command.shape is None else _shape(command.shape)
    if command.folder is None:
        return draw_models.draw_preset(command.preset or "nanochat", shape, settings, command.inside)
    if command.preset is not None:
        raise ConfigError(
            f"there is one model to draw, but got the folder {command.folder} and --preset {command.preset}\n"
            f"fix: leave one of them out"
        )
    if settings:
        raise ConfigError(
            f"the model in {command.folder} has its settings already, but got {', '.join(settings)}\n"
            f"fix: leave them out, or name a preset in place of the folder"
        )
    return draw_models.draw_folder(command.folder, shape, command.inside)


def _show(drawing: "Drawing", svg: Path | None) -> None:
    if svg is not None:
        _save(svg, drawing.svg)
    elif sys.stdout.isatty():
        from normscope.render.console import SafeConsole

        SafeConsole().print(drawing.rich, soft_wrap=True)
    else:
        print(drawing.text)


def _check_drawing(arguments: Sequence[str]) -> None:
    """Name the drawing that was meant: tyro would only list what it does not know."""
    drawings = ("scope", "block", "model", "gallery")
    if not arguments or arguments[0].startswith("-") or arguments[0] in drawings:
        return
    first = arguments[0]
    close = difflib.get_close_matches(first, drawings, n=1)
    fix = f"did you mean '{close[0]}'?" if close else f"use one of: {', '.join(drawings)}"
    if "[" in first:
        fix = f"normscope draw scope {shlex.join(arguments)}"
    raise ConfigError(f"there is no drawing {first!r}\nfix: {fix}")


def _scope(command: DrawScope) -> None:
    alone = [text for text in command.sizes if text.strip(",").isdecimal()]
    if alone:
        joined = ",".join(text.strip(",") for text in (command.shape, *alone))
        apart = " and ".join(repr(text) for text in alone)
        raise ConfigError(f"a shape is one word, but got {apart} apart from it\nfix: --shape {joined}")
    shape, sizes = _shape(command.shape), _sizes(command.sizes)
    if command.svg is not None:
        _save(command.svg, draw_svg(command.scope, shape, **sizes))
    elif sys.stdout.isatty():
        from normscope.render.console import SafeConsole

        SafeConsole().print(draw_rich(command.scope, shape, **sizes), soft_wrap=True)
    else:
        print(draw(command.scope, shape, **sizes))


def _save(path: Path, image: str) -> None:
    write_atomically(path, image)
    print(f"wrote {path}")


def _shape(text: str) -> tuple[int, ...]:
    inner = text.strip()
    for before, after in (("torch.Size([", "])"), ("(", ")"), ("[", "]")):  # as x.shape is printed
        if inner.startswith(before) and inner.endswith(after):
            inner = inner.removeprefix(before).removesuffix(after).strip().removesuffix(",")
            break
    if not re.fullmatch(r"\s*\d+(\s*[,x]\s*\d+)*\s*", inner, re.ASCII):
        raise ConfigError(f"a shape is whole numbers with commas between them, but got {text!r}\nfix: --shape 2,4,3,3")
    sizes = re.findall(r"\d+", inner)
    if max(map(len, sizes)) > _MOST_DIGITS:
        raise ConfigError(f"a size of {max(map(len, sizes))} digits is no tensor's\nfix: --shape 2,4,3,3")
    return tuple(map(int, sizes))


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not re.fullmatch(rf"-?\d{{1,{_MOST_DIGITS}}}", size, re.ASCII):
            problem = f"a size is the name of an axis, '=' and a whole number, but got {short_repr(text)}"
            raise ConfigError(f"{problem}\nfix: {short_repr(name)[1:-1] or 'g'}=2")
        if name in sizes:
            raise ConfigError(f"the size of axis {name!r} is given twice\nfix: give it once")
        sizes[name] = int(size)
    return sizes
