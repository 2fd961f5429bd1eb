"""`draw_model`: draw any torch module from a trace of one forward pass."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from normscope.checks import short_repr
from normscope.drawing import render_svg, render_text
from normscope.drawing.compose import compose
from normscope.drawing.labels import Labels
from normscope.drawing.layout import compute_layout
from normscope.drawing.marks import Label, MarkGroup
from normscope.drawing.structure import Chain
from normscope.errors import ArgumentTypeError, ConfigError
from normscope.tracing.recorder import trace_model
from normscope.tracing.trace import ModelTrace, Shape

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80


@dataclass(frozen=True)
class Drawing:
    """A drawing of a module: `print(drawing)`, `drawing.svg`, `drawing.rich`. Notebooks display it as SVG.

    Args:
        title: the title.
        notes: lines below the title.
        trace: the trace of the module.
        chain: what is drawn of it.
        axis_names: names for the axes of shapes.
        axis_meanings: the meaning of each axis name, for the legend.
    """

    title: str
    notes: tuple[str, ...]
    trace: ModelTrace
    chain: Chain
    axis_names: Mapping[Shape, str]
    axis_meanings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _labels(self) -> Labels:
        """Labels that make the drawing fit a terminal.

        Try axis names with sizes first, then without the sizes of long shapes or of all shapes, if the legend can show
        them, then without axis names.
        """
        full = Labels(self.trace, self.axis_names)
        options = [full]
        if _sizes(self.axis_names) is not None:
            options += [replace(full, max_sized_axes=most) for most in (3, 0)]
        for most in (3, 0):
            short = {shape: names for shape, names in self.axis_names.items() if len(shape) <= most}
            options.append(replace(full, axis_names=short))
        return min(options, key=lambda labels: max(WIDTH, compute_layout(self.chain, labels).width))

    @cached_property
    def layout(self) -> MarkGroup:
        """The layout in a terminal."""
        return compute_layout(self.chain, self._labels)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """The lines above the drawing: the title, the notes, and a legend of the axis names."""
        return self._head(self._labels, self.layout)

    def _head(self, labels: Labels, layout: MarkGroup) -> tuple[str, ...]:
        shown_labels = {mark.text for mark in layout.marks if isinstance(mark, Label)}
        shown = [names for shape, names in labels.axis_names.items() if labels.shape(shape) in shown_labels]
        used = {letter for names in shown for letter in names.split()}
        ordered = sorted(used, key=[*self.axis_meanings, *sorted(used)].index)
        is_short = any(labels.shape(shape) == names for shape, names in labels.axis_names.items() if names in shown)
        sizes = _sizes(labels.axis_names) if is_short else None
        meaning = self.axis_meanings
        known = [(axis, meaning.get(axis, ""), f"{sizes[axis]}" if sizes else "") for axis in ordered]
        legend = ", ".join(" ".join(filter(None, part)) for part in known if any(part[1:]))
        notes = (self.title, *self.notes, legend)
        return tuple(line for note in notes for line in textwrap.wrap(note, WIDTH))

    @cached_property
    def text(self) -> str:
        """The drawing as plain text."""
        return "\n".join((*self.head, "", render_text.draw_text(self.layout)))

    @cached_property
    def rich(self) -> "Text":
        """The drawing for a terminal with colors."""
        from rich.text import Text  # imported on use: slow

        head = Text(no_wrap=True).append(f"{self.head[0]}\n", style="bold")
        head.append("".join(f"{note}\n" for note in self.head[1:]) + "\n", style="dim")
        return head.append(render_text.draw_rich(self.layout))

    @cached_property
    def svg(self) -> str:
        """The drawing as a self-contained SVG image, for light and dark pages."""
        return self._svg()

    @cached_property
    def clickable_svg(self) -> str:
        """The same, with the name of the module in an attribute of each box, `data-module`."""
        return self._svg(name_modules=True)

    def _svg(self, *, name_modules: bool = False) -> str:
        labels = Labels(self.trace, self.axis_names)  # a page is wide enough for all labels
        layout = compute_layout(self.chain, labels)
        return render_svg.draw_svg(layout, *self._head(labels, layout), name_modules=name_modules)

    def __str__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str:
        return self.svg


def draw_model(
    model: nn.Module,
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    axes: str | Mapping[Shape, str] | None = None,
    expand: bool | None = None,
    title: str | None = None,
) -> Drawing:
    """Draw any torch module: its boxes, the shape on every arrow, and the residual stream as a straight line.

    Runs the module once on these inputs, in its current mode, and draws the trace. Residual branches are found in the
    dataflow, independent of module names. The run uses fake tensors, so a large model costs no memory or time; a
    module whose control flow depends on values runs on real tensors. The module is left unchanged.

    Args:
        model: the module.
        inputs: its positional arguments.
        options: its keyword arguments.
        axes: names for the axes of the first input, such as "b s d", or a mapping of shapes to names.
        expand: draw the contents of attention, MLPs and other submodules. None does so unless blocks are repeated.
        title: the title. The default is the class name and the number of parameters.

    Example:
        >>> import torch
        >>> class Halves(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        ...     def forward(self, x):
        ...         return x + self.down(torch.relu(self.up(x)))
        >>> print(draw_model(Halves(), torch.randn(2, 8), axes="n d"))
        Halves · 280 parameters
        <BLANKLINE>
           x
           ┃ n d 2×8
           ┠──────────┐
           ┃       n d 2×8
           ┃  ┌───────▼───────┐
           ┃  │      up       │
           ┃  │ Linear · 144  │
           ┃  └───────┬───────┘
           ┃        2×16
           ┃      ┌───▼───┐
           ┃      │ relu  │
           ┃      └───┬───┘
           ┃        2×16
           ┃  ┌───────▼───────┐
           ┃  │     down      │
           ┃  │ Linear · 136  │
           ┃  └───────┬───────┘
           ┃       n d 2×8
          (+)◀────────┘
           ┃ n d 2×8
           ▼
        output
    """
    trace = trace_model(model, inputs, options or {})
    chain, parameters = compose(trace, expand=expand)
    total = sum(trace.parameter_sizes.values())
    unused = total - sum(trace.parameter_sizes[name] for name in parameters)
    notes = (f"{unused:,} parameters do not contribute to the output and are not drawn",) if unused else ()
    head = title or f"{type(model).__name__} · {total:,} parameters"
    return Drawing(head, notes, trace, chain, _axis_names(axes, inputs))


def _sizes(axis_names: Mapping[Shape, str]) -> dict[str, int] | None:
    """Return the size of each named axis; None if it differs between shapes or is unknown."""
    sizes: dict[str, int] = {}
    for shape, names in axis_names.items():
        if len(names.split()) != len(shape):
            return None
        for letter, size in zip(names.split(), shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    return sizes


def _axis_names(axes: str | Mapping[Shape, str] | None, inputs: tuple[Any, ...]) -> Mapping[Shape, str]:
    if axes is None or isinstance(axes, Mapping):
        return axes or {}
    first = next((value for value in inputs if isinstance(value, Tensor)), None)
    if not isinstance(axes, str):
        raise ArgumentTypeError(
            f"axes must be a string or a mapping of shapes to strings, but got {short_repr(axes)}\nfix: axes='b s d'"
        )
    names = axes.split()
    if first is None or len(names) != first.dim():
        shape = None if first is None else tuple(first.shape)
        raise ConfigError(
            f"axes={axes!r} names {len(names)} axes, but the first input has the shape {shape}\n"
            f"fix: give one name for each axis, separated by spaces"
        )
    return {tuple(first.shape): " ".join(names)}
