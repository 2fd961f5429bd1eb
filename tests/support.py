"""Helpers for tests: seeded tensors and weights, padding masks, bfloat16 on any machine, a quota, a port."""

import contextlib
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from normscope.errors import NormscopeError

Refusal = tuple[str, type[NormscopeError], str, Callable[[], Any]]
"""A user error: test id, error class, part of the message, and the call that raises it."""


is_exhaustive = settings.get_current_profile_name() == "exhaustive"
"""Whether `make test-all` runs, so that a test may take longer."""

few_examples = settings(max_examples=settings().max_examples // 5)
"""For a property whose examples are slow."""


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normally distributed values that depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def random_tokens(vocabulary: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def scramble(module: nn.Module, seed: int = 0, scale: float = 0.3) -> None:
    """Randomize every parameter, so that a zero head or a gain of one hides nothing."""
    for i, parameter in enumerate(module.parameters()):
        parameter.copy_(scale * randn(*parameter.shape, seed=1000 * seed + i))


def real_tokens(lengths: Sequence[int], size: int) -> Tensor:
    """Mask of a right-padded batch: True for real tokens."""
    return torch.arange(size)[None, :] < torch.tensor(lengths)[:, None]


@contextlib.contextmanager
def safe_bfloat16() -> Iterator[None]:
    """Multiply bfloat16 matrices without oneDNN.

    Some virtual machines report bfloat16 instructions that they don't have, which kills the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes, as with a quota."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def free_port() -> int:
    """A port at which nothing listens on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kept_for_backward(work: Callable[[], object]) -> dict[int, int]:
    """Tensors that a forward pass saves for backward: address -> size in bytes."""
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        found[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        work()
    return found


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameter gradients."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def close_all(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value,
            theirs[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",  # type: ignore[misc]
        )


def every_refusal(*refusals: Refusal) -> pytest.MarkDecorator:
    """Parametrize a test over user errors."""
    return pytest.mark.parametrize(("error", "words", "mistake"), [pytest.param(*r[1:], id=r[0]) for r in refusals])
