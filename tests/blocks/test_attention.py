"""Attention against three plain loops in float64; who may look at whom; and what is refused."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.attention import Attention
from normscope.blocks.cache import KVCache
from normscope.blocks.norm.norm_spec import TEXT_NORMS, NormSpec
from normscope.blocks.rotary import Rotary
from normscope.errors import (
    ArgumentTypeError,
    ConfigError,
    DtypeError,
    FutureLeakError,
    NormscopeError,
    ScopeError,
    ShapeError,
)
from normscope.ops.fused import attention as loops
from normscope.ops.kernel_mode import reference_kernels
from tests.blocks.slow_attention import slow_attention
from tests.ops.recording import recorded
from tests.pairs import every_pair
from tests.support import every_refusal, randn, real_tokens, scramble

WIDTH, HEADS = 16, 4
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "grouped": {"kv_heads": 2},
    "one-kv-head": {"kv_heads": 1},
    "own-head-size": {"head_dim": 6},
    "qk-norm": {"qk_norm": TEXT_NORMS["rms-plain"]},
    "window": {"window": 3},
    "window-of-one": {"window": 1},
    "rotary": {"rotary": Rotary(4, 12)},
    "part-rotary": {"rotary": Rotary(6, 12, rotary_dim=4), "head_dim": 6},
    "scale": {"attention_scale": 0.9, "kv_heads": 2},
    "cap": {"attention_cap": 0.7, "kv_heads": 2, "window": 3},
    "qkv-bias": {"bias": "qkv"},
    "all": {"kv_heads": 2, "qk_norm": TEXT_NORMS["rms-plain"], "window": 4, "bias": True, "rotary": Rotary(4, 12)},
}
every_form = pytest.mark.parametrize("form", FORMS)
causal_or_not = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])


def made(**options: Any) -> Attention:
    """In float64, with weights large enough that attention is sharp in places."""
    attention = Attention(WIDTH, HEADS, **copy.deepcopy(options)).double()  # a rotary of its own
    scramble(attention, scale=0.5)
    return attention


@every_pair(form=list(FORMS), causal={"causal": True, "both-ways": False}, padded={"whole": False, "padded": True})
def test_it_is_the_three_loops(form: str, causal: bool, padded: bool) -> None:
    attention, x = made(causal=causal, **FORMS[form]), randn(2, 7, WIDTH)
    mask = real_tokens([7, 4], 7) if padded else None
    y, wanted = attention(x, mask), slow_attention(attention, x, mask)
    if mask is not None:
        assert y.isfinite().all()
        y, wanted = y[mask], wanted[mask]
    torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-10)


@every_form
def test_gradients_are_those_of_the_three_loops(form: str) -> None:
    attention = made(**FORMS[form])
    grads = []
    for run in (attention, lambda x: slow_attention(attention, x)):
        attention.zero_grad()
        x = randn(1, 5, WIDTH).requires_grad_()
        run(x).backward(randn(1, 5, WIDTH, seed=1))
        grads.append([x.grad, *(p.grad for p in attention.parameters())])
    for mine, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-10)


def test_torchs_own_multi_head_attention_gives_the_same() -> None:
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    scramble(theirs, seed=2, scale=0.5)
    ours = made(causal=False, bias=True)
    q, k, v = theirs.in_proj_weight.chunk(3)
    bias_q, bias_k, bias_v = theirs.in_proj_bias.chunk(3)
    ours.load_state_dict(
        {
            "q.weight": q, "k.weight": k, "v.weight": v, "out.weight": theirs.out_proj.weight,
            "q.bias": bias_q, "k.bias": bias_k, "v.bias": bias_v, "out.bias": theirs.out_proj.bias,
        }
    )  # fmt: skip
    x = randn(2, 6, WIDTH)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-12, atol=1e-12)


@every_form
def test_what_comes_later_changes_nothing_before(form: str) -> None:
    attention, x = made(**FORMS[form]), randn(2, 8, WIDTH)
    later = x.clone()
    later[:, 5:] = 100.0
    y, changed = attention(x), attention(later)
    assert torch.equal(y[:, :5], changed[:, :5])
    assert not torch.isclose(y[:, 5:], changed[:, 5:]).all()


def test_a_window_hides_what_is_far() -> None:
    x = randn(1, 8, WIDTH)
    changed = x.clone()
    changed[:, 3] = 9.0
    for causal, touched in ((True, [3, 4]), (False, [2, 3, 4])):
        attention = made(window=2, causal=causal)
        moved = (attention(x) != attention(changed)).any(-1).flatten()
        assert moved.nonzero().flatten().tolist() == touched


def test_a_window_of_the_whole_context_is_no_window() -> None:
    x = randn(1, 8, WIDTH)
    assert torch.equal(made(window=8)(x), made()(x))
    assert not torch.isclose(made(window=7)(x), made()(x)).all()


def test_dropout_is_for_training_only() -> None:
    x = randn(4, 8, WIDTH)
    attention, whole = made(dropout=0.5), made()(x)
    y = attention(x)
    assert 0.3 < (y == 0).double().mean().item() < 0.7
    # Dropout fell on the weights too: what is left of the output is not just the whole one doubled.
    assert not torch.isclose(y[y != 0], 2 * whole[y != 0]).all()
    assert torch.equal(attention.eval()(x), whole)


def test_nobody_and_nothing() -> None:
    assert made()(torch.zeros(0, 3, WIDTH, dtype=torch.float64)).shape == (0, 3, WIDTH)
    assert made()(torch.zeros(2, 0, WIDTH, dtype=torch.float64)).shape == (2, 0, WIDTH)


def test_scores_are_divided_by_the_root_of_the_head_size() -> None:
    """As torch's own function does when it is left to itself."""
    attention, x = made(head_dim=6, causal=False), randn(1, 5, WIDTH)
    q, k, v = (layer(x).unflatten(-1, (HEADS, 6)).transpose(1, 2) for layer in (attention.q, attention.k, attention.v))
    y: Tensor = F.scaled_dot_product_attention(q, k, v, scale=6**-0.5)
    torch.testing.assert_close(attention(x), attention.out(y.transpose(1, 2).flatten(2)))


