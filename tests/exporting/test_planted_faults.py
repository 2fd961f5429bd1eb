"""Faults of exports that are known from the trackers of other tools: each is planted in a writer, caught and named."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.comparing.behavior import centered, logit_distances
from normscope.comparing.runtime import GPTRuntime
from normscope.exporting.export import FORMATS, ExportError, export_source
from normscope.exporting.first_difference import ENDS, silence
from normscope.exporting.gguf import architectures, write
from normscope.exporting.gguf.rounding import _table_gelu, llama_cpp_model
from normscope.exporting.gguf.tokenizer import gguf_tokenizer
from normscope.exporting.huggingface import write as huggingface_write
from normscope.exporting.onnx import layers
from normscope.exporting.onnx.attention import AttentionGraph
from normscope.exporting.onnx.graph import Graph
from normscope.exporting.plans import GGUF
from normscope.exporting.safetensors_folder import write_shards
from normscope.interop.checkpoint import model_from_weights
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.huggingface import weight_table
from tests.exporting.models import small_source
from tests.exporting.test_formats import NEEDS

EXACT = {"gguf": "f32", "hf": "float32", "onnx": "float32"}
"""The weight formats without rounding."""
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]

SWAPPED = "queries and keys have their halves swapped, or the rotation has the opposite sign"


def arrange(change: Callable[[Any, str, str, Tensor, Any], Tensor]) -> Plant:
    """Change how the rows of q and k are sorted for llama.cpp; `change` gets the right function first."""
    right = architectures.arrange
    return lambda patch: patch.setattr(architectures, "arrange", lambda *rest: change(right, *rest))


def twice(right: Any, name: str, key: str, tensor: Tensor, config: Any) -> Tensor:
    found: Tensor = right(name, key, right(name, key, tensor, config), config)
    return found


def swap_halves(right: Any, name: str, key: str, tensor: Tensor, config: Any) -> Tensor:
    if key.endswith(("attn_q.weight", "attn_k.weight")):
        tensor = tensor.unflatten(0, (-1, 2, config.head_sizes[2] // 2)).flip(1).reshape(tensor.shape)
    found: Tensor = right(name, key, tensor, config)
    return found


def metadata(**wrong: Any) -> Plant:
    values = {name.replace("__", "."): one for name, one in wrong.items()}
    right = architectures.metadata
    return lambda patch: patch.setattr(write, "metadata", lambda *arguments: {**right(*arguments), **values})


def tokenizer(**wrong: Any) -> Plant:
    return lambda patch: patch.setattr(
        write, "gguf_tokenizer", lambda *arguments: dataclasses.replace(gguf_tokenizer(*arguments), **wrong)
    )


def without_head(patch: Patch) -> None:
    right = architectures.tensors

    def tensors(*arguments: Any) -> LazyTensors:
        found = right(*arguments)
        kept = {name: spec for name, spec in found.specs.items() if name != "output.weight"}
        return LazyTensors(kept, found.__getitem__)

    patch.setattr(write, "tensors", tensors)


def settings(**wrong: Any) -> Plant:
    """Write wrong settings to config.json."""
    right = huggingface_write.write_json

    def write_json(path: Path, content: dict[str, Any]) -> None:
        right(path, {**content, **wrong} if path.name == "config.json" else content)

    return lambda patch: patch.setattr(huggingface_write, "write_json", write_json)


def drop_head_of_folder(patch: Patch) -> None:
    right = write_shards
    patch.setattr(
        huggingface_write,
        "write_shards",
        lambda folder, tensors: right(folder, {name: tensors[name] for name in tensors if name != "lm_head.weight"}),
    )


def negate_sine(patch: Patch) -> None:
    right = AttentionGraph._rotary_tables

    def tables(self: Any, frequencies: Any) -> Any:
        cos, sin = right(self, frequencies)
        return cos, sin * -1.0

    patch.setattr(AttentionGraph, "_rotary_tables", tables)


def start_at_one(patch: Patch) -> None:
    right = Graph.node

    def node(self: Graph, operator: str, *inputs: Any, **attributes: Any) -> Any:
        found = right(self, operator, *inputs, **attributes)
        if operator != "Gather" or "position" not in getattr(inputs[0], "name", ""):
            return found
        return right(self, "Gather", inputs[0], inputs[1] + 1, **attributes)

    patch.setattr(Graph, "node", node)


def onnx_eps(patch: Patch) -> None:
    right = Graph.node

    def node(self: Graph, operator: str, *inputs: Any, **attributes: Any) -> Any:
        return right(self, operator, *(1e-3 if one == 1e-5 else one for one in inputs), **attributes)

    patch.setattr(Graph, "node", node)


def changed_matrix(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change a tensor of a GGUF file."""

    def plant(patch: Patch) -> None:
        right = architectures.tensors

        def tensors(*arguments: Any) -> LazyTensors:
            found = right(*arguments)
            return LazyTensors(found.specs, lambda key: change(found[key]) if key == name else found[key])

        patch.setattr(write, "tensors", tensors)

    return plant


def larger_row(matrix: Tensor) -> Tensor:
    return torch.cat([matrix[:1] * 1.01, matrix[1:]])


def one(name: str, to: str, model: str, plant: Plant, layer: str | None, *words: str, slow: bool = False) -> Any:
    marks = [pytest.mark.exhaustive] if slow else []
    return pytest.param(to, model, plant, layer, words, id=name, marks=marks)


