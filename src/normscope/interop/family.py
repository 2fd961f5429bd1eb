"""Describe a Hugging Face model family as a table: its settings and weights in terms of ours."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.blocks.norm import NormSpec
from normscope.errors import WeightsError
from normscope.models.gpt import GPTConfig

Settings = Mapping[str, Any]
"""The contents of config.json."""


class Slice(NamedTuple):
    """One of several equal slices of a weight: GPT-2 stores q, k and v in one matrix."""

    name: str
    position: int = 0
    total: int = 1


@dataclass(frozen=True)
class Family:
    """How to read the checkpoints of a family.

    Args:
        model_type: its name in config.json.
        preset: the preset with its architecture.
        config: for each field of GPTConfig, how to read it from the settings.
        unsupported: settings that are refused if they have this value.
        tensors: the Hugging Face name of each tensor that is not a parameter of a norm or linear layer.
        norms, linears: the Hugging Face name of each norm and linear layer. `{i}` is the index of a block.
        parameters: the parameters of each norm and linear layer.
        is_transposed: whether linear layers store their weight as (in, out).
        head: the Hugging Face name of an untied output head.
        prefix: a prefix of all names that may be absent.
        ignored: a regular expression for buffers in older checkpoints.
    """

    model_type: str
    preset: Callable[..., GPTConfig]
    config: Mapping[str, Callable[[Settings], Any]]
    tensors: Mapping[str, str]
    norms: Mapping[str, str]
    linears: Mapping[str, str | Slice]
    parameters: tuple[str, ...] = ("weight",)
    is_transposed: bool = False
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    head: str = "lm_head.weight"
    prefix: str = ""
    ignored: str = ""

    def read_config(self, settings: Settings) -> GPTConfig:
        for name, value in self.unsupported.items():
            if settings.get(name) == value:
                raise WeightsError(f"unsupported setting {name}={value}")
        return self.preset(**{name: read(settings) for name, read in self.config.items()})

    def convert(self, config: GPTConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our weights.

        Raises:
            KeyError: a weight is missing.
            WeightsError: a weight has a wrong number of dimensions, or is not used: config and weights do not match.
        """
        ours, unused = {}, dict(theirs)
        for name, other in self._tensors(config):
            ours[name] = theirs[other]
            unused.pop(other)
        for name, source, part in self._linears(config):
            weight, rank = theirs[f"{source.name}.{part}"], 2 if part == "weight" else 1
            if weight.dim() != rank:
                raise WeightsError(
                    f"{source.name}.{part} must have {rank} dimensions, but has shape {tuple(weight.shape)}"
                )
            weight = weight.t() if self.is_transposed else weight
            ours[f"{name}.{part}"] = weight.tensor_split(source.total)[source.position]
            unused.pop(f"{source.name}.{part}", None)  # None: another slice of the same weight came first
        self._refuse_unused(unused, ours["embedding.weight"])
        return ours

    def _tensors(self, config: GPTConfig) -> Iterator[tuple[str, str]]:
        """Yield our name and the Hugging Face name of each tensor outside of linear layers."""
        yield from self.tensors.items()
        for i in range(config.depth):
            for name, other in self.norms.items():
                if i == 0 or "{i}" in name:
                    yield from ((f"{name}.{p}".format(i=i), f"{other}.{p}".format(i=i)) for p in self.parameters)
        if not config.tied_head:
            yield "head.weight", self.head

    def _linears(self, config: GPTConfig) -> Iterator[tuple[str, Slice, str]]:
        """Yield for each parameter of our linear layers: our layer, the layer in their checkpoint, the parameter."""
        for i in range(config.depth):
            for name, other in self.linears.items():
                source = other if isinstance(other, Slice) else Slice(other)
                source = source._replace(name=source.name.format(i=i))
                yield from ((name.format(i=i), source, part) for part in self.parameters)

    def _refuse_unused(self, unused: dict[str, Tensor], table: Tensor) -> None:
        head = unused.get(self.head)
        if head is not None and head.shape == table.shape and torch.equal(head, table):
            del unused[self.head]  # a tied head, saved twice
        left = [name for name in unused if not re.fullmatch(self.ignored, name)]
        if left:
            raise WeightsError(
                f"weights not used by the model in config.json ({len(left)}): {', '.join(left[:4])}"
                f"{', ...' * (len(left) > 4)}\nfix: use config.json and weights of the same model"
            )


_REQUIRED = object()


def setting(*names: str, default: Any = _REQUIRED) -> Callable[[Settings], Any]:
    """Read a setting: the first of these names that is set and not null, otherwise the default."""

    def read(settings: Settings) -> Any:
        found = next((settings[name] for name in names if settings.get(name) is not None), default)
        return settings[names[-1]] if found is _REQUIRED else found

    return read


def norm(eps: str, default: float, **settings: Any) -> Callable[[Settings], NormSpec]:
    """Read the eps of a norm over the width; `settings` are fields of `NormSpec`."""
    read_eps = setting(eps, default=default)
    return lambda theirs: NormSpec("... [d]", eps=read_eps(theirs), **settings)


def choice(name: str, choices: Mapping[str, str], default: str) -> Callable[[Settings], str]:
    """Read a setting that must be one of these keys, and translate it to our name."""

    def read(settings: Settings) -> str:
        value = settings.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise WeightsError(f"unsupported setting {name}={value!r}: expected one of {', '.join(choices)}")
        return choices[value]

    return read


def rotary_base(settings: Settings) -> Any:
    """Read the base of plain rotary embeddings from rope_parameters, or from rope_scaling in older files."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise WeightsError(f"rotary settings must be a dict, but got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))  # `type` in older files
    if kind != "default":
        raise WeightsError(f"unsupported rope_type {kind!r}: expected default")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise WeightsError(f"partial rotary embeddings are not supported: {dict(rope)}")
    return rope.get("rope_theta", settings.get("rope_theta", 10000.0))
