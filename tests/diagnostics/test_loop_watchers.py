"""What the watchers of the training loop hold and leave behind, and what they see of unusual loops."""

import contextlib
import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.record_json import load_record, save_record
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, points


def _step(model: Any, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
    optimizer.zero_grad()
    classify(model)(number)().backward()
    optimizer.step()


def test_optimizers_and_other_models_are_not_kept_alive() -> None:
    model: Any = mlp(16, 64, 4)
    with Xray(model) as x:
        optimizer, other = torch.optim.Adam(model.parameters()), nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 4))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with torch.no_grad():
            other(points(0)[0])
        _step(model, optimizer)
        scheduler.step()
        gone = [weakref.ref(value) for value in (optimizer, other, scheduler)]
        del optimizer, other, scheduler
        gc.collect()
        assert [reference() for reference in gone] == [None, None, None]
    assert [optimizer.steps for optimizer in x.record.loop.optimizers] == [1]


def test_graphs_of_passes_without_backward_are_freed() -> None:
    model: Any = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    x, labels = points(0)
    with Xray(model):
        loss = F.cross_entropy(model(x), labels)
        graph = weakref.ref(loss)
        del loss
        assert graph() is None


def test_copies_with_settings_and_modes_survive_json(tmp_path: Path) -> None:
    online = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))
    model: Any = nn.ModuleDict({"online": online, "ema": copy.deepcopy(online)})
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    with Xray(model) as x:
        for number in range(3):
            _step(online, optimizer, number)
            nn.utils.clip_grad_norm_(online.parameters(), 0.1)
            scheduler.step()
    save_record(x.record, tmp_path / "xray.json")
    assert load_record(tmp_path / "xray.json") == x.record
    (seen,) = x.record.loop.optimizers
    assert (seen.module, seen.steps, seen.momentum, seen.weight_decay) == ("online", 3, 0.9, 1e-4)
    assert x.record.loop.schedules[0].period == 10
    assert x.record.loop.clipping[0].calls == 3
    assert [(c.module, c.original, c.original_steps) for c in x.record.copies] == [("ema", "online", 3)]
    assert [(m.module, m.train_steps) for m in x.record.modes] == [("online", 3)]


def test_a_step_with_a_closure_has_gradients() -> None:
    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = classify(model)(0)()
        loss.backward()
        return loss

    with Xray(model) as x:
        for _ in range(4):
            optimizer.step(closure)
    (seen,) = x.record.loop.optimizers
    assert (seen.steps, seen.without_gradient, seen.repeated, seen.unchanged) == (4, 0, 0, 0)


def test_gradients_of_another_loss_are_noticed_until_they_are_reset_by_hand() -> None:
    """The body gets gradients of the loss of the head, which its own step uses, unless they are set to None before."""
    for is_reset in (False, True):
        body, head = mlp(16, 32, 8), nn.Linear(8, 4)
        model: Any = nn.ModuleDict({"body": body, "head": head})
        of_body = torch.optim.SGD(body.parameters(), lr=0.01)
        of_head = torch.optim.SGD(head.parameters(), lr=0.01)
        with Xray(model) as x:
            for number in range(5):
                inputs, labels = points(number)
                of_head.zero_grad()
                of_body.zero_grad()
                F.cross_entropy(head(body(inputs)), labels).backward()
                of_head.step()
                for parameter in body.parameters() if is_reset else ():
                    parameter.grad = None
                body(inputs).square().mean().backward()
                of_body.step()
        by_module = {optimizer.module: optimizer.mixed for optimizer in x.record.loop.optimizers}
        assert by_module == {"body": 0 if is_reset else 5, "head": 0}


def test_an_optimizer_whose_steps_fail_is_not_kept_alive() -> None:
    def fail() -> float:
        raise ValueError

    model: Any = mlp(16, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Xray(model) as x:
        classify(model)(0)().backward()
        for _ in range(3):
            with contextlib.suppress(ValueError):
                optimizer.step(fail)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert x.record.loop.optimizers[0].steps == 0


def test_limits_that_follow_the_gradients_do_not_fill_the_record() -> None:
    model: Any = mlp(16, 64, 4)
    with Xray(model) as x:
        for number in range(100):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0 + number)
    assert len(x.record.loop.clipping) <= 64


def test_an_average_in_float64_is_seen_to_move() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.target_net = nn.Linear(16, 4), nn.Linear(16, 4)
            self.target_net.load_state_dict(self.net.state_dict())
            self.target_net.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

    model = Pair().double()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    with Xray(model) as x:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 16, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for average, parameter in zip(model.target_net.parameters(), model.net.parameters(), strict=True):
                    average.lerp_(parameter, 0.1)
    (record,) = x.record.copies
    assert (record.moved, record.equal) == (4, 0)
