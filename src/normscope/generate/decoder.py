"""A GPT laid out for decoding: with its tables of addresses, one call takes a token of each text through the model."""

import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.blocks.block import Block
from normscope.blocks.cache import KVCache
from normscope.blocks.norm.norm import Norm
from normscope.generate.decoder_support import can_decode, setting_of, tensors_of
from normscope.models.gpt import GPT
from normscope.ops import kernel_mode
from normscope.ops.threads import thread_pool_for
from normscope.runtime.adaptive_threads import AdaptiveThreads

Weights = Literal["float32", "bfloat16", "int8"]
_ACTIVATIONS = ("relu2", "relu", "gelu", "gelu-tanh", "silu")  # numbered as in the kernel
_GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu"}
_MANY = 1 << 30  # numbers: the kernel decides for itself which of its parts are worth sharing

Table = NDArray[np.int64]


class Layout:
    """Where the kernel finds a model's weights, and in which format.

    Args:
        model: one that `can_decode` lets through. Its weights are read where they are.
        weights: float32 as they are; or rounded copies, which are read in half or a quarter of the time.
        loops: the kernel.
    """

    def __init__(self, model: GPT, weights: Weights, loops: ModuleType) -> None:
        self.loops, self.weights = loops, weights
        self._state = _state(model)
        # Tables hold addresses, so what lies there must stay, even if the model's own tensors get other memory. That
        # also keeps an address from being given to another weight, which would then be taken for the one before.
        self._kept: list[Tensor] = []
        self._rounded: list[tuple[Tensor, Tensor]] = []  # weights of which there is a copy, and their prints
        self._threads: AdaptiveThreads | None = None
        self._rows = 0  # that were last decoded together
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
        size[at.KIND] = get_args(Weights).index(self.weights)
        size[at.CENTERED] = norm.statistic == "standardize"
        size[at.QK_NORM] = qk_norm is not None
        size[at.QK_CENTERED] = qk_norm is not None and qk_norm.statistic == "standardize"
        size[at.ACTIVATION] = _ACTIVATIONS.index(_GATES.get(mlp.activation.name, mlp.activation.name))
        size[at.EMBEDDING_NORM] = isinstance(model.embedding_norm, Norm)
        size[at.EMBEDDING] = self._address(model.embedding.weight)
        size[at.POSITION] = self._address(None if model.position is None else model.position.weight)
        if isinstance(model.embedding_norm, Norm):
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
        packed, scale = pack(weight.detach(), self.weights)
        if self.weights != "float32":
            self._rounded.append((weight.detach(), _print(weight)))
        table[place : place + 3] = self._address(packed), self._address(scale), self._address(bias)

    def _address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        self._kept.append(tensor.detach())
        return tensor.data_ptr()

    def threads(self) -> AdaptiveThreads:
        """How many of torch's threads the kernel takes; fewer while other processes want the cores.

        The kernel computes each number on one thread, so results don't depend on it.
        """
        most = torch.get_num_threads()
        if self._threads is None or self._threads.most != most:
            self._threads = AdaptiveThreads(most)
        return self._threads

    def begin(self, rows: int) -> AdaptiveThreads:
        """Start a batch of so many rows.

        Step times carry over from a batch of the same size, since many texts are shorter than a trial.
        """
        threads = self.threads()
        if rows == self._rows:
            threads.go_on()
        else:
            threads.new_work()
        self._rows = rows
        return threads

    def take_threads_of(self, other: "Layout") -> None:
        """Go on with what another layout of the same model has found out about the machine."""
        self._threads = other._threads

    def is_of(self, model: GPT) -> bool:
        """Whether it is the layout of the model as it is now: nothing has moved, and no rounded weight has changed."""
        return self._state == _state(model) and all(torch.equal(_print(weight), old) for weight, old in self._rounded)


_layouts: "WeakKeyDictionary[GPT, Layout]" = WeakKeyDictionary()


