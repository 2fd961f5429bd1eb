"""The fused decoder: one kernel call runs a whole GPT on one new token of each sequence."""

import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, get_args
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.blocks.cache import KVCache
from normscope.blocks.norm.base import Norm
from normscope.generate.config import WeightFormat
from normscope.generate.decoder_support import KERNEL_ACTIVATIONS, can_decode, norm_settings, parameters_and_buffers
from normscope.models.gpt import GPT
from normscope.ops.operation import KernelError, fused_module, run_kernel
from normscope.ops.threads import thread_pool_for
from normscope.runtime.adaptive_threads import AdaptiveThreads

_LARGE_WORK = 1 << 30  # elements: the kernel itself decides which of its parts to parallelize

Table = NDArray[np.int64]


class DecoderLayout:
    """The tables of weight addresses and sizes that the kernel reads.

    Args:
        model: a model that `can_decode` accepts. float32 weights are used in place.
        weights: weight format; "bfloat16" and "int8" make rounded copies.
        kernel: the kernel module.
    """

    def __init__(self, model: GPT, weights: WeightFormat, kernel: ModuleType) -> None:
        self.kernel, self.weights = kernel, weights
        self._state = _state(model)
        # The tables hold addresses, so keep the tensors alive even if the model replaces its own. This also keeps an
        # address from being reused by another weight, which `matches` would mistake for the old one.
        self._kept: list[Tensor] = []
        self._rounded: list[tuple[Tensor, Tensor]] = []  # weights with a rounded copy, and their fingerprints
        self._threads: AdaptiveThreads | None = None
        self._batch_size = 0  # of the last batch
        self.layers = np.stack([self._layer(block) for block in model.blocks])
        self.sizes, self.fractions = self._model(model)

    def _model(self, model: Any) -> tuple[Table, NDArray[np.float64]]:
        at, config, norm = self.kernel, model.config, model.final_norm
        attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
        qk_norm = attention.q_norm
        size = np.zeros(at.MODEL_FIELDS, dtype=np.int64)
        size[at.LAYERS], size[at.WIDTH] = config.depth, config.width
        size[at.HEADS], size[at.KV_HEADS], size[at.HEAD_DIM] = config.heads, model.kv_heads, model.head_dim
        size[at.HIDDEN], size[at.VOCABULARY] = mlp.up.out_features, config.vocab_size
        size[at.WEIGHT_FORMAT] = get_args(WeightFormat).index(self.weights)
        size[at.CENTERED] = norm.statistic.centers
        size[at.QK_NORM] = qk_norm is not None
        size[at.QK_CENTERED] = qk_norm is not None and qk_norm.statistic.centers
        size[at.ACTIVATION] = KERNEL_ACTIVATIONS[mlp.activation.name]
        size[at.EMBEDDING_NORM] = isinstance(model.embedding_norm, Norm)
        size[at.EMBEDDING] = self._address(model.embedding.weight)
        size[at.POSITION_EMBEDDING] = self._address(None if model.position is None else model.position.weight)
        if isinstance(model.embedding_norm, Norm):
            self._put_norm(size, at.INPUT_NORM, model.embedding_norm)
        self._put_norm(size, at.FINAL_NORM, norm)
        head = (model.embedding.weight, None) if model.head is None else (model.head.weight, model.head.bias)
        self._put_matrix(size, at.HEAD, *head)
        scale = model.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        fractions = [_eps(norm), _eps(qk_norm), config.logit_cap or 0.0, scale, config.embedding_scale]
        return size, np.array(fractions, dtype=np.float64)

    def _layer(self, block: Any) -> Table:
        at, attention, mlp = self.kernel, block.attention, block.mlp
        layer = np.zeros(at.LAYER_FIELDS, dtype=np.int64)
        self._put_norm(layer, at.NORM1, block.norms[0])
        self._put_norm(layer, at.NORM2, block.norms[1])
        fields = at.Q, at.K, at.V, at.OUT, at.UP, at.GATE, at.DOWN
        linears = attention.q, attention.k, attention.v, attention.out, mlp.up, mlp.gate, mlp.down
        for field, linear in zip(fields, linears, strict=True):
            if linear is not None:
                self._put_matrix(layer, field, linear.weight, linear.bias)
        if attention.q_norm is not None and attention.k_norm is not None:
            self._put_norm(layer, at.Q_NORM, attention.q_norm)
            self._put_norm(layer, at.K_NORM, attention.k_norm)
        layer[at.WINDOW] = attention.window or 0
        if attention.rotary is not None:
            layer[at.COS], layer[at.SIN] = self._address(attention.rotary.cos), self._address(attention.rotary.sin)
        return layer

    def _put_norm(self, table: Table, field: int, norm: Any) -> None:
        table[field : field + 2] = self._address(norm.weight), self._address(norm.bias)

    def _put_matrix(self, table: Table, field: int, weight: Tensor, bias: Tensor | None) -> None:
        packed, scale = pack(weight.detach(), self.weights)
        if self.weights != "float32":
            self._rounded.append((weight.detach(), _fingerprint(weight)))
        table[field : field + 3] = self._address(packed), self._address(scale), self._address(bias)

    def _address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        self._kept.append(tensor.detach())
        return tensor.data_ptr()

    def threads(self) -> AdaptiveThreads:
        """Choose how many of torch's threads the kernel uses: fewer while other processes need the cores.

        Each number is computed by one thread, so results do not depend on the choice.
        """
        most = torch.get_num_threads()
        if self._threads is None or self._threads.max_threads != most:
            self._threads = AdaptiveThreads(most)
        return self._threads

    def start_batch(self, batch_size: int) -> AdaptiveThreads:
        """Start a batch. Step times carry over from a batch of the same size: many texts are shorter than a trial."""
        threads = self.threads()
        if batch_size == self._batch_size:
            threads.resume()
        else:
            threads.reset()
        self._batch_size = batch_size
        return threads

    def matches(self, model: GPT) -> bool:
        """Whether the model is unchanged: no tensor has moved, and no weight with a rounded copy has changed."""
        return self._state == _state(model) and all(
            torch.equal(_fingerprint(weight), old) for weight, old in self._rounded
        )