def test_a_qk_norm_can_be_given_by_name_or_by_scope() -> None:
    x = randn(2, 6, WIDTH)
    wanted = made(qk_norm=TEXT_NORMS["rms-plain"])(x)
    assert torch.equal(made(qk_norm="rms-plain")(x), wanted)
    assert torch.equal(made(qk_norm="b s h [e]")(x), made(qk_norm=NormSpec("b s h [e]", affine=None))(x))


@pytest.mark.parametrize("scope", ["b [s] h e", "[b s] h e", "[...]", "[b ...] e"])
def test_a_causal_qk_norm_may_not_bracket_time(scope: str) -> None:
    norm = NormSpec(scope, affine=None)
    with pytest.raises(FutureLeakError, match=r"qk_norm='.*' brackets the token axis.*allow_future_leak=True"):
        Attention(WIDTH, HEADS, qk_norm=norm)
    assert Attention(WIDTH, HEADS, qk_norm=norm, causal=False).q_norm is not None
    studied, x = made(qk_norm=norm, allow_future_leak=True), randn(2, 6, WIDTH)
    later = x.clone()
    later[:, 5] *= 3.0
    assert not torch.isclose(studied(x)[:, :5], studied(later)[:, :5]).all()  # it does leak


def test_the_repr_says_what_it_is() -> None:
    text = repr(Attention(16, 4, kv_heads=2, window=3, causal=False))
    assert "heads=4, kv_heads=2, head_dim=4, causal=False, window=3" in text


def ask(*shape: int, mask: Any = None) -> Any:
    return lambda: Attention(WIDTH, HEADS)(torch.zeros(shape), mask=mask)


@every_refusal(
    ("heads", ConfigError, "width=16 is not divisible by heads=3", lambda: Attention(16, 3)),
    ("kv-heads", ConfigError, "heads=4 is not divisible by kv_heads=3", lambda: Attention(16, 4, kv_heads=3)),
    ("no-heads", ConfigError, "heads=0 must be", lambda: Attention(16, 0)),
    ("head-size", ConfigError, "head_dim=0 must be", lambda: Attention(16, 4, head_dim=0)),
    ("window", ConfigError, "window=0 must be", lambda: Attention(16, 4, window=0)),
    ("dropout", ConfigError, "dropout=1 must be", lambda: Attention(16, 4, dropout=1)),
    (
        "rotary",
        ConfigError,
        "rotary has head_dim=8, but attention has head_dim=4",
        lambda: Attention(16, 4, rotary=Rotary(8, 4)),
    ),
    ("rotary-flag", ConfigError, "rotary=True must be a Rotary", lambda: Attention(16, 4, rotary=True)),  # type: ignore[arg-type]
    ("bias", ConfigError, "bias='no' must be True or False", lambda: Attention(16, 4, bias="no")),  # type: ignore[arg-type]
    ("norm", ConfigError, "there is no norm 'rns'", lambda: Attention(16, 4, qk_norm="rns")),
    ("norm-rank", ScopeError, "shape", lambda: Attention(16, 4, qk_norm=NormSpec("b s [d]"))),
    ("two-axes", ShapeError, r"takes \(batch, tokens, width\), but got shape \(5, 16\)", ask(5, 16)),
    ("width", ShapeError, "last dimension is 16", ask(1, 5, 15)),
    ("list", ArgumentTypeError, "got list", lambda: Attention(16, 4)([1.0])),
    ("mask-type", DtypeError, r"got torch.float32; use mask.bool\(\)", ask(2, 5, 16, mask=torch.ones(2, 5))),
    (
        "mask-shape",
        ShapeError,
        r"of shape \(2, 5\), True at real tokens, but got",
        ask(2, 5, 16, mask=torch.ones(2, 4).bool()),
    ),
    (
        "mask-rank",
        ShapeError,
        r"of shape \(2, 5\), True at real tokens, but got",
        ask(2, 5, 16, mask=torch.ones(2, 5, 5).bool()),
    ),
    ("mask-list", ArgumentTypeError, "got list", ask(1, 2, 16, mask=[[True, False]])),
)
def test_mistakes_are_refused(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_the_kernel_serves_a_plain_pass_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, [("kernel", loops, "forward")])
    x, mask = randn(2, 8, WIDTH, dtype=torch.float32), real_tokens([8, 5], 8)
    for form in FORMS:
        attention = made(**FORMS[form]).float()
        y = attention(x)
        assert calls == ([] if attention.cap else ["kernel"]), form
        with reference_kernels():
            torch.testing.assert_close(y, attention(x))
        attention(x, mask)
        attention.double()(x.double())
        assert calls == ([] if attention.cap else ["kernel"]), form
        del calls[:]
    dropping = made(dropout=0.5).float()
    dropping(x)
    assert calls == []
    torch.testing.assert_close(dropping.eval()(x), made().float()(x))
    cache = KVCache(1, 2, HEADS, 8, WIDTH // HEADS, x)
    torch.testing.assert_close(dropping(x, cache=cache.layers[0]), dropping(x))
    assert calls == 3 * ["kernel"]
