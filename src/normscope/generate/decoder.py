"""A GPT laid out for decoding: with its tables of addresses, one call takes a token of each text through the model."""

from collections.abc import Sequence
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.blocks.attention import Attention
from normscope.blocks.block import Block
from normscope.blocks.cache import Cache
from normscope.blocks.linear import Embedding, Linear
from normscope.blocks.mlp import MLP
from normscope.blocks.norm.engine import Norm
from normscope.blocks.norm.spec import NoNorm
from normscope.blocks.rotary import Rotary
from normscope.blocks.watched import is_watched
from normscope.kernels.switch import form_for
from normscope.kernels.threads import pool_for
from normscope.models.gpt import GPT

Weights = Literal["float32", "bfloat16", "int8"]
_ACTIVATIONS = ("relu2", "relu", "gelu", "gelu-tanh", "silu")  # numbered as in the kernel
_GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu"}
_MANY = 1 << 30  # numbers: the kernel decides for itself which of its parts are worth sharing

Table = NDArray[np.int64]


def can_decode(model: GPT) -> bool:
    """Whether the kernel knows all that the model is made of, and no one waits for its modules to be called.

    It knows pre-wired blocks with norms over each token's width and each head, in float32 on the CPU: all presets.
    """
    config = model.config
    parts = [module for module in model.modules() if not isinstance(module, nn.ModuleList)]
    known = (GPT, Block, Attention, MLP, Linear, Embedding, nn.Dropout, NoNorm)
    norms = [part for part in parts if isinstance(part, Norm)]
    others = [part for part in parts if type(part) not in known and not isinstance(part, Norm)]
    return (
        config.wiring == "pre"
        and config.norm is not None
        and all(type(part) is Rotary for part in others)
        and all(_is_over_its_last_axis(norm) for norm in norms)
        and all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in model.state_dict().values())
        and not is_watched(*parts)
        and form_for(*model.parameters()) == "fused"
    )


def _is_over_its_last_axis(norm: Norm) -> bool:
    reduced = [axis for axis in norm.scope.axes if axis.bracketed]
    last = norm.scope.axes[-1]
    return norm.state is None and len(reduced) == 1 and last.bracketed and not norm.sync and _is_plain(norm)


def _is_plain(norm: Norm) -> bool:
    """Whether the scope has no groups, and the gain, if any, lies along the axis that is reduced."""
    return "(" not in norm.scope.text and (norm.axes is None or norm.axes.names == (norm.scope.axes[-1].name,))


class Layout:
    """Where the kernel finds a model's weights, and in which format.

    Args:
        model: one that `can_decode` lets through. Its weights are read where they are.
        weights: float32 as they are; or rounded copies, which are read in half or a quarter of the time.
    """

    def __init__(self, model: GPT, weights: Weights) -> None:
        from normscope.kernels.fused import decoding as loops  # brings numba

        self.loops = loops
        self.versions = _versions(model)
        self._weights: Weights = weights
        self._kept: list[Tensor] = []  # tables hold addresses; what lies there must stay
        self.layers = np.stack([self._layer(block) for block in model.blocks])
        self.sizes, self.fractions = self._model(model)

    def _model(self, model: GPT) -> tuple[Table, NDArray[np.float64]]:
        at, config, norm, block = self.loops, model.config, _norm(model.final_norm), _block(model.blocks[0])
        attention, mlp = block.attention, block.mlp
        qk_norm = None if attention.q_norm is None else _norm(attention.q_norm)
        size = np.zeros(at.SIZES, dtype=np.int64)
        size[at.LAYERS], size[at.WIDTH], size[at.WINDOW] = config.depth, config.width, config.window or 0
        size[at.HEADS], size[at.KV_HEADS], size[at.HEAD_DIM] = config.heads, model.kv_heads, model.head_dim
        size[at.HIDDEN], size[at.VOCABULARY] = mlp.up.out_features, config.vocab_size
        size[at.KIND] = get_args(Weights).index(self._weights)
        size[at.CENTRED] = norm.statistic == "standardise"
        size[at.QK_NORM] = qk_norm is not None
        size[at.QK_CENTRED] = qk_norm is not None and qk_norm.statistic == "standardise"
        size[at.ACTIVATION] = _ACTIVATIONS.index(_GATES.get(mlp.activation.name, mlp.activation.name))
        size[at.EMBEDDING_NORM] = config.embedding_norm
        size[at.EMBEDDING] = self._address(model.embedding.weight)
        size[at.POSITION] = self._address(None if model.position is None else model.position.weight)
        if config.embedding_norm:
            self._put_norm(size, at.FIRST_NORM, model.embedding_norm)
        self._put_norm(size, at.LAST_NORM, norm)
        head = (model.embedding.weight, None) if model.head is None else (model.head.weight, model.head.bias)
        self._put_matrix(size, at.HEAD, *head)
        if attention.rotary is not None:
            size[at.COS], size[at.SIN] = self._address(attention.rotary.cos), self._address(attention.rotary.sin)
        return size, np.array([_eps(norm), _eps(qk_norm), config.logit_cap or 0.0], dtype=np.float64)

    def _layer(self, module: nn.Module) -> Table:
        at, block = self.loops, _block(module)
        attention, mlp = block.attention, block.mlp
        layer = np.zeros(at.FIELDS, dtype=np.int64)
        self._put_norm(layer, at.NORM1, block.norms[0])
        self._put_norm(layer, at.NORM2, block.norms[1])
        matrices = {
            at.Q: attention.q,
            at.K: attention.k,
            at.V: attention.v,
            at.OUT: attention.out,
            at.UP: mlp.up,
            at.GATE: mlp.gate,
            at.DOWN: mlp.down,
        }
        for place, linear in matrices.items():
            if linear is not None:
                self._put_matrix(layer, place, linear.weight, linear.bias)
        if attention.q_norm is not None and attention.k_norm is not None:
            self._put_norm(layer, at.Q_NORM, attention.q_norm)
            self._put_norm(layer, at.K_NORM, attention.k_norm)
        return layer

    def _put_norm(self, table: Table, place: int, module: nn.Module) -> None:
        norm = _norm(module)
        table[place : place + 2] = self._address(norm.weight), self._address(norm.bias)

    def _put_matrix(self, table: Table, place: int, weight: Tensor, bias: Tensor | None) -> None:
        packed, scale = pack(weight.detach(), self._weights)
        table[place : place + 3] = self._address(packed), self._address(scale), self._address(bias)

    def _address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        self._kept.append(tensor)
        return tensor.data_ptr()


