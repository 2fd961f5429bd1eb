"""The x-ray only looks: hooks, modes, weights, gradients and random numbers are afterwards as they were before."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import normscope
from normscope import GPT, llama, nanochat
from normscope.diagnostics.record_json import load_record
from normscope.tracing.tracer import noop
from tests.support import random_tokens

HOOKS = [name for name in vars(nn.Linear(1, 1)) if "hooks" in name]


def hooks_of(model: nn.Module) -> list[Any]:
    found: list[Any] = [
        {name: dict(getattr(module, name)) for name in HOOKS if getattr(module, name) is not None}
        for module in model.modules()
    ]
    found += [len(p._post_accumulate_grad_hooks or {}) + len(p._backward_hooks or {}) for p in model.parameters()]
    return found


class Convolutional(nn.Module):
    """Convolutions, batch norms, in-place steps, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        y = self.second(x)
        y += x
        result: Tensor = self.last(self.dropout(y.mean((2, 3))))
        return result


def convolutional() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(4, 2, 5, 5)
    return Convolutional(), lambda model: F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0]))


def gpt() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    tokens = random_tokens(31, 2, 9)
    model = GPT(nanochat(vocab_size=31, context=9, depth=2, width=16, heads=2, dropout=0.1))
    return model, lambda model: model.loss(tokens, tokens)


def recurrent() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(3, 6, 4)
    return nn.LSTM(4, 5, num_layers=2, dropout=0.2), lambda model: model(x)[0].square().mean()


def encoder() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(2, 7, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), lambda model: model(x).square().mean()


MODELS = [convolutional, gpt, recurrent, encoder]


def trained(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], watched: bool) -> tuple[nn.Module, list[float]]:
    """Three steps, the second of them under the x-ray."""
    torch.manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for i in range(3):
        with normscope.xray(model) if watched and i == 1 else torch.enable_grad():
            optimiser.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("make", MODELS)
def test_training_goes_on_as_if_nobody_had_looked(make: Any) -> None:
    model, loss_of = make()
    plain, plain_losses = trained(copy.deepcopy(model), loss_of, watched=False)
    generator = torch.get_rng_state()
    seen, seen_losses = trained(copy.deepcopy(model), loss_of, watched=True)
    assert torch.equal(torch.get_rng_state(), generator)
    # normscope's own layers take pairs of them in one pass when nobody looks, which rounds otherwise.
    exact = make is not gpt
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(
            seen.state_dict()[name], weight, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5
        )
    assert seen_losses == (plain_losses if exact else pytest.approx(plain_losses, rel=1e-5))


@pytest.mark.parametrize("make", MODELS)
def test_hooks_and_modes_are_as_they_were(make: Any) -> None:
    model, loss_of = make()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    next(iter(model.modules())).eval()  # only the outermost: a mix of modes
    before, modes = hooks_of(model), [module.training for module in model.modules()]
    optimiser_hooks = len(_global_optimizer_pre_hooks)
    with normscope.xray(model):
        loss_of(model).backward()
    assert hooks_of(model) == before
    assert [module.training for module in model.modules()] == modes
    assert len(_global_optimizer_pre_hooks) == optimiser_hooks
    assert calls == [1]


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("in the middle")


def test_an_error_in_the_middle_leaves_nothing_and_the_record_is_there() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Fails()), nn.Linear(4, 2))
    before = hooks_of(model)
    with pytest.raises(RuntimeError, match="in the middle"), normscope.xray(model) as x:
        model(torch.randn(3, 4))
    assert hooks_of(model) == before
    assert [module.name for module in x.record.ran] == ["", "0", "1", "1.0", "1.1"]
    assert x.record["1.0"].output is not None
    assert x.record["2"].order is None


def test_the_next_batch_after_an_error_is_seen_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with normscope.xray(model) as x:
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5))
        model(torch.randn(3, 4))
    assert x.record["1"].calls == 1
    assert x.record["1"].output is not None


def test_a_backward_pass_after_the_block_is_not_disturbed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with normscope.xray(model) as x:
        loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    assert model[0].weight.grad is not None
    assert x.record["0"].gradient is None


def test_gradients_that_were_there_stay() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    before = model.weight.grad
    assert before is not None
    kept = before.clone()
    with normscope.xray(model), torch.no_grad():
        model(torch.ones(1, 3))
    assert model.weight.grad is before
    assert torch.equal(before, kept)


