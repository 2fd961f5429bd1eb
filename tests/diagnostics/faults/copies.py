"""Target networks, averages of weights, and generators against discriminators."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, points

STEPS = 14


def _online_and(name: str) -> Any:
    """A network and its copy."""
    online = mlp(16, 32, 4)
    return nn.ModuleDict({"online": online, name: copy.deepcopy(online).requires_grad_(False)})


def _loop(model: Any, objective: Callable[[int], Tensor], after: Callable[[], Any], parameters: Any = None) -> Setup:
    optimizer = torch.optim.Adam(parameters or model["online"].parameters(), lr=1e-3)

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            objective(number).backward()
            optimizer.step()
            with torch.no_grad():
                after()

    return model, run


def _average(target: nn.Module, source: nn.Module, decay: float) -> None:
    for a, p in zip(target.parameters(), source.parameters(), strict=True):
        a.mul_(decay).add_(p, alpha=1 - decay)


def _bellman(online: Any, target: Any) -> Callable[[int], Tensor]:
    def objective(number: int) -> Tensor:
        x = points(number)[0]
        wanted = x[:, 0] + 0.9 * target(x.roll(1, 0)).max(1).values
        return F.mse_loss(online(x)[:, 0], wanted)

    return objective


@fault("copy-never-updated", "ema")
def average_with_decay_of_one() -> Setup:
    model = _online_and("ema")
    objective = lambda i: classify(model["online"])(i)()  # noqa: E731
    return _loop(model, objective, lambda: _average(model["ema"], model["online"], 1.0))


@fault("copy-never-updated", "momentum_encoder")
def momentum_encoder_forgotten() -> Setup:
    model = _online_and("momentum_encoder")
    return _loop(model, lambda i: classify(model["online"])(i)(), lambda: None)


@fault("copy-updates-original", "target")
def average_written_to_the_original() -> Setup:
    model = _online_and("target")
    objective = lambda i: classify(model["online"])(i)()  # noqa: E731
    return _loop(model, objective, lambda: _average(model["online"], model["target"], 0.9))


@fault("copy-updates-original", "teacher")
def teacher_pulls_the_student_back() -> Setup:
    model = _online_and("teacher")
    objective = lambda i: classify(model["online"])(i)()  # noqa: E731
    return _loop(model, objective, lambda: _average(model["online"], model["teacher"], 0.5))


@fault("copy-equals-original", "target")
def target_is_the_network() -> Setup:
    online = mlp(16, 32, 4)
    model: Any = nn.ModuleDict({"online": online, "target": online})
    return _loop(model, lambda i: classify(online)(i)(), lambda: None)


@fault("copy-equals-original", "ema")
def average_with_decay_of_zero() -> Setup:
    model = _online_and("ema")
    objective = lambda i: classify(model["online"])(i)()  # noqa: E731
    return _loop(model, objective, lambda: _average(model["ema"], model["online"], 0.0))


@fault("target-network-trained", "target")
def target_in_the_optimizer() -> Setup:
    model = _online_and("target").requires_grad_(True)
    return _loop(model, _bellman(model["online"], model["target"]), lambda: None, model.parameters())


@fault("target-network-trained", "target")
def target_without_no_grad() -> Setup:
    model = _online_and("target").requires_grad_(True)
    objective = _bellman(model["online"], model["target"])
    return _loop(model, objective, lambda: _average(model["target"], model["online"], 0.99))


@fault("target-network-trained", "")
def target_of_the_network_itself() -> Setup:
    model: Any = mlp(16, 32, 4)
    return _loop(model, _bellman(model, model), lambda: None, model.parameters())


def _gan(is_detached_for_generator: bool, is_detached_for_critic: bool, reset_generator: bool) -> Setup:
    model: Any = nn.ModuleDict({"generator": mlp(4, 32, 16), "critic": mlp(16, 32, 1)})
    generator, critic = model["generator"], model["critic"]
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4)

    def judge(x: Tensor, wanted: float) -> Tensor:
        y = critic(x)
        return F.binary_cross_entropy_with_logits(y, torch.full_like(y, wanted))

    def run() -> None:
        for number in range(8):
            fake, real = generator(torch.randn(64, 4)), points(number)[0]
            opt_g.zero_grad()
            opt_c.zero_grad()
            for_critic = fake.detach() if is_detached_for_critic else fake
            (judge(real, 1.0) + judge(for_critic, 0.0)).backward(retain_graph=True)
            opt_c.step()
            fake = generator(torch.randn(64, 4))
            if reset_generator:
                opt_g.zero_grad()
            judge(fake.detach() if is_detached_for_generator else fake, 1.0).backward()
            opt_g.step()

    return model, run


@fault("wrong-detach", "generator")
def generator_detached_in_its_own_loss() -> Setup:
    return _gan(True, True, True)


@fault("wrong-detach", "generator")
def generator_follows_the_loss_of_the_critic() -> Setup:
    return _gan(False, False, False)


@fault("missing-zero-grad", "critic")
def critic_keeps_gradients_of_the_generator() -> Setup:
    """The critic is reset after each of its steps, so that the generator's loss adds to its next gradients."""
    model: Any = nn.ModuleDict({"generator": mlp(4, 32, 16), "critic": mlp(16, 32, 1)})
    generator, critic = model["generator"], model["critic"]
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4)

    def run() -> None:
        for number in range(8):
            fake = generator(torch.randn(64, 4))
            (critic(fake.detach()).mean() - critic(points(number)[0]).mean()).backward()
            opt_c.step()
            opt_c.zero_grad()
            opt_g.zero_grad()
            (-critic(fake).mean()).backward()
            opt_g.step()

    return model, run


