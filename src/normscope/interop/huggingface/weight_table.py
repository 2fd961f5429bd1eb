"""The weights of a model family in terms of ours, in both directions, tensor by tensor."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from normscope.errors import WeightsError
from normscope.interop.files.lazy_tensors import LazyTensors, tensor_specs
from normscope.models.gpt import GPT, GPTConfig
from normscope.storage.tensor_spec import TensorSpec

_QUANTIZED = (torch.float8_e4m3fn, torch.float8_e5m2)
_TABLES = {"embedding", "position"}
_ROTATED = ("attention.q", "attention.k", "attention.q_norm", "attention.k_norm")


class Source(NamedTuple):
    """Where a layer is in their checkpoint.

    Args:
        name: their layer; `{i}` is the index of a block. Several of ours may be fused in one of theirs.
        fused: how: the "rows" of one layer after those of another, or for each of the "heads" in turn.
        adds_one: whether the gain is stored as its difference from one.
        turns_back: whether theirs are queries or keys that are rotated by the negative angle.
    """

    name: str
    fused: Literal["rows", "heads"] | None = None
    adds_one: bool = False
    turns_back: bool = False


class _Group(NamedTuple):
    """A tensor of theirs, and the tensors of ours that it has."""

    source: Source
    transposed: bool
    ours: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class FusedLinear:
    """A linear layer of theirs, and the layers of ours that it has.

    Args:
        ours: our layers, with the shape of each one's weight.
        group: the weights.
        config: config of the model.
    """

    ours: Mapping[str, tuple[int, ...]]
    group: _Group
    config: GPTConfig

    def rows_to_theirs(self, parts: Sequence[Tensor]) -> Tensor:
        """Put matrices with a row for each output of our layers in the order of their outputs."""
        return _to_theirs(parts, self.group, self.config)

    def rows_to_ours(self, layer: str, rows: Tensor) -> Tensor:
        """Take the rows of one of our layers from a matrix with a row for each of their outputs."""
        return _to_ours(f"{layer}.weight", rows, self.group, self.config)


@dataclass(frozen=True)
class WeightTable:
    """The names of a family's layers.

    Args:
        layers: our layers, and where they are in theirs.
        transposes: whether the linear layers of blocks store their weights as (in, out).
        prefix: a prefix of all names that checkpoints without a head do not have.
        ignored: a regular expression for buffers in older checkpoints.
    """

    layers: Mapping[str, str | Source]
    transposes: bool = False
    prefix: str = ""
    ignored: str = ""

    def to_ours(self, config: GPTConfig, theirs: Mapping[str, Tensor]) -> LazyTensors:
        """Return our weights; raises if one of theirs is missing, is not used, or has another shape."""
        groups = self._groups(config)
        if not any(name.startswith(self.prefix) for name in theirs):
            groups = {name.removeprefix(self.prefix): group for name, group in groups.items()}
        found = tensor_specs(theirs)
        for name, group in groups.items():
            wanted = _their_spec(group, config, torch.float32).shape
            if name not in found:
                raise WeightsError(f"the checkpoint has no {name!r}, which the model in config.json needs")
            if found[name].dtype in _QUANTIZED:
                raise WeightsError(
                    f"{name} is {str(found[name].dtype).removeprefix('torch.')}: quantized weights are not supported\n"
                    f"fix: use the weights before quantization"
                )
            if found[name].shape != wanted or not found[name].dtype.is_floating_point:
                dtype = str(found[name].dtype).removeprefix("torch.")
                raise WeightsError(
                    f"{name} is {dtype} of {found[name].shape}, but config.json needs floating-point {wanted}\n"
                    f"fix: use config.json and weights of the same model"
                )
        self._refuse_unused(config, groups, theirs)
        places = {own: (name, group) for name, group in groups.items() for own in group.ours}
        specs = {}
        for own, (name, group) in places.items():
            stored = found[name].dtype
            converted = torch.promote_types(stored, torch.float32) if group.source.adds_one else stored
            specs[own] = TensorSpec(group.ours[own], converted)
        return LazyTensors(specs, lambda own: _to_ours(own, theirs[places[own][0]], places[own][1], config))

    def to_theirs(self, config: GPTConfig, ours: Mapping[str, Tensor]) -> LazyTensors:
        """Return their weights."""
        groups, found = self._groups(config), tensor_specs(ours)
        specs = {
            name: _their_spec(group, config, found[next(iter(group.ours))].dtype) for name, group in groups.items()
        }
        return LazyTensors(
            specs, lambda name: _to_theirs([ours[own] for own in groups[name].ours], groups[name], config)
        )

    def linear_layers(self, config: GPTConfig) -> dict[str, FusedLinear]:
        """The linear layers of theirs by name, without embeddings."""
        found = {}
        for name, group in self._groups(config).items():
            layer, _, part = name.rpartition(".")
            shapes = {own.rpartition(".")[0]: shape for own, shape in group.ours.items()}
            if part == "weight" and all(len(shape) == 2 for shape in shapes.values()) and not _TABLES & shapes.keys():
                found[layer] = FusedLinear(shapes, group._replace(transposed=False), config)
        return found

    def _groups(self, config: GPTConfig) -> dict[str, _Group]:
        """The tensors of theirs by name. Fused layers are in the order of the table."""
        groups: dict[str, _Group] = {}
        order = list(self.layers)
        for name, shape in sorted(parameter_shapes(config).items(), key=lambda item: order.index(_pattern(item[0]))):
            layer, _, part = name.rpartition(".")
            block = re.match(r"blocks\.(\d+)\.", layer)
            found = self.layers[_pattern(name)]
            source = found if isinstance(found, Source) else Source(found)
            their_name = f"{source.name}.{part}".format(i=block and block[1])
            transposed = self.transposes and block is not None and len(shape) == 2
            groups.setdefault(their_name, _Group(source, transposed, {})).ours[name] = shape
        return groups

    def _refuse_unused(self, config: GPTConfig, groups: Mapping[str, _Group], theirs: Mapping[str, Tensor]) -> None:
        unused = [name for name in theirs if name not in groups and not re.fullmatch(self.ignored, name)]
        head = f"{self.layers['head']}.weight"
        if config.tied_head and head in unused:
            table = next(name for name, group in groups.items() if "embedding.weight" in group.ours)
            if torch.equal(theirs[head], theirs[table]):  # a tied head, saved twice
                unused.remove(head)
        if unused:
            raise WeightsError(
                f"weights not used by the model in config.json ({len(unused)}): {', '.join(unused[:4])}"
                f"{', ...' * (len(unused) > 4)}\nfix: use config.json and weights of the same model"
            )


def _pattern(name: str) -> str:
    """Our layer of a parameter, with `{i}` for the index of its block."""
    return re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name.rpartition(".")[0])


@lru_cache(maxsize=4)
def parameter_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of a model of this config."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in GPT(config).state_dict().items()}


def _their_spec(group: _Group, config: GPTConfig, dtype: torch.dtype) -> TensorSpec:
    parts = [torch.empty(shape, dtype=dtype, device="meta") for shape in group.ours.values()]
    return TensorSpec.of(_to_theirs(parts, group, config))


def _to_ours(name: str, tensor: Tensor, group: _Group, config: GPTConfig) -> Tensor:
    tensor = tensor.t() if group.transposed else tensor
    index, rows = list(group.ours).index(name), [shape[0] for shape in group.ours.values()]
    if group.source.fused == "rows":
        tensor = tensor.split(rows)[index]
    elif group.source.fused == "heads":
        tensor = tensor.unflatten(0, (config.heads, len(rows), -1))[:, index].flatten(0, 1)
    if group.source.adds_one:
        tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32)) + 1
    if group.source.turns_back:
        tensor = _turned_back(tensor, config)
    order = _rotary_order(name, config)
    return tensor if order is None else _reorder(tensor, order)


def _to_theirs(parts: Sequence[Tensor], group: _Group, config: GPTConfig) -> Tensor:
    restored = []
    for name, part in zip(group.ours, parts, strict=True):
        order = _rotary_order(name, config)
        restored.append(part if order is None else _reorder(part, order.argsort()))
    tensor = restored[0]
    if group.source.fused == "rows":
        tensor = torch.cat(restored)
    elif group.source.fused == "heads":
        tensor = torch.stack([part.unflatten(0, (config.heads, -1)) for part in restored], dim=1).flatten(0, 2)
    if group.source.adds_one:
        tensor = tensor - 1
    if group.source.turns_back:
        tensor = _turned_back(tensor, config)
    return tensor.t() if group.transposed else tensor


def _rotary_order(name: str, config: GPTConfig) -> Tensor | None:
    """The order of the features of a head, if it is rotated in part.

    Theirs rotates the first features, and pairs their halves. Ours pairs the halves of the head, and rotates the first
    pairs.
    """
    head_dim, rotated = config.head_sizes[2], config.rotary_dim
    if rotated is None or rotated == head_dim or name.rpartition(".")[0].split(".", 2)[-1] not in _ROTATED:
        return None
    features = torch.arange(head_dim)
    turned, rest = features[:rotated].chunk(2), features[rotated:].chunk(2)
    return torch.cat((turned[0], rest[0], turned[1], rest[1]))


def _turned_back(tensor: Tensor, config: GPTConfig) -> Tensor:
    """Negate the second half of each head: then a rotation by the negative angle gives the same attention."""
    halves = tensor.unflatten(0, (-1, 2, config.head_sizes[2] // 2))
    return torch.stack((halves[:, 0], -halves[:, 1]), dim=1).reshape(tensor.shape)


def _reorder(tensor: Tensor, order: Tensor) -> Tensor:
    """Reorder the rows of each head."""
    reordered: Tensor = tensor.unflatten(0, (-1, len(order)))[:, order.to(tensor.device)].flatten(0, 1)
    return reordered
