"""LoRA layers: a frozen weight plus a trainable product, which merge to one weight."""

from typing import Any

import pytest
import torch
from torch import nn

from normscope.blocks.linear import Linear
from normscope.blocks.lora import LoRALinear, add_lora, freeze, lora_layers, merge_lora, trained_tensors
from normscope.errors import ConfigError
from normscope.generate.decoder_support import can_decode
from normscope.models.gpt import GPT
from normscope.models.presets import preset

TINY = {"vocab_size": 40, "context": 16, "depth": 2, "width": 32, "heads": 2}


def gpt(name: str = "llama", **settings: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(preset(name, **{**TINY, **settings}))


def train_adapters(model: GPT) -> None:
    for layer in lora_layers(model).values():
        nn.init.normal_(layer.lora_b, std=0.1)


def test_it_computes_the_formula_and_its_gradients() -> None:
    torch.manual_seed(0)
    base = Linear(6, 5)
    nn.init.normal_(base.bias)
    layer = LoRALinear(base, rank=3, alpha=6)
    nn.init.normal_(layer.lora_b)
    x = torch.randn(2, 4, 6, requires_grad=True)
    y = layer(x)
    a, b = (p.detach().clone().requires_grad_() for p in (layer.lora_a, layer.lora_b))
    plain = x.detach().clone().requires_grad_()
    wanted = plain @ (base.weight + 2 * b @ a).T + base.bias
    torch.testing.assert_close(y, wanted)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (wanted * weights).sum().backward()
    for found, expected in ((x, plain), (layer.lora_a, a), (layer.lora_b, b)):
        torch.testing.assert_close(found.grad, expected.grad)
    assert base.weight.grad is None


def test_the_backward_pass_keeps_no_copy_of_what_only_the_frozen_weight_needs() -> None:
    layer, saved = LoRALinear(Linear(64, 32), rank=1), list[torch.Tensor]()
    x = torch.randn(100, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        layer(x)
    known = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    assert sum(t.numel() for t in saved if t.untyped_storage().data_ptr() not in known) == 100  # x A^T


def test_dropout_acts_on_the_adapter_only_and_in_training_only() -> None:
    torch.manual_seed(0)
    base = Linear(8, 8)
    layer, x = LoRALinear(base, rank=2, dropout=0.5), torch.randn(3, 8)
    torch.testing.assert_close(layer(x), base(x))
    nn.init.normal_(layer.lora_b)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("name", ["gpt2", "nanochat", "llama"])
def test_a_merged_model_computes_the_same(name: str) -> None:
    model = gpt(name).double().eval()
    tokens = torch.randint(40, (2, 12))
    before = model(tokens)
    add_lora(model, rank=4, alpha=3)
    torch.testing.assert_close(model(tokens), before)
    train_adapters(model)
    adapted = model(tokens)
    assert (adapted - before).abs().max() > 1e-3 or name == "nanochat"  # its head starts at zero
    merge_lora(model)
    torch.testing.assert_close(model(tokens), adapted, rtol=1e-12, atol=1e-12)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Linear)} == {Linear}


def test_the_fused_decoder_refuses_an_adapter_that_is_not_merged() -> None:
    model = gpt().eval()
    supported = can_decode(model)
    add_lora(model, rank=1, targets=["blocks.1.mlp.down"])
    assert not can_decode(model)
    merge_lora(model)
    assert can_decode(model) == supported


def test_by_default_all_layers_of_attention_and_mlp_are_adapted_and_the_rest_is_frozen() -> None:
    model = gpt()
    names = add_lora(model, rank=2)
    assert len(names) == 2 * 7
    assert all(name.rpartition(".")[2] in ("lora_a", "lora_b") for name in trained_tensors(model))
    assert sum(p.requires_grad for p in model.parameters()) == 2 * len(names)


def test_a_frozen_weight_of_low_precision_keeps_float32_adapters() -> None:
    assert LoRALinear(Linear(4, 4, dtype=torch.bfloat16), rank=1).lora_a.dtype == torch.float32


@pytest.mark.parametrize(
    ("targets", "problem"), [(["*.q", "*.query"], r"'\*\.query' matches no linear layer"), ([], "no LoRA targets")]
)
def test_targets_that_match_nothing_are_refused(targets: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        add_lora(gpt(), rank=2, targets=targets)


def test_freezing_needs_a_pattern_that_matches_and_leaves_something() -> None:
    model = gpt()
    assert freeze(model, ["embedding.*"]) == ["embedding.weight"]
    with pytest.raises(ConfigError, match=r"matches no trainable parameter\n.* are blocks\.0\.[^,]*, "):
        freeze(model, ["embedding.*"])
    with pytest.raises(ConfigError, match="every parameter would be frozen"):
        freeze(model, ["*"])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_activations_of_an_adapted_mlp_are_not_kept_and_gradients_are_the_same(name: str) -> None:
    model, saved = gpt(name), list[torch.Tensor]()
    add_lora(model, rank=2)
    train_adapters(model)
    mlp: Any = model.blocks[0].mlp
    x = torch.randn(2, 8, 32, requires_grad=True)
    y = mlp(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, mlp.down.lora_a, mlp.up.lora_a])
    gate = None if mlp.gate is None else mlp.gate(x)
    plain = mlp.down(mlp._activate(mlp.up(x), gate))
    wanted = torch.autograd.grad(plain.square().sum(), [x, mlp.down.lora_a, mlp.up.lora_a])
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        kept_before = len(saved)
        mlp(x)
    hidden = 16 * mlp.down.in_features
    kept = {t.untyped_storage().data_ptr() for t in saved[kept_before:] if t.numel() == hidden}
    assert len(kept) == (1 if mlp.gate is None else 2)