def test_no_tensor_is_kept_alive() -> None:
    import gc
    import weakref

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    made: list[weakref.ref[Tensor]] = []
    model[1].register_forward_hook(lambda _, __, y: made.append(weakref.ref(y)))
    with normscope.xray(model):
        for _ in range(3):
            model(torch.randn(8, 64)).sum().backward()
        gc.collect()
        assert [ref() for ref in made] == [None, None, None]


def test_a_record_is_made_once_and_only_after_the_block() -> None:
    model = nn.Linear(2, 2)
    x = normscope.xray(model)
    with x, pytest.raises(normscope.NormscopeError, match="not available inside the block"):
        x.record  # noqa: B018
    with pytest.raises(normscope.NormscopeError, match="cannot be entered twice"), x:
        pass
    with pytest.raises(normscope.NormscopeError, match="torch module, but got list"):
        normscope.xray([model])  # type: ignore[arg-type]


def test_normscopes_kernels_run_as_ever_under_the_x_ray() -> None:
    """Functions of torch are watched; the fused kernels are not switched off by that."""
    model = GPT(llama(vocab_size=31, context=9, depth=2, width=32, heads=2))
    tokens = random_tokens(31, 2, 9)
    with normscope.xray(model) as x:
        loss = model.loss(tokens, tokens)
    torch.testing.assert_close(loss, model.loss(tokens, tokens), rtol=1e-6, atol=0)
    assert x.record.losses[0].value == pytest.approx(loss.item())
    assert x.record.losses[0].num_classes == 31
    assert x.record["blocks.0.mlp.swiglu()"].units is not None
    assert x.record["blocks.1.attention"].attention is not None


def test_findings_a_page_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(-100.0)
    with normscope.xray(model) as x:
        model(torch.randn(512, 3))
    assert [(finding.name, finding.module) for finding in x.findings] == [("dead-units", "1")]
    x.show()
    assert "8 of 8 units" in capsys.readouterr().out
    x.save(tmp_path / "look.html")
    assert "8 of 8 units" in (tmp_path / "look.html").read_text()
    x.save(tmp_path / "look.json")
    assert load_record(tmp_path / "look.json") == x.record
    with pytest.raises(normscope.NormscopeError, match=r"fix: look\.html"):
        x.save(tmp_path / "look.png")


class Table(nn.Module):
    """Gives its own parameter, as learnt positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 5, 8))

    def forward(self) -> Tensor:
        return self.places


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.same, self.last = Table(), nn.Identity(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.same(x) + self.table())
        return y


def test_no_hook_stays_on_a_tensor_that_lives_on() -> None:
    import gc
    import weakref

    model, inputs = Placed(), torch.randn(2, 5, 8, requires_grad=True)
    for _ in range(3):
        with normscope.xray(model) as x:
            kept = model(inputs)
            kept.sum().backward()
    assert not model.table.places._backward_hooks
    assert not inputs._backward_hooks
    assert not kept._backward_hooks
    session = weakref.ref(x._session)
    del x
    gc.collect()
    assert session() is None


def test_hooks_on_tensors_that_are_gone_are_forgotten() -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4)
    with normscope.xray(model) as x:
        for _ in range(450):  # with three hooks each
            model(inputs)
        assert len(x._session._handles._handles) < 1100


def test_a_copy_and_a_file_made_inside_have_nothing_of_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())
    inputs = torch.randn(4, 8)
    with normscope.xray(model) as x, warnings.catch_warnings():
        warnings.simplefilter("error")
        model(inputs).sum().backward()
        copied = copy.deepcopy(model)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        torch.save(model, tmp_path / "model.pt")
        for other in (copied, averaged, torch.load(tmp_path / "model.pt", weights_only=False)):
            other(inputs).sum().backward()
    assert [module.calls for module in x.record.modules] == [1, 1, 1, 1]
    assert x.record.backward_passes == 1
    hooks = [hook for module in copied.modules() for hook in module._forward_pre_hooks.values()]
    assert all(hook._call is noop for hook in hooks)  # type: ignore[attr-defined]
    torch.testing.assert_close(copied(inputs), model(inputs))
