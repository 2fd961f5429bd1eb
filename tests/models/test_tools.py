"""torch tools that inspect a module's source, exact type or attributes (symbolic_trace, TorchScript, quantization).

Each either works with our layers or raises a clear error; none skips them silently.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel

import normscope as ns
from normscope.blocks.linear import with_torch_layers
from normscope.errors import TransformError
from tests.support import randn, random_tokens

# torch.jit.script and torch.ao.quantization are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = randn(2, 5, 16, dtype=torch.float32)
IMAGES = randn(2, 4, 3, 3, dtype=torch.float32)
TOKENS = random_tokens(11, 2, 5)


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return ns.GPT(ns.llama(vocab_size=11, context=8, depth=2, width=16, heads=2))


PARTS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "LayerNorm": (lambda: ns.LayerNorm(16), X),
    "RMSNorm": (lambda: ns.RMSNorm(16), X),
    "PowerNorm": (lambda: ns.PowerNorm(16), X),
    "Norm": (lambda: ns.Norm("b s (g [d])", g=4), X),
    "BatchNorm2d": (lambda: ns.BatchNorm2d(4), IMAGES),
    "InstanceNorm2d": (lambda: ns.InstanceNorm2d(4), IMAGES),
    "GroupNorm": (lambda: ns.GroupNorm(2, 4), IMAGES),
    "Linear": (lambda: ns.Linear(16, 3), X),
    "Embedding": (lambda: ns.Embedding(11, 3), TOKENS),
    "MLP": (lambda: ns.MLP(16, activation="swiglu"), X),
    "Attention": (lambda: ns.Attention(16, 2, rotary=ns.Rotary(8, 8)), X),
    "Block": (lambda: ns.Block(ns.BlockConfig(width=16, heads=2)), X),
    "GPT": (gpt, TOKENS),
    "Encoder": (lambda: ns.Encoder(ns.EncoderConfig(vocab_size=11, context=8, width=16, heads=2, dropout=0.0)), TOKENS),
    "ViT": (lambda: ns.ViT(ns.ViTConfig(image_size=3, patch=1, channels=4, width=16, heads=2)), IMAGES),
    "ConvNet": (lambda: ns.ConvNet(ns.ConvNetConfig(image_size=3, channels=4, widths=(4,))), IMAGES),
}
every_part = pytest.mark.parametrize("name", PARTS)


class _Wrapper(nn.Module):
    """A user's model with one of our modules in the middle."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x)
        return torch.relu(y) + 1


@every_part
def test_symbolic_trace_keeps_module_as_one_node(name: str) -> None:
    make, x = PARTS[name]
    model = _Wrapper(make())
    plain = copy.deepcopy(model)
    traced = fx.symbolic_trace(model)
    calls = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert calls == (["part.up", "part.gate", "part.down", "part.dropout"] if name == "MLP" else ["part"])
    assert torch.equal(traced(x), plain(x))


def test_symbolic_trace_keeps_mask() -> None:
    class Masked(_Wrapper):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            y: Tensor = self.part(x, mask=mask)
            return y

    model, mask = Masked(ns.Block(ns.BlockConfig(width=16, heads=2))), torch.arange(5).expand(2, 5) < 3
    assert torch.equal(fx.symbolic_trace(model)(X, mask), model(X, mask))


@every_part
def test_symbolic_trace_of_bare_module_raises(name: str) -> None:
    if name == "MLP":  # its submodules are the nodes
        return
    with pytest.raises(TransformError, match=r"(?s)a single node.*fix: .*torch\.export"):
        fx.symbolic_trace(PARTS[name][0]())


@every_part
def test_torchscript_raises_with_reason(name: str) -> None:
    model = nn.Sequential(nn.Identity(), PARTS[name][0]())
    with pytest.raises(
        TransformError, match=rf"(?s){type(model[1]).__name__} does not support torch\.jit\.script.*fix: "
    ):
        torch.jit.script(model)


def test_quantization_warns_about_skipped_layers() -> None:
    model = gpt()
    with pytest.warns(RuntimeWarning, match=r"(?s)skips normscope's Linear.*with_torch_layers"):
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert not hasattr(model.get_submodule("head"), "qconfig")  # quantize_dynamic works on a copy
    torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})  # there is no LSTM: no warning
    weights = {nn.Embedding: torch.ao.quantization.float_qparams_weight_only_qconfig}
    with pytest.warns(RuntimeWarning, match=r"skips normscope's Embedding"):
        torch.ao.quantization.quantize_dynamic(model, weights)


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning")
def test_quantization_of_torch_layers() -> None:
    model = gpt().eval()
    plain = with_torch_layers(model)
    assert {type(m) for m in plain.modules() if isinstance(m, nn.Linear)} == {nn.Linear}
    assert type(plain.get_submodule("embedding")) is nn.Embedding
    assert torch.equal(plain(TOKENS), model(TOKENS))
    assert type(model.get_submodule("head")) is ns.Linear
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch cannot quantize")
    quantized = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
    assert isinstance(quantized.get_submodule("head"), torch.ao.nn.quantized.dynamic.Linear)
    error = (quantized(TOKENS) - model(TOKENS)).abs().max() / model(TOKENS).abs().max()
    assert 0 < error < 0.1


def test_pruning_weight_norm_and_parametrizations_of_linear() -> None:
    def pruned(layer: nn.Linear) -> nn.Module:
        result: nn.Module = prune.l1_unstructured(layer, "weight", 0.5)
        return result

    def twice(layer: nn.Linear) -> nn.Module:
        class Twice(nn.Module):
            def forward(self, weight: Tensor) -> Tensor:
                return 2 * weight

        return parametrize.register_parametrization(layer, "weight", Twice())

    for change in (pruned, twice, parametrizations.weight_norm, parametrizations.spectral_norm):
        ours, theirs = ns.Linear(16, 4), nn.Linear(16, 4)
        theirs.load_state_dict(ours.state_dict())
        torch.manual_seed(1)
        changed = change(ours)
        torch.manual_seed(1)
        torch.testing.assert_close(changed(X), change(theirs)(X), rtol=1e-4, atol=1e-4)


def test_averaged_model() -> None:
    model = gpt()
    average = AveragedModel(model, use_buffers=True)
    average.update_parameters(model)
    assert torch.equal(average(TOKENS), model(TOKENS))


def test_conversion_to_torch_layer_fails_for_custom_scope() -> None:
    """A custom scope has no `num_features`: torch's layer would normalize over another axis."""
    with pytest.raises(AttributeError, match="num_features"):
        nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(ns.BatchNorm("[b s] d", d=16, affine=False)))
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(ns.BatchNorm("[n] c [...]", c=4))
    assert converted.num_features == 4
