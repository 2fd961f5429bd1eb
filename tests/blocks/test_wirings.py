"""The wirings, each against its formula written out with the block's own parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm.norm_spec import TEXT_NORMS, NoNorm
from normscope.blocks.residual import WIRINGS, get_wiring
from normscope.errors import ConfigError
from tests.support import randn, scramble

WIDTH = 16
every_wiring = pytest.mark.parametrize("wiring", WIRINGS)


def made(wiring: str, **options: Any) -> Block:
    block = Block(BlockConfig(**{"width": WIDTH, "heads": 4, "wiring": wiring, **options})).double()
    scramble(block)
    return block


def pre(x: Tensor, b: Block) -> Any:
    middle = x + b.attention(b.norms[0](x))
    return middle + b.mlp(b.norms[1](middle))


def post(x: Tensor, b: Block) -> Any:
    middle = b.norms[0](x + b.attention(x))
    return b.norms[1](middle + b.mlp(middle))


def sandwich(x: Tensor, b: Block) -> Any:
    middle = x + b.norms[1](b.attention(b.norms[0](x)))
    return middle + b.norms[3](b.mlp(b.norms[2](middle)))


def parallel(x: Tensor, b: Block) -> Any:
    return x + b.attention(b.norms[0](x)) + b.mlp(b.norms[0](x))


def parallel_2(x: Tensor, b: Block) -> Any:
    return x + b.attention(b.norms[0](x)) + b.mlp(b.norms[1](x))


def branch(x: Tensor, b: Block) -> Any:
    middle = x + b.norms[0](b.attention(x))
    return middle + b.norms[1](b.mlp(middle))


def single(x: Tensor, b: Block) -> Any:
    return x + b.mlp(b.attention(b.norms[0](x)))


def none(x: Tensor, b: Block) -> Any:
    return b.mlp(b.attention(b.norms[0](x)))


BY_HAND: dict[str, tuple[int, Callable[[Tensor, Block], Any]]] = {
    "pre": (2, pre),
    "post": (2, post),
    "sandwich": (4, sandwich),
    "parallel": (1, parallel),
    "parallel-2": (2, parallel_2),
    "branch": (2, branch),
    "single": (1, single),
    "none": (1, none),
}


def test_every_wiring_is_written_out_here() -> None:
    assert list(WIRINGS) == list(BY_HAND)


@every_wiring
@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_the_block_is_its_formula(wiring: str, norm: str) -> None:
    norms, formula = BY_HAND[wiring]
    block, x = made(wiring, norm=TEXT_NORMS.get(norm)), randn(2, 5, WIDTH)
    assert len(block.norms) == norms
    assert all(isinstance(layer, NoNorm) == (norm == "none") for layer in block.norms)
    torch.testing.assert_close(block(x), formula(x, block), rtol=1e-12, atol=1e-12)


@every_wiring
def test_every_part_of_the_block_is_used(wiring: str) -> None:
    block = made(wiring, norm=TEXT_NORMS["layer"], bias=True, activation="swiglu")
    block(randn(2, 5, WIDTH)).backward(randn(2, 5, WIDTH, seed=1))
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        # A bias of the keys moves all the scores of a query alike, which softmax does not see.
        assert parameter.grad.abs().max() > 1e-9 or name == "attention.k.bias", name


@pytest.mark.parametrize("wiring", ["pre", "sandwich", "parallel", "parallel-2", "single"])
def test_projections_that_start_at_zero_make_the_block_the_identity(wiring: str) -> None:
    x = randn(2, 5, WIDTH, dtype=torch.float32)
    assert torch.equal(Block(BlockConfig(width=WIDTH, heads=4, wiring=wiring, init="nanochat"))(x), x)


def test_only_what_is_added_to_the_stream_starts_at_zero() -> None:
    x = randn(2, 5, WIDTH, dtype=torch.float32)
    without = Block(BlockConfig(width=WIDTH, heads=4, wiring="none", init="nanochat"))
    assert without.attention.out.weight.any()  # nothing here is added to the stream, so nothing may start at zero
    assert without.mlp.down.weight.any()
    once = Block(BlockConfig(width=WIDTH, heads=4, wiring="single", init="nanochat"))
    assert once.attention.out.weight.any()
    assert not once.mlp.down.weight.any()
    block = Block(BlockConfig(width=WIDTH, heads=4, wiring="post", init="nanochat"))
    assert torch.equal(block(x), block.norms[1](block.norms[0](x)))


@every_wiring
def test_a_wiring_knows_whether_the_stream_leaves_it_normalized(wiring: str) -> None:
    y = made(wiring, norm=TEXT_NORMS["rms-plain"])(randn(2, 5, WIDTH))
    normalized = torch.isclose(y.square().mean(-1), torch.ones(2, 5, dtype=torch.float64)).all().item()
    assert get_wiring(wiring).ends_normalized == normalized


def test_post_with_dropout_is_the_encoder_block() -> None:
    """x = norm1(x + dropout(attention(x))), x = norm2(x + dropout(mlp(x))), seen from inside while it trains."""
    block, x = made("post", dropout=0.5, causal=False, norm=TEXT_NORMS["layer"]), randn(2, 5, WIDTH)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (inputs[0], output)

        return hook

    for name in ("attention", "mlp"):
        getattr(block, name).dropout.register_forward_hook(watch(name))
    y = block(x)
    for before, after in seen.values():
        dropped = after == 0
        assert 0.3 < dropped.double().mean().item() < 0.7
        torch.testing.assert_close(after[~dropped], 2 * before[~dropped])
    middle = block.norms[0](x + seen["attention"][1])
    torch.testing.assert_close(y, block.norms[1](middle + seen["mlp"][1]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen["mlp"][0], block.mlp.eval()(middle), rtol=1e-12, atol=1e-12)


def test_in_eval_mode_dropout_does_nothing() -> None:
    x = randn(2, 5, WIDTH)
    assert torch.equal(made("post", dropout=0.5).eval()(x), made("post")(x))


def test_an_unknown_wiring_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown wiring 'prenorm'; choose one of pre, post, sandwich"):
        get_wiring("prenorm")
