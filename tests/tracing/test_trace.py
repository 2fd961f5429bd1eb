"""What the trace says is what the model does: who joins whom, with which shapes; and the model stays as it was."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.blocks.residual import WIRINGS
from normscope.drawing.graph import DataflowGraph, build_graph
from normscope.drawing.idioms import collapse_idioms, find_joins
from normscope.errors import ArgumentTypeError, ConfigError
from normscope.models.gpt import GPT
from normscope.models.presets import PRESETS, preset
from tests.drawing.drawn_models import SMALL, BasicBlock, BranchesOnValues, HasSideEffects, small_block, traced
from tests.pairs import every_value

# What each wiring computes of x, with A for attention, M for the MLP and N1, N2, ... for the norms.
FORMULAS = {
    "pre": "((x + A(N1(x))) + M(N2((x + A(N1(x))))))",
    "post": "N2((N1((x + A(x))) + M(N1((x + A(x))))))",
    "sandwich": "((x + N2(A(N1(x)))) + N4(M(N3((x + N2(A(N1(x))))))))",
    "parallel": "((x + A(N1(x))) + M(N1(x)))",
    "parallel-2": "((x + A(N1(x))) + M(N2(x)))",
    "branch": "((x + N1(A(x))) + N2(M((x + N1(A(x))))))",
    "single": "(x + M(A(N1(x))))",
    "none": "M(A(N1(x)))",
}
JOINS = {"pre": 2, "post": 2, "sandwich": 2, "parallel": 2, "parallel-2": 2, "branch": 2, "single": 1, "none": 0}


def parts_as_boxes(block: nn.Module, x: Tensor) -> DataflowGraph:
    trace = traced(block, x)
    closed = [call.index for call in trace.calls if call.path in ("attention", "mlp")]
    return collapse_idioms(build_graph(trace, closed))


def written_out(graph: DataflowGraph, index: int) -> str:
    """What a node computes, as a formula."""
    node = graph.nodes[index]
    before = [written_out(graph, edge.source) for edge in node.inputs]
    if node.operation == "input":
        return "x"
    if node.operation == "add":
        join = find_joins(graph)[index]
        return f"({written_out(graph, join.stream)} + {written_out(graph, join.branch)})"
    path = graph.call_of(node).path
    names = {"attention": "A", "mlp": "M", **{f"norms.{i}": f"N{i + 1}" for i in range(4)}}
    return f"{names[path]}({before[0]})"


def test_every_wiring_is_known_here() -> None:
    assert set(FORMULAS) == set(JOINS) == set(WIRINGS)


@every_value(wiring=list(WIRINGS), name=["gpt2", "nanochat", "llama"])
def test_a_wiring_is_traced_as_it_is_defined(name: str, wiring: str) -> None:
    graph = parts_as_boxes(small_block(name, wiring=wiring), torch.randn(2, 5, 24))
    assert written_out(graph, graph.output.source) == FORMULAS[wiring]
    assert len(find_joins(graph)) == JOINS[wiring]


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_are_those_that_hooks_see_in_a_real_run(name: str) -> None:
    model = GPT(preset(name, **{**SMALL, "qk_norm": "rms", "kv_heads": 2})).eval()
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    seen: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def note(path: str) -> Any:
        return lambda _, inputs, output: seen.append((path, tuple(inputs[0].shape), tuple(output.shape)))

    simple = [(path, module) for path, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(note(path)) for path, module in simple]
    model(tokens)
    for handle in handles:
        handle.remove()
    graph = collapse_idioms(build_graph(traced(model, tokens)))
    ours = [
        (graph.call_of(node).path, node.inputs[0].shape if node.inputs else (5,), node.shape)
        for node in graph.nodes.values()
        if node.is_module
    ]
    idle = {path for path, _ in simple if "dropout" in path or (path == "embedding_norm" and "nanochat" not in name)}
    assert sorted(ours) == sorted(entry for entry in seen if entry[0] not in idle)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_has_heads_and_mask(causal: bool) -> None:
    from normscope.blocks.attention import Attention

    attention = Attention(24, heads=6, kv_heads=2, causal=causal, window=3)
    graph = collapse_idioms(build_graph(traced(attention, torch.randn(2, 5, 24))))
    node = next(node for node in graph.nodes.values() if node.attention)
    assert node.attention == f"6 heads{', causal' if causal else ''}, window 3"
    assert [sorted(edge.shape) for edge in node.inputs] == [[2, 4, 5, 6], [2, 2, 4, 5], [2, 2, 4, 5]]


def test_attention_from_matmuls_is_recognized() -> None:
    class Eager(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            scores = q @ k.transpose(-1, -2) / 2.0 + torch.full((5, 5), -1e9).triu(1)
            y: Tensor = torch.softmax(scores, -1) @ v
            return y

    graph = collapse_idioms(build_graph(traced(Eager(), torch.randn(2, 5, 8))))
    assert [node.operation for node in graph.nodes.values()] == ["input", "module", "attention"]
    assert graph.nodes[graph.output.source].attention == "2 heads, masked"


def test_an_in_place_residual_addition_is_found() -> None:
    graph = collapse_idioms(build_graph(traced(BasicBlock(4, 4), torch.randn(2, 4, 6, 6))))
    (join,) = find_joins(graph).values()
    assert graph.nodes[join.stream].operation == "input"
    assert graph.call_of(graph.nodes[join.branch]).path == "bn2"
    operations = [graph.call_of(node).path for node in graph.nodes.values() if node.is_module]
    assert operations == ["conv1", "bn1", "relu", "conv2", "bn2", "relu"]


def test_a_projection_shortcut_is_a_join() -> None:
    graph = collapse_idioms(build_graph(traced(BasicBlock(4, 8, stride=2), torch.randn(2, 4, 6, 6))))
    (join,) = find_joins(graph).values()
    assert join.fork is not None
    assert graph.nodes[join.fork].operation == "input"
    assert graph.call_of(graph.nodes[join.stream]).path == "down"
    assert graph.call_of(graph.nodes[join.branch]).path == "bn2"


class TwoLinears(nn.Module):
    """W x + B A x, as LoRA computes it: no side is nonlinear."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w(x) + self.b(self.a(x))
        return y


