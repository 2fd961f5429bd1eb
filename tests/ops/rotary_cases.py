"""What the tests of the rotary kernels share: inputs, each way to turn them with gradients, and a record of calls."""

import pytest
import torch
from torch import Tensor

from normscope.blocks.rotary import Rotary
from normscope.ops.fused import rotary as loops
from normscope.ops.rotary import apply_rotary, rms_norm_rotary
from tests.ops.recording import recorded
from tests.support import randn

EPS = 1e-5
SHAPE = (3, 50, 5, 64)  # enough for several threads, and for blocks that do not come out even
CASES = ("turned", "normalized", "with a gain")
EVERY_LOOP = ["apply_rotary", "apply_rotary", *["rms_norm_rotary", "rms_norm_rotary_backward"] * 2]
"""The loops that run for all the cases, forwards and backwards."""


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that run from now on."""
    return recorded(monkeypatch, [(name, loops, name) for name in set(EVERY_LOOP)])


def single(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed, dtype=torch.float32)


def tables(s: int, e: int, start: int = 0) -> tuple[Tensor, Tensor]:
    rotary = Rotary(e, start + s)
    return rotary.cos[start:], rotary.sin[start:]


def result(case: str, x: Tensor, cos: Tensor, sin: Tensor, eps: float = EPS) -> list[Tensor]:
    """What comes out, and the gradients of what goes in."""
    x, g = x.detach().requires_grad_(), single(*x.shape, seed=2).to(x.dtype)
    gain = (1 + 0.3 * single(x.shape[-1], seed=1)).to(x.dtype).requires_grad_() if case == "with a gain" else None
    y = apply_rotary(x, cos, sin) if case == "turned" else rms_norm_rotary(x, gain, cos, sin, eps)
    return [y.detach(), *torch.autograd.grad(y, [x] if gain is None else [x, gain], g)]


def results(x: Tensor, cos: Tensor, sin: Tensor, eps: float = EPS) -> list[Tensor]:
    return [tensor for case in CASES for tensor in result(case, x, cos, sin, eps)]
