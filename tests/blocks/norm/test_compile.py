"""torch.compile takes the norms whole, without a break in the graph, and gives the same numbers."""

import copy

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from tests.blocks.norm.cases import close, close_gradients, close_states, mostly_on, randn, scramble
from tests.pairs import chiefly

# torch's own compiler calls what torch itself has deprecated.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class _Masked(nn.Module):
    def __init__(self, *norms: ns.Norm) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x, mask)
        return x


# The graph is ours to get right, forwards and backwards; inductor, which makes C++ of it, is torch's, and slow. What is
# differentiated in advance are the kernels' operators: without kernels the graph alone says as much.
with_kernels = pytest.mark.parametrize("backend", chiefly(["aot_eager"], ["inductor"]))
without_kernels = pytest.mark.parametrize("backend", chiefly(["eager"], ["aot_eager", "inductor"]))


def _compare(backend: str, module: nn.Module, *inputs: Tensor, modes: tuple[bool, ...] = (True, False)) -> None:
    """Train and eval, forwards and backwards, compiled and as it is."""
    scramble(module)
    plain = copy.deepcopy(module)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for training in modes:
        module.train(training)
        plain.train(training)
        x = inputs[0].detach().requires_grad_()
        plain_x = inputs[0].detach().requires_grad_()
        y, plain_y = compiled(x, *inputs[1:]), plain(plain_x, *inputs[1:])
        grad = randn(tuple(y.shape), seed=5, dtype=y.dtype)
        y.backward(grad)
        plain_y.backward(grad)
        close(y, plain_y, 1e-6, "output")
        close(x.grad, plain_x.grad, 1e-5, "gradient of the input")
        close_gradients(module, plain, 1e-5)
        close_states(module, plain, 1e-6)


@mostly_on("fused")
@with_kernels
def test_layers_in_a_row(backend: str) -> None:
    x = randn((3, 4, 6), seed=0, dtype=torch.float32)
    # Without running statistics a layer is the same in eval mode, and to compile it again takes seconds.
    _compare(backend, nn.Sequential(ns.LayerNorm(6), ns.RMSNorm(6), ns.GroupNorm(2, 4)), x, modes=(True,))
    _compare(backend, nn.Sequential(ns.BatchNorm1d(4), ns.InstanceNorm1d(4, affine=True, track_running_stats=True)), x)


@mostly_on("reference")
@without_kernels
def test_with_a_mask(backend: str) -> None:
    module = _Masked(ns.RMSNorm(6), ns.Norm("[b s] d", state="running", affine="d", d=6), ns.PowerNorm(6))
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    _compare(backend, module, randn((2, 4, 6), seed=1, dtype=torch.float32), mask)
