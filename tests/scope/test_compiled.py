"""torch.compile and torch.export with scopes and symbolic sizes."""

import torch
from torch import Tensor, nn

from normscope.scope import Scope

SCOPE = Scope.parse("b s (g [d])")


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        plan = SCOPE.bind(x.shape, g=2)
        parts = x.view(plan.split_shape)
        return (parts - parts.sum(plan.reduced, keepdim=True) / plan.count).view(plan.shape)


def test_compile_makes_one_graph_for_all_lengths() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(Centred(), backend=backend, dynamic=True, fullgraph=True)
    for length in (5, 6, 7):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), Centred()(x))
    assert len(graphs) == 1


def test_export_keeps_the_length_open() -> None:
    length = torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(Centred(), (torch.randn(2, 5, 4),), dynamic_shapes={"x": {1: length}})
    x = torch.randn(2, 9, 4)
    torch.testing.assert_close(exported.module()(x), Centred()(x))