def layout_of(model: GPT, weights: Weights) -> Layout | None:
    """The layout of a model as it is now, a new one only where it has changed; None if the kernel cannot run it."""
    loops = _kernel() if can_decode(model) else None
    if loops is None:
        _layouts.pop(model, None)  # would keep the memory of weights that the model may no longer have
        return None
    layout = _layouts.get(model)
    if layout is None or layout.weights != weights or not layout.is_of(model):
        before, layout = layout, Layout(model, weights, loops)
        if before is not None:
            layout.take_threads_of(before)
        _layouts[model] = layout
    return layout


def _kernel() -> ModuleType | None:
    """The kernel, compiled; None, after one notice, where numba is missing or fails."""
    try:
        from normscope.ops.fused import decode_step as decoding
    except Exception as error:  # whatever numba's reason may be, the model does without it
        kernel_mode.disable_kernels(error)
        return None
    # A model of nothing for no rows: this compiles it, and so it cannot fail later, between two tokens.
    sizes, fractions = np.zeros(decoding.SIZES, dtype=np.int64), np.zeros(decoding.FRACTIONS)
    arguments = (*thread_pool_for(_MANY), sizes.ctypes.data, fractions.ctypes.data)
    return decoding if kernel_mode.try_kernel(decoding.advance, *arguments) else None


class Decoder:
    """Takes the newest token of each row of a cache through a model.

    Args:
        layout: the model's.
        cache: what the rows remember.
    """

    def __init__(self, layout: Layout, cache: KVCache) -> None:
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
        finalize(self, layout.begin(rows).release)

    def advance(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Read one more token of each row; returns the logits of what follows, (rows, vocabulary), until the next."""
        self._tokens[:], self._places[:] = tokens, self._cache.lengths
        self._cache.make_room(1)
        layout, threads = self._layout, self._layout.threads()
        start = time.perf_counter()
        layout.loops.advance(
            *thread_pool_for(_MANY, threads.threads), self._size.ctypes.data, layout.fractions.ctypes.data
        )
        threads.step(time.perf_counter() - start)
        return self._logits


def pack(weight: Tensor, kind: Weights) -> tuple[Tensor, Tensor | None]:
    """A weight (d_out, d_in) in the format of the kernel, and the scale of each row for int8.

    bfloat16: the halves of a row beside each other, so that one shift and one mask make two vectors of float32 of them.
    Of an odd row the first half is longer by one.
    """
    if kind == "float32":
        return weight, None
    if kind == "int8":
        scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
        return (weight / scale[:, None]).round().to(torch.int8).contiguous(), scale.contiguous()
    bits = weight.bfloat16().view(torch.int16).to(torch.int32)
    half = -(-bits.shape[1] // 2)
    low, high = bits[:, :half], torch.nn.functional.pad(bits[:, half:], (0, bits.shape[1] % 2))
    return ((low & 0xFFFF) | (high << 16)).contiguous(), None


def _eps(norm: Norm | None) -> float:
    if norm is None:
        return 0.0
    return torch.finfo(torch.float32).eps if norm.eps is None else norm.eps


def _state(model: GPT) -> tuple[object, ...]:
    """What a layout depends on: the config, which norms there are and how they are set; where each tensor is, and how
    often torch saw it changed in place.
    """
    tensors = tensors_of(model)
    versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    norms = {name: setting for name, module in model.named_modules() if (setting := setting_of(module)) is not None}
    return model.config, norms, [tensor.data_ptr() for tensor in tensors], versions


def _print(weight: Tensor) -> Tensor:
    """A number for each row that changes with the row: torch does not count what is changed by way of `.data`."""
    return torch.mv(weight.detach(), torch.linspace(1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device))


def _norm(module: nn.Module) -> Norm:
    assert isinstance(module, Norm)
    return module


def _block(module: nn.Module) -> Block:
    assert isinstance(module, Block)
    return module
