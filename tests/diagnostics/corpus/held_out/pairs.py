"""Two models that train together: target networks, averages, adversaries, teachers."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.cases import Setup
from tests.diagnostics.corpus.held_out._shared import SmallCNN, blobs, dense, stripes
from tests.diagnostics.corpus.register import planted


def transitions(n: int = 48) -> Any:
    """States, actions, rewards, next states and ends of a made-up game."""
    states = torch.randn(n, 4)
    actions = torch.randint(2, (n, 1))
    rewards = states[:, :1] * (2 * actions - 1)
    return states, actions, rewards, states + 0.3 * torch.randn(n, 4), (torch.rand(n, 1) < 0.1).float()


class DQN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy_net = dense(4, 32, 32, 2)
        self.target_net = dense(4, 32, 32, 2)
        self.target_net.load_state_dict(self.policy_net.state_dict())

    def forward(self, state: Any) -> Any:
        return self.policy_net(state)


@planted("target network gets gradients", "target_net", "target_net.0", "target_net.2", "target_net.4", "")
def bootstrapped_target_not_detached() -> Setup:
    """The TD target is computed with gradients, and the optimizer holds the target network too (forum)."""
    model = DQN()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(16):
            s, a, r, s2, done = transitions()
            q = model.policy_net(s).gather(1, a)
            target = r + 0.95 * (1 - done) * model.target_net(s2).max(1, keepdim=True).values
            loss = F.smooth_l1_loss(q, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 8 == 7:
                model.target_net.load_state_dict(model.policy_net.state_dict())

    return model, run


@planted("target network or average never moves", "target_net", "")
def target_network_never_synchronized() -> Setup:
    """The line that copies the weights to the target network is missing (forum)."""
    model = DQN()
    for parameter in model.target_net.parameters():
        parameter.requires_grad_(False)
    opt = torch.optim.Adam(model.policy_net.parameters(), lr=2e-3)

    def run() -> None:
        for _ in range(30):
            s, a, r, s2, done = transitions()
            with torch.no_grad():
                best = model.policy_net(s2).argmax(1, keepdim=True)
                target = r + 0.95 * (1 - done) * model.target_net(s2).gather(1, best)
            loss = F.mse_loss(model(s).gather(1, a), target)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return model, run


class GAN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = dense(4, 32, 2)
        self.discriminator = dense(2, 32, 32, 1)


@planted("generator and discriminator detached the wrong way", "generator", "", "discriminator")
def generator_step_with_detached_samples() -> Setup:
    """The detach of the discriminator's step was copied to the generator's: it gets no gradient (forum)."""
    gan = GAN()
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(gan.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def run() -> None:
        for _ in range(10):
            real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
            fake = gan.generator(torch.randn(32, 4))
            loss_d = bce(gan.discriminator(real), torch.ones(32, 1))
            loss_d = loss_d + bce(gan.discriminator(fake.detach()), torch.zeros(32, 1))
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
            loss_g = bce(gan.discriminator(fake.detach()), torch.ones(32, 1))
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()

    return gan, run


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(64, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


@planted("teacher in train mode", "teacher", "", "teacher.body", "teacher.body.1", "teacher.body.3")
def distillation_from_a_teacher_with_dropout() -> Setup:
    """pair.train() puts the trained teacher in train mode too: dropout blurs its targets, its statistics move."""
    pair = nn.ModuleDict({"teacher": Teacher(), "student": dense(10, 16, 3)})
    opt_t = torch.optim.Adam(pair["teacher"].parameters(), lr=5e-3)
    for _ in range(40):
        x, y = blobs()
        opt_t.zero_grad()
        F.cross_entropy(pair["teacher"](x), y).backward()
        opt_t.step()
    pair["teacher"].requires_grad_(False)
    opt = torch.optim.Adam(pair["student"].parameters(), lr=3e-3)

    def run() -> None:
        pair.train()
        for _ in range(15):
            x, y = blobs()
            with torch.no_grad():
                soft = (pair["teacher"](x) / 2).softmax(1)
            logits = pair["student"](x)
            loss = 2 * F.kl_div((logits / 2).log_softmax(1), soft, reduction="batchmean") + F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()

    return pair, run


class MeanTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = SmallCNN()
        self.ema = copy.deepcopy(self.online).requires_grad_(False)

    @torch.no_grad()
    def update(self, decay: float) -> None:
        for slow, fast in zip(self.ema.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 1 - decay)


@planted("target network or average never moves", "ema", "")
def average_with_decay_of_one() -> Setup:
    """The weight average has decay=1.0, so nothing of the network goes into it."""
    model = MeanTeacher()
    opt = torch.optim.SGD(model.online.parameters(), lr=0.03, momentum=0.9)

    def run() -> None:
        for _ in range(10):
            x, y = stripes(24)
            out = model.online(x)
            with torch.no_grad():
                soft = model.ema(x + 0.1 * torch.randn_like(x)).softmax(1)
            loss = F.cross_entropy(out, y) + 0.1 * F.mse_loss(out.softmax(1), soft)
            opt.zero_grad()
            loss.backward()
            opt.step()
            model.update(decay=1.0)

    return model, run


@planted("target network equals the network", "target_q", "q", "", hard=True)
def target_network_is_an_alias() -> Setup:
    """self.target_q = self.q without a deepcopy: both names are one network (forum)."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = dense(4, 32, 32, 2)
            self.target_q = self.q

        def forward(self, s: Any) -> Any:
            return self.q(s)

    agent = Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(16):
            s, a, r, s2, done = transitions()
            with torch.no_grad():
                target = r + 0.95 * (1 - done) * agent.target_q(s2).amax(1, keepdim=True)
            loss = F.mse_loss(agent(s).gather(1, a), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 5 == 4:
                agent.target_q.load_state_dict(agent.q.state_dict())

    return agent, run