FAULTS = [
    one("rotation-sign", "onnx", "llama", negate_sine, "blocks.0.attention", SWAPPED),
    one("eps", "onnx", "llama", onnx_eps, ENDS, "eps of the norms is 0.001 instead of 1e-05"),
    one(
        "activation",
        "onnx",
        "gpt2",
        lambda patch: patch.setitem(layers.ACTIVATIONS, "gelu", layers.ACTIVATIONS["relu"]),
        "blocks.0.mlp",
        "the activation is relu instead of gelu",
    ),
    one("missing-merges", "gguf", "llama", tokenizer(own={"pre": "gpt-2"}), None, "llama.cpp cannot load it", "merges"),
    one(
        "permutation-forgotten",
        "gguf",
        "llama",
        arrange(lambda right, name, key, tensor, config: tensor),
        "blocks.0.attention",
        "queries and keys have rows in",
    ),
    one("special-token", "gguf", "llama", tokenizer(eos=0), None, "the end-of-text token is 0 instead of", slow=True),
    one("permutation-twice", "gguf", "llama", arrange(twice), "blocks.0.attention", "queries and keys", slow=True),
    one("halves-swapped", "gguf", "llama", arrange(swap_halves), "blocks.0.attention", SWAPPED, slow=True),
    one(
        "tied-head", "gguf", "llama", without_head, ENDS, "the output head is the embedding, but the head is not tied",
        slow=True,
    ),
    one(
        "gguf-eps", "gguf", "llama", metadata(attention__layer_norm_rms_epsilon=1e-3), ENDS,
        "eps of the norms is 0.001", slow=True,
    ),
    one(
        "gguf-base", "gguf", "llama", metadata(rope__freq_base=1e6), "blocks.0.attention",
        "the base of the rotary embedding is 1e+06", slow=True,
    ),
    one(
        "hf-rotation-sign", "hf", "nanochat",
        lambda patch: patch.setattr(weight_table, "_turned_back", lambda tensor, config: tensor),
        "blocks.0.attention", SWAPPED, slow=True,
    ),
    one(
        "hf-activation", "hf", "gpt2", settings(activation_function="relu"), "blocks.0.mlp",
        "the activation is relu instead of gelu", slow=True,
    ),
    one(
        "gelu-row", "gguf", "gpt2", changed_matrix("blk.0.ffn_up.weight", larger_row), "blocks.0.mlp", "allowed 1e-03",
        slow=True,
    ),
    one(
        "gelu-bfloat16", "gguf", "gpt2",
        changed_matrix("blk.0.ffn_up.weight", lambda matrix: matrix.bfloat16().float()), "blocks.0.mlp",
        "allowed 1e-03", slow=True,
    ),
    one(
        "hf-tied-head", "hf", "llama", drop_head_of_folder, None, "transformers loads it in part", "lm_head.weight",
        slow=True,
    ),
    one("hf-eps", "hf", "llama", settings(rms_norm_eps=1e-3), None, "eps of the norms is 0.001", slow=True),
    one("position-off-by-one", "onnx", "gpt2", start_at_one, ENDS, "positions are off by one, too late", slow=True),
]  # fmt: skip


def test_small_faults_exceed_the_tolerance_of_gelu() -> None:
    model = small_source("gpt2", "characters").model
    reference = llama_cpp_model(model, "f32")
    limit = GGUF.tolerance(reference, "f32")
    assert limit is not None
    tokens = list(range(24))
    expected = centered(GPTRuntime(reference).logits(tokens))
    for change in (larger_row, lambda matrix: matrix.bfloat16().float()):
        name = "blocks.0.mlp.up.weight"
        weights = {**model.state_dict(), name: change(model.state_dict()[name])}
        changed = llama_cpp_model(model_from_weights(model.config, weights), "f32")
        assert max(logit_distances(expected, centered(GPTRuntime(changed).logits(tokens)))) > 1.5 * limit


def test_the_table_of_gelu_ends_at_ten() -> None:
    x = torch.tensor([-1e4, -10.0, -9.0, -0.1, 0.0, 1.0, 2.0, 9.999, 10.0, 10.001, 1e5])
    found = _table_gelu(x)
    torch.testing.assert_close(found, torch.nn.functional.gelu(x, approximate="tanh"), rtol=2**-10, atol=1e-7)
    assert found[[0, 1]].tolist() == [0, 0]
    assert torch.equal(found[-3:], x[-3:])
    assert torch.equal(found[2:8], found[2:8].half().float())
    assert _table_gelu(torch.tensor(1.0001)) == found[5]


@pytest.mark.parametrize("wiring", ["pre", "sandwich", "parallel", "parallel-2", "branch"])
def test_silent_branches_add_nothing(wiring: str) -> None:
    model = small_source("llama", wiring=wiring).model
    for silent, equal in ((["blocks.1.mlp"], False), (["blocks.0.mlp", "blocks.1.attention", "blocks.1.mlp"], True)):
        start, first, second = (one.x for one in silence(model, silent).residual_streams(torch.arange(7)[None]))
        assert not torch.equal(start, first)
        assert torch.equal(first, second) == equal


@pytest.mark.parametrize(("to", "model", "plant", "layer", "words"), FAULTS)
def test_a_planted_fault_is_caught_and_named(
    to: str,
    model: str,
    plant: Plant,
    layer: str | None,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(NEEDS[to])
    source = small_source(model, "characters", depth=1)
    plant(monkeypatch)
    with pytest.raises(ExportError) as caught, torch.no_grad():
        export_source(source, to, tmp_path / f"m{FORMATS[to].suffix}", EXACT[to], "require")
    message = str(caught.value)
    for word in words:
        assert word in message, message
    if layer is not None:
        assert caught.value.proof.first_layer == layer
