"""A model whose weights are in bfloat16 or float16 computes in float32 on the CPU: as the same model in float32."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.generate.tokens import generate_tokens
from normscope.models.gpt import GPT, GPTConfig
from normscope.ops import half_weights
from normscope.runtime.precision import BFloat16Probe
from tests.support import randn, random_tokens, safe_bfloat16, scramble

TOKENS = random_tokens(31, 2, 12)
FORMS: dict[str, dict[str, Any]] = {
    "llama": {"activation": "swiglu", "kv_heads": 2},
    "tied": {"tied_head": True, "positions": "learned", "norm": "layer", "bias": True},
    "all": {
        "tied_head": True, "embedding_scale": 1.7, "attention_cap": 3.0, "logit_cap": 5.0, "qk_norm": "rms",
        "wiring": "sandwich", "window": 4, "window_pattern": "SL", "rotary_dim": 2, "embedding_norm": True,
    },
}  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS)
every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def pair(form: str, dtype: torch.dtype) -> tuple[GPT, GPT]:
    """A model with weights in this dtype, and the same in float32."""
    sizes: dict[str, Any] = {"vocab_size": 31, "context": 32, "width": 16, "heads": 4, "depth": 2}
    model = GPT(GPTConfig(**sizes, **FORMS[form])).eval()
    scramble(model, scale=0.3)
    half = model.to(dtype)
    exact = copy.deepcopy(half).float()
    if form == "all":  # the factor is rounded to the dtype of the weights
        rounded = torch.tensor(1.7, dtype=dtype).item()
        exact.config = GPTConfig(**sizes, **{**FORMS[form], "embedding_scale": rounded})
    return half, exact


@every_form
@every_dtype
def test_logits_and_gradients_are_those_of_float32(form: str, dtype: torch.dtype) -> None:
    half, exact = pair(form, dtype)
    y, wanted = half(TOKENS), exact(TOKENS)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    half.loss(TOKENS, TOKENS).backward()
    exact.loss(TOKENS, TOKENS).backward()
    for (name, mine), known in zip(half.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None, name
        assert known.grad is not None, name
        assert mine.grad.dtype == dtype
        torch.testing.assert_close(
            mine.grad.float(), known.grad, rtol=0.02, atol=1e-7 + 0.02 * float(known.grad.abs().max())
        )


@every_form
def test_texts_with_a_cache_are_those_of_float32(form: str) -> None:
    half, exact = pair(form, torch.bfloat16)
    prompts = [TOKENS[0, :3], TOKENS[1, :7]]
    mine, known = (generate_tokens(model, prompts, max_new_tokens=10, temperature=0.0) for model in (half, exact))
    assert [text.tokens for text in mine] == [text.tokens for text in known]
    assert half.new_cache(1).layers[0].keys.dtype == torch.float32


def test_a_model_of_several_dtypes_runs() -> None:
    """As Gemma, whose gains are in float32, and nanochat, whose embedding is in bfloat16."""
    half, exact = pair("all", torch.bfloat16)
    for norm in (half.final_norm, half.blocks[0].norms[0]):  # type: ignore[index]
        norm.float()
    torch.testing.assert_close(half(TOKENS), exact(TOKENS), rtol=1e-5, atol=1e-5)
    for block in half.blocks:
        block.float()
    torch.testing.assert_close(half(TOKENS), exact(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 64, 1 << 22])
def test_a_product_in_parts(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_weights, "_CHUNK", chunk)
    x, weight, bias = randn(2, 3, 16).float(), randn(40, 16, seed=1).bfloat16(), randn(40, seed=2).bfloat16()

    def gradients(product: Any, weight: Tensor) -> list[Tensor]:
        inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        y = product(*inputs)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    mine = gradients(half_weights.linear, weight)
    known = gradients(lambda x, w, b: torch.nn.functional.linear(x, w.float(), b.float()), weight)
    for a, b in zip(mine, known, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-2 if a.dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_second_derivatives() -> None:
    x, weight = randn(3, 4).float().requires_grad_(), randn(5, 4, seed=1).bfloat16().requires_grad_()
    (first,) = torch.autograd.grad(half_weights.linear(x, weight).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    (wanted,) = torch.autograd.grad((x @ weight.float().T).pow(3).sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(wanted.sum(), x)[0])


@pytest.mark.parametrize(("ratio", "native"), [(None, False), (1.2, False), (5.0, True)])
def test_fast_products_are_native(ratio: float | None, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_weights, "probe_bfloat16", lambda: BFloat16Probe(ratio, ""))
    x, weight = randn(2, 1024).float(), randn(1024, 1024, seed=1).bfloat16()
    with safe_bfloat16():
        rounded = torch.nn.functional.linear(x.bfloat16(), weight).float()
        y = half_weights.linear(x, weight)
    assert torch.equal(y, rounded) == native
    assert y.dtype == torch.float32
