"""The fused kernels for channels: when they run, and that threads, batches and second derivatives change nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.ops import kernel_mode
from normscope.ops.fused import channel_norm as contiguous_kernels
from normscope.ops.fused import channels_last_norm as channels_last_kernels
from normscope.ops.kernel_mode import reference_kernels
from normscope.ops.operation import KernelError
from tests.blocks.norm.cases import randn, scramble
from tests.ops.recording import recorded
from tests.support import kept_for_backward

IMAGE = (6, 8, 11, 13)  # enough for several threads, and for blocks that do not come out even

Make = Callable[[], ns.Norm]

LAYERS: dict[str, Make] = {
    "batch": lambda: ns.BatchNorm2d(8),
    "batch-plain": lambda: ns.BatchNorm2d(8, affine=False),
    "instance": lambda: ns.InstanceNorm2d(8, affine=True),
    "instance-running": lambda: ns.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "group": lambda: ns.GroupNorm(4, 8),
    "layer-of-channels": lambda: ns.GroupNorm(1, 8),
    "rms-of-channels": lambda: ns.Norm("n (g [c]) [h w]", statistic="rms", affine="(g c)", g=2, c=4),
    "rms-batch": lambda: ns.Norm("[n] c [h w]", statistic="rms", state="running", affine="c", c=8),
}
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}

every_layer = pytest.mark.parametrize("name", LAYERS)
every_format = pytest.mark.parametrize("memory", FORMATS)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the loops that ran."""
    kinds = {"contiguous": contiguous_kernels, "channels_last": channels_last_kernels}
    loops = [(f"{kind} {name}", module, name) for kind, module in kinds.items() for name in ("forward", "backward")]
    return recorded(monkeypatch, loops)


def made(name: str) -> ns.Norm:
    norm = LAYERS[name]()
    scramble(norm)
    return norm


def image(memory: str, shape: tuple[int, ...] = IMAGE, seed: int = 1) -> Tensor:
    return randn(shape, seed, torch.float32).contiguous(memory_format=FORMATS[memory])


def results(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """The output, every gradient, and what is remembered."""
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(leaf) if mask is None else norm(leaf, mask)
    gradient = randn(tuple(x.shape), 5, torch.float32)
    found = torch.autograd.grad(y, [leaf, *norm.parameters()], gradient)
    return [y.detach(), *found, *[buffer.clone() for buffer in norm.buffers()]]


def close(fused: list[Tensor], steps: list[Tensor], scale: float = 1.0) -> None:
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=3e-6 * scale)


@every_format
@every_layer
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_kernels_run_and_give_the_steps_numbers(name: str, memory: str, training: bool, calls: list[str]) -> None:
    fused = results(made(name).train(training), image(memory))
    kind = "contiguous" if memory == "contiguous" else "channels_last"
    assert calls == [f"{kind} forward", f"{kind} backward"]
    with reference_kernels():
        steps = results(made(name).train(training), image(memory))
    assert len(calls) == 2
    close(fused, steps, scale=10)
    assert fused[0].stride() == image(memory).stride()


