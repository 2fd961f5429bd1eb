"""Run every fused kernel on several shapes and print the checksum of each result, as JSON.

python -m tests.ops.every_kernel [reversed]
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_args

import numpy as np
import torch
from numba.core.dispatcher import Dispatcher
from torch import Tensor, nn

import normscope as ns
from normscope.generate.config import WeightFormat
from normscope.generate.decoder import Decoder, DecoderLayout
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops import fused
from normscope.ops.activations import activate
from normscope.ops.attention import attend
from normscope.ops.cross_entropy import cross_entropy
from normscope.ops.fused import decode_step
from normscope.ops.kernel_mode import use_kernels
from normscope.ops.moments import ColumnStatistics, compute_moments
from normscope.ops.norm.row_norm import LONG_ROW
from normscope.ops.rotary import apply_rotary, rms_norm_rotary
from tests.support import randn, scramble

Case = tuple[str, Callable[[], list[Any]]]


def single(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed, dtype=torch.float32)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, and the gradient of each input."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    y = function(*leaves)
    y.backward(single(*y.shape, seed=9))
    return [y, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def of_layer(layer: nn.Module, x: Tensor) -> list[Tensor]:
    scramble(layer)
    found = with_gradients(layer, x)
    return [*found, *(parameter.grad for parameter in layer.parameters() if parameter.grad is not None)]


def norms() -> Iterator[Case]:
    for d in (1, 7, 16, 33, 64, 100, 768, 5000, LONG_ROW):
        x = single(9, d) + 0.5
        yield f"layer norm {d}", partial(of_layer, ns.LayerNorm(d), x)
        yield f"rms norm {d}", partial(of_layer, ns.RMSNorm(d), x)
    for channels, size in ((4, 3), (6, 17), (32, 64)):
        x = single(3, channels, size, size)
        for name, tensor in (("", x), (" channels last", x.contiguous(memory_format=torch.channels_last))):
            yield f"batch norm {channels}{name}", partial(of_layer, ns.BatchNorm(channels), tensor)
            yield f"group norm {channels}{name}", partial(of_layer, ns.GroupNorm(2, channels), tensor)


def rotary() -> Iterator[Case]:
    for half in (1, 7, 16, 32, 35, 64):
        x, angle, weight = single(2, 5, 3, 2 * half), single(5, 1, half, seed=1), single(2 * half, seed=2)
        tables = {"cos": angle.cos(), "sin": angle.sin()}
        yield f"rotary {half}", partial(with_gradients, partial(apply_rotary, **tables), x)
        yield (
            f"rms norm rotary {half}",
            partial(with_gradients, partial(rms_norm_rotary, **tables, eps=1e-5), x, weight),
        )


def elementwise() -> Iterator[Case]:
    for count in (1, 15, 16, 100, 1000):
        x, up, targets = 3 * single(count), single(count, seed=1), torch.arange(5) % count
        for name in ("relu2", "gelu-tanh", "silu"):
            yield f"{name} {count}", partial(with_gradients, partial(activate, name), x)
        for name in ("reglu", "geglu", "swiglu"):
            yield f"{name} {count}", partial(with_gradients, partial(activate, name), x, up)
        yield f"moments {count}", partial(moments, x)
        yield f"columns {count}", partial(columns, single(7, count))
        for cap in (None, 15.0):
            loss = partial(cross_entropy, targets=targets, cap=cap)
            yield f"cross-entropy {count} {cap}", partial(with_gradients, loss, single(5, count))


def moments(x: Tensor) -> list[Any]:
    found = compute_moments(x)
    return [np.array([found.variance, found.kurtosis])]


def columns(x: Tensor) -> list[Any]:
    found = ColumnStatistics(x.shape[1])
    found.add(x)
    return [found.squares, found.max_abs]


def attention() -> Iterator[Case]:
    for s, e in ((1, 4), (9, 16), (33, 32), (70, 64)):
        q, k, v = single(2, s, 4, e), single(2, s, 2, e, seed=1), single(2, s, 2, e, seed=2)
        for window in (None, 5):
            causal = partial(attend, causal=True, window=window)
            yield f"attention {s} {e} {window}", partial(with_gradients, causal, q, k, v)


def decoding() -> Iterator[Case]:
    models: list[dict[str, Any]] = [
        {"activation": "relu2"},
        {"activation": "gelu", "qk_norm": "rms", "norm": "layer", "bias": True},
        {"activation": "swiglu", "logit_cap": 15.0},
    ]
    for e in (4, 16, 32, 64, 70, 128):
        for weights in get_args(WeightFormat):
            for settings in models:
                yield f"decoder {e} {weights} {settings}", partial(decoded, e, weights, settings)


def decoded(e: int, weights: WeightFormat, settings: dict[str, Any]) -> list[Any]:
    """Every buffer of the decoder after each of four tokens."""
    model = GPT(GPTConfig(width=3 * e, heads=3, depth=2, vocab_size=61, context=8, **settings)).eval()
    scramble(model)
    decoder = Decoder(DecoderLayout(model, weights, decode_step), model.new_cache(2))
    found: list[Any] = []
    for token in range(4):
        decoder.advance([token, 60 - token])
        found += [buffer.copy() for buffer in decoder._buffers.values() if buffer.dtype == np.float32]
    return found


def kernel_modules() -> list[ModuleType]:
    return [import_module(f"{fused.__name__}.{module.name}") for module in iter_modules(fused.__path__)]


def uncalled() -> list[str]:
    """Kernels for threads, by name, that this process has neither compiled nor loaded."""
    kernels = {
        f"{module.__name__}.{name}": kernel
        for module in kernel_modules()
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher) and kernel.py_func.__code__.co_varnames[:1] == ("pool",) and name[0] != "_"
    }
    return [name for name, kernel in kernels.items() if not kernel.signatures]


def checksum(results: list[Any]) -> str:
    arrays = [array.detach().numpy() if isinstance(array, Tensor) else array for array in results]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = [*norms(), *rotary(), *elementwise(), *attention(), *decoding()]
    with use_kernels("fused"):
        found = {name: checksum(run()) for name, run in (cases[::-1] if "reversed" in sys.argv else cases)}
    print(json.dumps({"checksums": found, "uncalled": uncalled()}))