_layouts: "WeakKeyDictionary[GPT, DecoderLayout]" = WeakKeyDictionary()


def get_layout(model: GPT, weights: WeightFormat) -> DecoderLayout | None:
    """Return the cached layout of a model, rebuilt if the model has changed; None if the kernel cannot run it."""
    kernel = _compiled_kernel() if can_decode(model) else None
    if kernel is None:
        _layouts.pop(model, None)  # it would keep weights alive that the model may have dropped
        return None
    layout = _layouts.get(model)
    if layout is None or layout.weights != weights or not layout.matches(model):
        before, layout = layout, DecoderLayout(model, weights, kernel)
        if before is not None:
            layout._threads = before._threads  # with the timings that it has measured
        _layouts[model] = layout
    return layout


def _compiled_kernel() -> ModuleType | None:
    """Import and compile the kernel; None, after one notice, if numba is missing or fails."""
    try:
        kernel = fused_module("decode_step")
        # Run it on an empty model and batch: this compiles it here, so that it cannot fail between two tokens.
        sizes, fractions = np.zeros(kernel.MODEL_FIELDS, dtype=np.int64), np.zeros(kernel.FLOAT_FIELDS)
        run_kernel("decode_step", "advance", thread_pool_for(_LARGE_WORK), sizes.ctypes.data, fractions.ctypes.data)
    except KernelError:
        return None
    return kernel


class Decoder:
    """Decode one token of each row of a KV cache.

    Args:
        layout: layout of the model.
        cache: KV cache of the batch.
    """

    def __init__(self, layout: DecoderLayout, cache: KVCache) -> None:
        self._layout, self._cache = layout, cache
        at, size, rows = layout.kernel, layout.sizes.copy(), cache.batch
        layers = layout.layers.copy()
        for layer, layer_cache in zip(layers, cache.layers, strict=True):
            layer[at.KEYS], layer[at.VALUES] = layer_cache.keys.data_ptr(), layer_cache.values.data_ptr()
        keys = cache.layers[0].keys
        size[at.ROWS], size[at.ROW_STRIDE], size[at.HEAD_STRIDE] = rows, keys.stride(0), keys.stride(1)
        size[at.SCORES_STRIDE] = cache.capacity
        heads, kv_heads = (size[field] * size[at.HEAD_DIM] for field in (at.HEADS, at.KV_HEADS))
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
        buffers: dict[int, NDArray[Any]] = {
            field: np.zeros((rows, int(width)), dtype=np.float32) for field, width in widths.items()
        }
        self._tokens, self._positions = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        buffers |= {at.TOKENS: self._tokens, at.POSITIONS: self._positions, at.LAYER_TABLE: layers}
        for field, array in buffers.items():
            size[field] = array.ctypes.data
        self._logits: NDArray[np.float32] = buffers[at.LOGITS]
        self._size, self._buffers = size, buffers
        finalize(self, layout.start_batch(rows).release)

    def advance(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append one token to each row; return the logits (rows, vocabulary), valid until the next call."""
        self._tokens[:], self._positions[:] = tokens, self._cache.lengths
        self._cache.reserve(1)
        layout, threads = self._layout, self._layout.threads()
        start = time.perf_counter()
        layout.kernel.advance(
            thread_pool_for(_LARGE_WORK, threads.threads), self._size.ctypes.data, layout.fractions.ctypes.data
        )
        threads.step(time.perf_counter() - start)
        return self._logits


def pack(weight: Tensor, weight_format: WeightFormat) -> tuple[Tensor, Tensor | None]:
    """Convert a weight (d_out, d_in) to the kernel's format; return it and, for int8, the scale of each row.

    bfloat16 interleaves the two halves of a row, so that one shift and one mask give two float32 vectors. In a row of
    odd length the first half is longer by one.
    """
    if weight_format == "float32":
        return weight, None
    if weight_format == "int8":
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
    """Everything a layout depends on: config, norm settings, and the address and version counter of each tensor."""
    tensors = parameters_and_buffers(model)
    versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    norms = {name: found for name, module in model.named_modules() if (found := norm_settings(module)) is not None}
    return model.config, norms, [tensor.data_ptr() for tensor in tensors], versions


def _fingerprint(weight: Tensor) -> Tensor:
    """A checksum of each row: changes through `.data` do not increase the version counter."""
    return torch.mv(weight.detach(), torch.linspace(1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device))
