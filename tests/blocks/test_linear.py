"""Linear in torch.nn.Linear's place: the same arguments, numbers, gradients and state_dict."""

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normscope.blocks.initialization import initialize
from normscope.blocks.linear import Embedding, Linear
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, NormscopeError, ShapeError
from tests.support import every_refusal, randn, safe_bfloat16

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def pair(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[Linear, nn.Linear]:
    """Our layer and torch's with the same numbers."""
    ours, theirs = Linear(5, 3, bias, dtype=dtype), nn.Linear(5, 3, bias, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def step(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of one pass forwards and backwards."""
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.backward(randn(*y.shape, seed=1, dtype=y.dtype))
    grads = [p.grad for p in layer.parameters()]
    return [y, *(g for g in [leaf.grad, *grads] if g is not None)]


@pytest.mark.parametrize(("ours", "theirs"), [(Linear, nn.Linear), (Embedding, nn.Embedding)])
def test_arguments_are_torchs_and_what_is_new_is_by_name_only(ours: type[Any], theirs: type[Any]) -> None:
    mine = list(inspect.signature(ours.__init__).parameters.values())
    known = list(inspect.signature(theirs.__init__).parameters.values())
    wanted = [(p.name, p.default, p.kind) for p in known]
    assert [(p.name, p.default, p.kind) for p in mine[: len(known)]] == wanted
    assert len(mine) > len(known)
    assert all(p.kind is p.KEYWORD_ONLY for p in mine[len(known) :])


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_and_gradients_are_torchs_bit_for_bit(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    ours, theirs = pair(bias, dtype)
    x = randn(*shape, dtype=dtype)
    with safe_bfloat16():
        mine, known = step(ours, x), step(theirs, x)
    assert len(mine) == len(known) == 3 + bias
    for a, b in zip(mine, known, strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b)


def test_autocast_is_torchs_too() -> None:
    ours, theirs = pair(bias=True)
    with safe_bfloat16(), torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):  # a mix of types is what autocast is for
            mine, known = step(ours, randn(4, 5, dtype=dtype)), step(theirs, randn(4, 5, dtype=dtype))
            assert mine[0].dtype == torch.bfloat16
            for a, b in zip(mine, known, strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("bias", [True, False])
def test_state_dict_goes_both_ways(bias: bool) -> None:
    ours, theirs = Linear(5, 3, bias), nn.Linear(5, 3, bias)
    theirs.load_state_dict(ours.state_dict())
    x = randn(2, 5, dtype=torch.float32)
    assert torch.equal(ours(x), theirs(x))
    again = nn.Linear(5, 3, bias)
    ours.load_state_dict(again.state_dict())
    assert torch.equal(ours(x), again(x))
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_a_deep_copy_is_independent() -> None:
    ours, _ = pair(bias=True)
    twin = copy.deepcopy(ours)
    with torch.no_grad():
        twin.weight.zero_()
    assert twin.init is ours.init or twin.init == ours.init
    assert ours.weight.any()


def test_on_the_meta_device_nothing_is_drawn_and_later_all_of_it() -> None:
    layer = Linear(5, 3, device="meta")
    assert layer.weight.is_meta
    assert layer(torch.empty(2, 5, device="meta")).shape == (2, 3)
    with torch.device("meta"):
        assert Linear(5, 3).weight.is_meta
    layer.to_empty(device="cpu")
    torch.manual_seed(3)
    initialize(layer)
    torch.manual_seed(3)
    assert torch.equal(layer.weight, Linear(5, 3).weight)


def test_numpys_whole_numbers_are_welcome() -> None:
    sizes: Any = (np.int64(5), np.int32(3))
    assert Linear(*sizes)(torch.zeros(5)).shape == (3,)


def test_the_repr_says_what_it_is() -> None:
    assert repr(Linear(5, 3)) == "Linear(d_in=5, d_out=3, bias=True, init=glorot-truncated)"
    assert repr(Linear(5, 3, False, init="gpt2")) == "Linear(d_in=5, d_out=3, bias=False, init=gpt2)"


@every_refusal(
    ("last", ShapeError, r"last dimension is 5, but got \(5, 4\)", lambda: Linear(5, 3)(torch.zeros(5, 4))),
    ("number", ShapeError, r"but got \(\)", lambda: Linear(5, 3)(torch.tensor(1.0))),
    ("double", DtypeError, "float32, but got a tensor of torch.float64", lambda: Linear(5, 3)(torch.zeros(5).double())),
    (
        "whole",
        DtypeError,
        r"torch.int64; convert it with .to\(torch.float32\)$",
        lambda: Linear(5, 3)(torch.zeros(5).long()),
    ),
    ("meta", DtypeError, "float64", lambda: Linear(5, 3, device="meta")(torch.zeros(5).double().to("meta"))),
    ("list", ArgumentTypeError, "takes a tensor, but got list", lambda: Linear(5, 3)([0.0] * 5)),
    ("zero", ConfigError, "in_features=0 must be", lambda: Linear(0, 3)),
    ("negative", ConfigError, "out_features=-1 must be", lambda: Linear(5, -1)),
    ("fraction", ConfigError, r"in_features=2\.5 must be", lambda: Linear(2.5, 3)),  # type: ignore[arg-type]
    ("truth", ConfigError, "in_features=True must be", lambda: Linear(True, 3)),
    ("text", ConfigError, "out_features='3' must be", lambda: Linear(5, "3")),  # type: ignore[arg-type]
    ("type", DtypeError, "must be a torch float type", lambda: Linear(5, 3, dtype=torch.int64)),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_autocast_does_not_admit_whole_numbers() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(DtypeError, match="int64"):
        Linear(5, 3)(torch.zeros(5).long())