@pytest.mark.usefixtures("two_threads")
@every_format
@every_layer
def test_threads_do_not_change_a_bit(name: str, memory: str, calls: list[str]) -> None:
    shape = (6, 8, 32, 32)
    many = results(made(name), image(memory, shape))
    assert all(call.endswith("by 2") for call in calls)
    again = results(made(name), image(memory, shape))
    torch.set_num_threads(1)
    single = results(made(name), image(memory, shape))
    assert not calls[-1].endswith("by 2")
    for one, other, third in zip(many, again, single, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


@every_format
@pytest.mark.parametrize("name", ["instance", "group"])
def test_a_sample_does_not_depend_on_the_others(name: str, memory: str) -> None:
    norm, x = made(name), image(memory)
    whole = norm(x)
    assert torch.equal(norm(x[:1]), whole[:1])
    assert torch.equal(norm(x[2:5]), whole[2:5])


@every_format
@every_layer
def test_padding_has_no_say(name: str, memory: str, calls: list[str]) -> None:
    x, mask = image(memory), torch.rand(IMAGE[0], 1, *IMAGE[2:], generator=torch.Generator().manual_seed(2)) > 0.4
    x = x.masked_fill(~mask, torch.nan).contiguous(memory_format=FORMATS[memory])
    fused = results(made(name), x, mask)
    assert len(calls) == 2
    with reference_kernels():
        steps = results(made(name), x, mask)
    close(fused, steps, scale=10)


@every_format
@every_layer
def test_a_sample_of_padding_alone(name: str, memory: str) -> None:
    x, mask = image(memory), torch.ones(IMAGE[0], 1, 1, 1, dtype=torch.bool)
    mask[1] = False
    fused = results(made(name), x, mask)
    with reference_kernels():
        steps = results(made(name), x, mask)
    close(fused, steps, scale=10)
    assert not fused[0][1].any()


def test_a_long_row_without_a_gain_is_one_segment(calls: list[str]) -> None:
    norm, x = ns.RMSNorm(1500, elementwise_affine=False), randn((3, 1500), 2, torch.float32)
    fused = results(norm, x)
    assert calls == ["contiguous forward", "contiguous backward"]
    with reference_kernels():
        close(fused, results(norm, x))


def test_a_mask_that_tells_channels_apart_is_left_to_the_steps(calls: list[str]) -> None:
    mask = torch.rand(IMAGE, generator=torch.Generator().manual_seed(2)) > 0.4
    made("batch")(image("contiguous"), mask)
    assert calls == []


def test_tokens_that_share_a_batch_norm(calls: list[str]) -> None:
    """(b, s, d) with a mask of tokens: the channels lie side by side."""
    norm, x = ns.BatchNorm("[b s] d", d=12), randn((5, 40, 12), 3, torch.float32)
    mask = torch.arange(40) < torch.tensor([40, 7, 23, 1, 39])[:, None]
    scramble(norm)
    fused = results(norm, x, mask)
    assert calls == ["channels_last forward", "channels_last backward"]
    other = ns.BatchNorm("[b s] d", d=12)
    scramble(other)
    with reference_kernels():
        close(fused, results(other, x, mask), scale=10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_format
@every_layer
def test_halves_are_widened(name: str, memory: str, dtype: torch.dtype, calls: list[str]) -> None:
    norm, x = made(name).to(dtype), image(memory).to(dtype)
    other = made(name).to(dtype)
    y = norm(x)
    assert len(calls) == 1
    with reference_kernels():
        expected = other(x)
    torch.testing.assert_close(y, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3, atol=1e-3)
    assert y.dtype == dtype


@every_format
@every_layer
def test_second_derivatives_are_those_of_the_steps(name: str, memory: str) -> None:
    norm, x = made(name), image(memory, (2, 8, 3, 3))

    def second() -> list[Tensor]:
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        (first,) = torch.autograd.grad(norm(leaf).pow(3).sum(), leaf, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [leaf, *norm.parameters()], materialize_grads=True))

    fused = second()
    with reference_kernels():
        steps = second()
    for one, other in zip(fused, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@every_layer
def test_a_gradient_in_another_order_of_memory(name: str) -> None:
    """What comes back from a channels-last layer may be contiguous."""
    leaf = image("channels-last").requires_grad_()
    y = made(name)(leaf)
    gradient = randn(IMAGE, 5, torch.float32)
    (one,) = torch.autograd.grad(y, leaf, gradient, retain_graph=True)
    (other,) = torch.autograd.grad(y, leaf, gradient.contiguous(memory_format=torch.channels_last))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["batch", "instance", "group"])
def test_no_more_is_kept_than_torch_keeps(name: str) -> None:
    peers = {"batch": nn.BatchNorm2d(8), "instance": nn.InstanceNorm2d(8, affine=True), "group": nn.GroupNorm(4, 8)}

    def kept(norm: nn.Module) -> int:
        x, parameters = image("contiguous").requires_grad_(), {p.data_ptr() for p in norm.parameters()}
        found = kept_for_backward(lambda: norm(x))  # the parameters stay in memory anyway
        return sum(size for address, size in found.items() if address not in parameters)

    assert kept(LAYERS[name]()) <= kept(peers[name])


@pytest.mark.parametrize("name", ["batch", "instance", "group"])
def test_where_numba_fails_the_steps_take_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results(made(name), image("contiguous"))

    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    for module in (contiguous_kernels, channels_last_kernels):
        for pass_ in ("forward", "backward"):
            monkeypatch.setattr(module, pass_, broken)
    monkeypatch.setattr(kernel_mode, "_enabled", True)  # it will be turned off, and back on after the test
    monkeypatch.setattr(kernel_mode, "disable_kernels", lambda error: None)
    close(results(made(name), image("contiguous")), expected, scale=10)
    close(results(made(name), image("channels-last")), expected, scale=10)


@pytest.mark.parametrize("name", ["batch", "group"])
@every_format
def test_the_operators_are_sound(name: str, memory: str) -> None:
    """What torch.compile is told of them is what they do."""
    from normscope.ops.norm.channel_norm import ChannelNormConfig
    from normscope.ops.norm.memory_layout import ChannelLayout

    at = (
        ChannelLayout("contiguous", 6, 8, 143, 1 if name == "batch" else 2, across_batch=name == "batch")
        if memory == "contiguous"
        else ChannelLayout(
            "channels_last", 1 if name == "batch" else 6, 8, 858 if name == "batch" else 143, 1, across_batch=False
        )
    )
    weight, bias = (randn((8,), seed, torch.float32).requires_grad_() for seed in (1, 2))
    given = (
        image(memory).requires_grad_(),
        weight,
        bias,
        None,
        None,
        None,
        *ChannelNormConfig(*at, 1e-5, centered=True, channels_last=memory != "contiguous"),
    )
    torch.library.opcheck(torch.ops.normscope.norm_channels.default, given)


@pytest.mark.parametrize("norm", [ns.GroupNorm(2, 6), ns.BatchNorm2d(6).eval()], ids=["group", "batch"])
def test_exported_graph_without_kernels_takes_any_layout(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KernelError

    x = torch.randn(2, 6, 8, 8)
    exported = torch.export.export(norm, (x,)).module()
    monkeypatch.setattr("normscope.ops.norm.channel_norm.run_kernel", fail)
    for y in (x, x.to(memory_format=torch.channels_last)):
        torch.testing.assert_close(exported(y), norm(y), rtol=1e-4, atol=1e-5)
