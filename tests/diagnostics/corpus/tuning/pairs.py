"""Pairs of models: target networks, averages, teachers, generators and discriminators."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.register import planted
from tests.diagnostics.corpus.tuning._data import blobs, digits, loader


class QNetwork(nn.Module):
    def __init__(self, state: int = 4, actions: int = 2) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(state, 32), nn.Linear(32, 32)
        self.q = nn.Linear(32, actions)

    def forward(self, x: Tensor) -> Any:
        return self.q(F.relu(self.fc2(F.relu(self.fc1(x)))))


def transitions(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, actions, rewards and following states of a world in which one action moves forward."""
    s = torch.randn(count, 4)
    a = torch.randint(2, (count,))
    following = s + 0.3 * (2 * a[:, None] - 1)
    return s, a, following[:, 0].tanh(), following


class DQNAgent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy_net = QNetwork()
        self.target_net = QNetwork()
        self.target_net.load_state_dict(self.policy_net.state_dict())

    def forward(self, x: Tensor) -> Any:
        return self.policy_net(x)


@planted("target network gets gradients", "target_net", "")
def bootstrap_without_no_grad() -> Setup:
    """The target's values are computed with gradients, and the optimizer holds both networks (forum: DQN)."""
    agent = DQNAgent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(20):
            s, a, r, following = transitions(32)
            q = agent.policy_net(s).gather(1, a[:, None]).squeeze(1)
            wanted = r + 0.9 * agent.target_net(following).max(1).values
            optimizer.zero_grad()
            F.smooth_l1_loss(q, wanted).backward()
            optimizer.step()
            if step % 10 == 9:
                agent.target_net.load_state_dict(agent.policy_net.state_dict())

    return agent, run


@planted("target network or average never moves", "target_net", "")
def target_network_never_synchronized() -> Setup:
    """`if episode % update == 0` stands after a `continue`: the target keeps its first weights (forum: DQN)."""
    agent = DQNAgent()
    agent.target_net.requires_grad_(False)
    optimizer = torch.optim.Adam(agent.policy_net.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(30):
            s, a, r, following = transitions(32)
            with torch.no_grad():
                wanted = r + 0.9 * agent.target_net(following).amax(1)
            loss = F.mse_loss(agent.policy_net(s).gather(1, a.unsqueeze(1)).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return agent, run


class WithAverage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
        self.ema = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.online(x) if self.training else self.ema(x)

    @torch.no_grad()
    def update(self, decay: float = 0.99) -> None:
        shadow = {name: p.clone() for name, p in self.ema.state_dict().items()}
        for name, p in self.online.state_dict().items():
            shadow[name].lerp_(p, 1 - decay)


@planted("target network or average never moves", "ema", "")
def average_kept_in_a_copy() -> Setup:
    """The update averages into a copy of the state dict, which is thrown away (own variation)."""
    model = WithAverage()
    optimizer = torch.optim.AdamW(model.online.parameters(), lr=3e-3)

    def run() -> None:
        for x, y in loader(*blobs(320)):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.update()
        model.eval()
        with torch.no_grad():
            model(blobs(32)[0])

    return model, run


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, z: Tensor) -> Any:
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Any:
        return self.main(x)


@planted("generator and discriminator detached the wrong way", "generator", "")
def detached_in_the_generator_step() -> Setup:
    """fake.detach() is used in the generator's step as well, which therefore learns nothing (forum: DCGAN)."""
    gan = nn.ModuleDict({"generator": Generator(), "discriminator": Discriminator()})
    opt_g = torch.optim.Adam(gan["generator"].parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(gan["discriminator"].parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def run() -> None:
        for (real,) in loader(digits(128).flatten(1)):
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = gan["generator"](torch.randn(len(real), 8))
            opt_d.zero_grad()
            loss_d = bce(gan["discriminator"](real), ones) + bce(gan["discriminator"](fake.detach()), zeros)
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            loss_g = bce(gan["discriminator"](fake.detach()), ones)
            loss_g.backward()
            opt_g.step()

    return gan, run


class Distillation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(
            nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)
        )
        self.student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Any:
        return self.student(x)


@planted("teacher in train mode", "teacher", "teacher.1", "teacher.3", "")
def teacher_with_dropout() -> Setup:
    """model.train() reaches the teacher too: its dropout and batch statistics are active (forum: distillation)."""
    model = Distillation()
    model.teacher.requires_grad_(False)
    optimizer = torch.optim.Adam(model.student.parameters(), lr=3e-3)

    def run() -> None:
        model.train()
        for x, _ in loader(*blobs(240)):
            with torch.no_grad():
                soft = F.softmax(model.teacher(x) / 2, dim=-1)
            loss = 4 * F.kl_div(F.log_softmax(model(x) / 2, dim=-1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, run


@planted("target network equals the network", "target_net", "policy_net", "", hard=True)
def target_is_an_alias() -> Setup:
    """target_net = policy_net without a copy: the target moves with every step (forum: DQN)."""
    agent = DQNAgent()
    agent.target_net = agent.policy_net
    optimizer = torch.optim.RMSprop(agent.policy_net.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(20):
            s, a, r, following = transitions(32)
            with torch.no_grad():
                wanted = r + 0.9 * agent.target_net(following).max(1).values
            loss = F.mse_loss(agent.policy_net(s).gather(1, a[:, None]).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return agent, run