_layouts: "WeakKeyDictionary[GPT, dict[Weights, Layout]]" = WeakKeyDictionary()


def layout_of(model: GPT, weights: Weights) -> Layout:
    """The layout of a model as it is now: a new one only where a weight has changed or moved since the last."""
    known = _layouts.setdefault(model, {})
    if weights not in known or known[weights].versions != _versions(model):
        known[weights] = Layout(model, weights)
    return known[weights]


class Decoder:
    """Takes the newest token of each row of a cache through a model.

    Args:
        layout: the model's.
        cache: what the rows remember.
    """

    def __init__(self, layout: Layout, cache: Cache) -> None:
        self._layout, self._cache = layout, cache
        at, size, rows = layout.loops, layout.sizes.copy(), cache.batch
        layers = layout.layers.copy()
        for layer, memory in zip(layers, cache.layers, strict=True):
            layer[at.KEYS], layer[at.VALUES] = memory.keys.data_ptr(), memory.values.data_ptr()
        keys = cache.layers[0].keys
        size[at.ROWS], size[at.ROW_STEP], size[at.HEAD_STEP] = rows, keys.stride(0), keys.stride(1)
        size[at.SCORES_STEP] = cache.capacity
        heads, kv_heads = (size[place] * size[at.HEAD_DIM] for place in (at.HEADS, at.KV_HEADS))
        widths = {
            at.STREAM: size[at.WIDTH],
            at.NORMED: size[at.WIDTH],
            at.QUERY: heads,
            at.KEY: kv_heads,
            at.VALUE: kv_heads,
            at.ATTENDED: heads,
            at.INNER: size[at.HIDDEN],
            at.SCORES: size[at.HEADS] * cache.capacity,
            at.LOGITS: size[at.VOCABULARY],
        }
        room: dict[int, NDArray[Any]] = {
            place: np.zeros((rows, int(width)), dtype=np.float32) for place, width in widths.items()
        }
        self._tokens, self._places = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        room |= {at.TOKENS: self._tokens, at.PLACES: self._places, at.TABLE: layers}
        for place, array in room.items():
            size[place] = array.ctypes.data
        self._logits: NDArray[np.float32] = room[at.LOGITS]
        self._size, self._room = size, room

    def advance(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Read one more token of each row; returns the logits of what follows, (rows, vocabulary), until the next."""
        self._tokens[:], self._places[:] = tokens, self._cache.lengths
        self._cache.make_room(1)
        layout = self._layout
        layout.loops.advance(*pool_for(_MANY), self._size.ctypes.data, layout.fractions.ctypes.data)
        return self._logits


def pack(weight: Tensor, kind: Weights) -> tuple[Tensor, Tensor | None]:
    """A weight (d_out, d_in) in the format of the kernel, and the scale of each row for int8.

    bfloat16: the halves of a row beside each other, so that one shift and one mask make two vectors of float32 of them.
    """
    if kind == "float32":
        return weight, None
    if kind == "int8":
        scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
        return (weight / scale[:, None]).round().to(torch.int8).contiguous(), scale.contiguous()
    low, high = (half.bfloat16().view(torch.int16).to(torch.int32) for half in weight.chunk(2, dim=1))
    return ((low & 0xFFFF) | (high << 16)).contiguous(), None


def _eps(norm: Norm | None) -> float:
    if norm is None:
        return 0.0
    return torch.finfo(torch.float32).eps if norm.eps is None else norm.eps


def _versions(model: GPT) -> list[tuple[int, int]]:
    """Where each weight is, and how often it was changed in place."""
    return [(weight.data_ptr(), weight._version) for weight in model.parameters()]


def _norm(module: nn.Module) -> Norm:
    assert isinstance(module, Norm)
    return module


def _block(module: nn.Module) -> Block:
    assert isinstance(module, Block)
    return module