class HandwrittenRNN(nn.Module):
    """Both sides come from x, but from other time steps of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.ih(x[:, 0]))
        for t in range(1, x.shape[1]):
            h = torch.tanh(self.ih(x[:, t]) + self.hh(h))
        return h


class TwoMLPs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.one(x) + self.other(x)
        return y


SUMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "two linear maps": (TwoLinears(), (2, 4)),
    "two MLPs": (TwoMLPs(), (2, 4)),
    "recurrent": (HandwrittenRNN(), (2, 5, 4)),
}


@pytest.mark.parametrize("name", SUMS)
def test_other_additions_are_no_residual_joins(name: str) -> None:
    model, shape = SUMS[name]
    assert find_joins(collapse_idioms(build_graph(traced(model, torch.randn(shape))))) == {}


def test_multihead_attention_is_decomposed_in_traces() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    for need_weights in (False, True):
        x = torch.randn(2, 5, 8)
        graph = collapse_idioms(build_graph(traced(attention, x, x, x, need_weights=need_weights)))
        (node,) = [node for node in graph.nodes.values() if node.attention]
        assert node.attention == "2 heads"
        assert [node.operation for node in graph.nodes.values()].count("linear") >= 2


def test_a_fused_add_norm_is_traced_as_addition_and_norm() -> None:
    block = small_block("nanochat")
    x = torch.randn(2, 5, 24)
    paths = [call.path for call in traced(block, x).calls]
    assert {"norms.0", "norms.1", "attention.q_norm", "attention.rotary"} <= set(paths)


@pytest.mark.parametrize("training", [True, False])
def test_the_fast_path_of_torch_hides_nothing(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    graph = collapse_idioms(build_graph(traced(layer, torch.randn(2, 5, 8))))
    paths = [graph.call_of(node).path for node in graph.nodes.values() if node.is_module]
    assert paths == ["norm1", "linear1", "linear2", "norm2"]
    assert len(find_joins(graph)) == 2


def test_value_dependent_control_flow_runs_on_real_tensors() -> None:
    for x, path in ((torch.ones(2, 4), "left"), (-torch.ones(2, 4), "right")):
        graph = build_graph(traced(BranchesOnValues(), x))
        assert [graph.call_of(node).path for node in graph.nodes.values() if node.is_module] == [path]


def test_a_large_model_runs_on_fake_tensors() -> None:
    with torch.device("meta"):
        model = GPT(preset("gpt2", depth=3)).eval()
    trace = traced(model, torch.empty(8, 1024, dtype=torch.int64, device="meta"))
    assert trace.output.shape == (8, 1024, 50304)


def state_of(model: nn.Module) -> list[object]:
    kept: list[object] = [
        (name, module.training, dict(module._forward_hooks), dict(module._forward_pre_hooks), list(vars(module)))
        for name, module in model.named_modules()
    ]
    kept += [
        (name, id(tensor), tensor.detach().tolist())
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return [*kept, torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_unchanged(fails: bool, training: bool) -> None:
    model = HasSideEffects(fails).train(training)
    model.norm.register_forward_hook(lambda *_: None)
    before = state_of(model)
    if fails:
        with pytest.raises(ConfigError, match="in the middle"):
            traced(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    else:
        traced(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert state_of(model) == before
    assert model.seen == []
    assert model.table is None
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_error_of_the_model_is_reported(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    """As one of the family, once: torch logs the stack of whatever fails without numbers."""
    with pytest.raises(ConfigError, match=r"Linear cannot be run on these inputs: RuntimeError.*\nfix: ") as caught:
        traced(nn.Linear(3, 4, device=device), torch.randn(2, 5, device=device))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="a torch module, but got str\nfix: "):
        traced("model")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no tensor was given\nfix: "):
        traced(nn.Linear(3, 4))
