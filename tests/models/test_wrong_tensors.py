"""Unsupported tensors: sparse, nested, complex, quantized, or on another device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.errors import DeviceError, DtypeError
from tests.support import randn, random_tokens

X = randn(2, 3, 8, dtype=torch.float32)
TOKENS = random_tokens(11, 2, 3)
MASK = torch.ones(2, 3, dtype=torch.bool)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Sparse CSR.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: ns.LayerNorm(8),
    "RMSNorm": lambda: ns.RMSNorm(8, elementwise_affine=False),
    "BatchNorm": lambda: ns.BatchNorm("[b s] d", d=8),
    "PowerNorm": lambda: ns.PowerNorm(8),
    "Linear": lambda: ns.Linear(8, 4),
    "MLP": lambda: ns.MLP(8),
    "Attention": lambda: ns.Attention(8, 2),
    "Block": lambda: ns.Block(ns.BlockConfig(width=8, heads=2)),
}
MASKED = [name for name in LAYERS if name not in ("Linear", "MLP")]


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x[0], x[1][:2]])


def quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "sparse": (lambda x: x.to_sparse(), r"expected a dense tensor.*sparse_coo.*\nfix: .*to_dense"),
    "mkldnn": (lambda x: x.to_mkldnn(), r"expected a dense tensor.*mkldnn.*\nfix: .*to_dense"),
    "nested": (nested, r"expected a dense tensor.*nested.*\nfix: .*to_padded_tensor"),
    "complex": (lambda x: x.to(torch.complex64), r"complex64"),
    "quantized": (quantized, r"qint8"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("layer", LAYERS)
def test_inputs(layer: str, wrong: str) -> None:
    make, words = WRONG[wrong]
    with pytest.raises(DtypeError, match=words):
        LAYERS[layer]()(make(X))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_norms_refuse_compressed_rows() -> None:
    """Such a tensor cannot even be asked whether it is contiguous."""
    for layer in (ns.LayerNorm(8), ns.RMSNorm(8)):
        with pytest.raises(DtypeError, match=r"expected a dense tensor.*sparse_csr.*\nfix: .*to_dense"):
            layer(X[0].to_sparse_csr())


@pytest.mark.parametrize("layer", MASKED)
def test_masks(layer: str) -> None:
    module = LAYERS[layer]()
    with pytest.raises(DeviceError, match=r"(?s)expected the mask on cpu.*on meta.*fix: .*to\('cpu'\)"):
        module(X, mask=MASK.to("meta"))
    with pytest.raises(DtypeError, match=r"expected a dense tensor for the mask"):
        module(X, mask=MASK.to_sparse())
    with pytest.raises(DtypeError, match=r"expected a dense tensor for the mask"):
        module(X, mask=nested(MASK))


@pytest.mark.exhaustive
def test_jagged_tensor_works_where_torch_supports_it() -> None:
    jagged = torch.nested.nested_tensor([X[0], X[1][:2]], layout=torch.jagged)
    layer = ns.Linear(8, 4)
    torch.testing.assert_close(layer(jagged).values(), layer(torch.cat([X[0], X[1][:2]])))
    with pytest.raises(DtypeError, match="nested"):
        ns.LayerNorm(8)(jagged)
    compressed = X[0].to_sparse_csr()
    torch.testing.assert_close(layer(compressed), layer(X[0]))


def gpt() -> ns.GPT:
    return ns.GPT(ns.gpt2(vocab_size=11, context=8, depth=1, width=8, heads=2))


def test_tokens() -> None:
    for call in (gpt(), gpt().embedding, lambda tokens: gpt().loss(TOKENS, tokens)):
        with pytest.raises(DeviceError, match=r"on meta"):  # torch would read invalid memory
            call(TOKENS.to("meta"))
        with pytest.raises(DtypeError, match=r"expected a dense tensor"):
            call(TOKENS.to_sparse())
        with pytest.raises(DtypeError, match=r"expected a dense tensor.*nested"):
            call(nested(TOKENS))
    with pytest.raises(DeviceError, match="expected the mask on cpu, but it is on meta"):
        gpt()(TOKENS, mask=MASK.to("meta"))


def test_images() -> None:
    images = randn(2, 1, 8, 8, dtype=torch.float32).to_sparse()
    vit = ns.ViT(ns.ViTConfig(image_size=8, patch=4, channels=1, width=8, heads=2))
    for model in (vit, ns.ConvNet(ns.ConvNetConfig(image_size=8, channels=1))):
        with pytest.raises(DtypeError, match="expected a dense tensor"):
            model(images)


@pytest.mark.parametrize(
    ("weight", "error", "words"),
    [
        (torch.ones(8).to_sparse(), DtypeError, "expected a dense tensor for the weight"),
        (torch.ones(8, device="meta"), DeviceError, "expected the weight on cpu, but it is on meta"),
        (torch.ones(8) * 1j, DtypeError, "the weight must be of floats"),
        (torch.ones(8).int(), DtypeError, "the weight must be of floats"),
    ],
)
def test_function_weights(weight: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ns.normalize(X, "b s [d]", weight=weight, affine="d")


def test_meta_tensors_pass() -> None:
    model = gpt().to("meta")
    assert model(TOKENS.to("meta"), mask=MASK.to("meta")).shape == (2, 3, 11)