def _adversaries(in_both: bool, frozen_for_good: bool) -> Setup:
    model: Any = nn.ModuleDict({"generator": mlp(4, 32, 16), "critic": mlp(16, 32, 1)})
    generator, critic = model["generator"], model["critic"]
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    opt_c = torch.optim.Adam(model.parameters() if in_both else critic.parameters(), lr=1e-4)

    def run() -> None:
        for number in range(10):
            opt_c.zero_grad()
            fake = generator(torch.randn(64, 4))
            loss = critic(fake if in_both else fake.detach()).mean() - critic(points(number)[0]).mean()
            if loss.requires_grad:
                loss.backward()
            opt_c.step()
            critic.requires_grad_(not frozen_for_good)
            opt_g.zero_grad()
            (-critic(generator(torch.randn(64, 4))).mean()).backward()
            opt_g.step()

    return model, run


@fault("in-two-optimizers", "")
def optimizer_of_the_critic_has_the_generator() -> Setup:
    return _adversaries(True, False)


@fault("in-two-optimizers", "")
def optimizer_of_the_head_and_of_everything() -> Setup:
    """Two losses take turns, and the second is meant for the head alone."""
    model: Any = mlp(16, 32, 4)
    head = torch.optim.SGD(model[2].parameters(), lr=0.01)
    everything = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for number in range(STEPS):
            for optimizer in (head, everything):
                optimizer.zero_grad()
                classify(model)(number)().backward()
                optimizer.step()

    return model, run


@fault("wrong-detach", "critic")
def critic_frozen_for_good() -> Setup:
    """requires_grad_(False) for the generator's step is never undone."""
    return _adversaries(False, True)


@fault("target-network-trained", "teacher")
def teacher_of_another_size_in_the_optimizer() -> Setup:
    model: Any = nn.ModuleDict({"student": mlp(16, 8, 4), "teacher": mlp(16, 64, 4)})

    def objective(number: int) -> Tensor:
        x = points(number)[0]
        return F.mse_loss(model["student"](x), model["teacher"](x))

    return _loop(model, objective, lambda: None, model.parameters())
